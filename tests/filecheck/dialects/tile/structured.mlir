// RUN: lamella-opt %s | lamella-opt | filecheck %s
// RUN: lamella-opt %s --print-op-generic | lamella-opt | filecheck %s

func.func @structured(%x: tensor<3x8xbf16>, %w: tensor<5x8xbf16>, %scale: tensor<8xf32>) -> tensor<3x5xf32> {
  // CHECK: %eps = tile.constant 1.000000e-05 : f32 : tensor<f32>
  %eps = tile.constant 1.0e-05 : f32 : tensor<f32>
  // CHECK-NEXT: %one = tile.constant 1 : i32 : tensor<i32>
  %one = tile.constant 1 : i32 : tensor<i32>
  // CHECK-NEXT: %wide = tile.cast %x {loc = "layers.0.norm"} : tensor<3x8xbf16> -> tensor<3x8xf32>
  %wide = tile.cast %x {loc = "layers.0.norm"} : tensor<3x8xbf16> -> tensor<3x8xf32>
  // CHECK-NEXT: %sum = tile.reduce "sum" %wide : tensor<3x8xf32> -> tensor<3x1xf32>
  %sum = tile.reduce "sum" %wide : tensor<3x8xf32> -> tensor<3x1xf32>
  // CHECK-NEXT: %sums = tile.add_columns %wide by 2 : i64 {loc = "layers.0.norm"} : tensor<3x8xf32> -> tensor<3x4xf32>
  %sums = tile.add_columns %wide by 2 : i64 {loc = "layers.0.norm"} : tensor<3x8xf32> -> tensor<3x4xf32>
  // CHECK-NEXT: %safe = tile.map "add"(%sum, %eps) : tensor<3x1xf32>, tensor<f32> -> tensor<3x1xf32>
  %safe = tile.map "add"(%sum, %eps) : tensor<3x1xf32>, tensor<f32> -> tensor<3x1xf32>
  // CHECK-NEXT: %y = tile.map "mul"(%wide, %safe) {loc = "layers.0.norm"} : tensor<3x8xf32>, tensor<3x1xf32> -> tensor<3x8xf32>
  %y = tile.map "mul"(%wide, %safe) {loc = "layers.0.norm"} : tensor<3x8xf32>, tensor<3x1xf32> -> tensor<3x8xf32>
  // CHECK-NEXT: %low = tile.cast %y : tensor<3x8xf32> -> tensor<3x8xbf16>
  %low = tile.cast %y : tensor<3x8xf32> -> tensor<3x8xbf16>
  // CHECK-NEXT: %z = tile.contract %low, %w {loc = "layers.0.q"} : tensor<3x8xbf16>, tensor<5x8xbf16> -> tensor<3x5xf32>
  %z = tile.contract %low, %w {loc = "layers.0.q"} : tensor<3x8xbf16>, tensor<5x8xbf16> -> tensor<3x5xf32>
  // CHECK-NEXT: %runs = tile.contract_partial %low, %w {loc = "layers.0.o", splits = 2 : i64, chunk = 5 : i64} : tensor<3x8xbf16>, tensor<5x8xbf16> -> tensor<2x3x5xf32>
  %runs = tile.contract_partial %low, %w {splits = 2 : i64, chunk = 5 : i64, loc = "layers.0.o"} : tensor<3x8xbf16>, tensor<5x8xbf16> -> tensor<2x3x5xf32>
  // CHECK-NEXT: %all = tile.contract_merge %runs : tensor<2x3x5xf32> -> tensor<3x5xf32>
  %all = tile.contract_merge %runs : tensor<2x3x5xf32> -> tensor<3x5xf32>
  // CHECK-NEXT: %counters = tile.arrivals 8 : i64 : tensor<8xi32>
  %counters = tile.arrivals 8 : i64 : tensor<8xi32>
  // CHECK-NEXT: %last = tile.contract_merge %runs counted by %counters {loc = "layers.0.o"} : tensor<2x3x5xf32>, tensor<8xi32> -> tensor<3x5xf32>
  %last = tile.contract_merge %runs counted by %counters {loc = "layers.0.o"} : tensor<2x3x5xf32>, tensor<8xi32> -> tensor<3x5xf32>
  %bytes, %numbers = "test.op"() : () -> (tensor<3x8xi8>, tensor<5x8xf32>)
  // CHECK: tile.contract %bytes, %numbers : tensor<3x8xi8>, tensor<5x8xf32> -> tensor<3x5xf32>
  %whole = tile.contract %bytes, %numbers : tensor<3x8xi8>, tensor<5x8xf32> -> tensor<3x5xf32>
  func.return %z : tensor<3x5xf32>
}
