// RUN: lamella-opt %s -p tile-to-kernel --split-input-file --verify-diagnostics | filecheck %s

// CHECK: tile.fused at layers.0.act: a region without a kernel name (run number-kernels first)
func.func @nameless(%X: memref<3x8xf32>, %Y: memref<3x8xf32>) {
  tile.fused schedule <row, {columns = 8 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%X : memref<3x8xf32>) outs(%Y : memref<3x8xf32>) attributes {loc = "layers.0.act"} {
  ^bb0(%a: tensor<3x8xf32>):
    %b = tile.map "silu"(%a) : tensor<3x8xf32> -> tensor<3x8xf32>
    tile.yield %b : tensor<3x8xf32>
  }
  func.return
}

// -----

// CHECK: tile.fused at layers.0.act: a region without a schedule (run choose-schedule first)
func.func @unscheduled(%X: memref<3x8xf32>, %Y: memref<3x8xf32>) {
  tile.fused ins(%X : memref<3x8xf32>) outs(%Y : memref<3x8xf32>) attributes {kernel = "row_0", loc = "layers.0.act"} {
  ^bb0(%a: tensor<3x8xf32>):
    %b = tile.map "silu"(%a) : tensor<3x8xf32> -> tensor<3x8xf32>
    tile.yield %b : tensor<3x8xf32>
  }
  func.return
}

// -----

// CHECK: tile.fused: no kernel skeleton spiral
func.func @skeleton(%X: memref<3x8xf32>, %Y: memref<3x8xf32>) {
  tile.fused schedule <spiral, {warps = 4 : i64}> ins(%X : memref<3x8xf32>) outs(%Y : memref<3x8xf32>) attributes {kernel = "spiral_0"} {
  ^bb0(%a: tensor<3x8xf32>):
    %b = tile.map "silu"(%a) : tensor<3x8xf32> -> tensor<3x8xf32>
    tile.yield %b : tensor<3x8xf32>
  }
  func.return
}

// -----

// CHECK: tile.map: no scalar rule sillu (nearest: silu
func.func @kind(%X: memref<3x8xf32>, %Y: memref<3x8xf32>) {
  tile.fused schedule <row, {columns = 8 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%X : memref<3x8xf32>) outs(%Y : memref<3x8xf32>) attributes {kernel = "row_0"} {
  ^bb0(%a: tensor<3x8xf32>):
    %b = tile.map "sillu"(%a) : tensor<3x8xf32> -> tensor<3x8xf32>
    tile.yield %b : tensor<3x8xf32>
  }
  func.return
}

// -----

// CHECK: tile.reduce: no reduction maximum (nearest: max
func.func @reduction(%X: memref<3x8xf32>, %Y: memref<3x1xf32>) {
  tile.fused schedule <row, {columns = 8 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%X : memref<3x8xf32>) outs(%Y : memref<3x1xf32>) attributes {kernel = "row_0"} {
  ^bb0(%a: tensor<3x8xf32>):
    %b = tile.reduce "maximum" %a : tensor<3x8xf32> -> tensor<3x1xf32>
    tile.yield %b : tensor<3x1xf32>
  }
  func.return
}
