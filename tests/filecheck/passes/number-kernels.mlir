// RUN: lamella-opt %s -p number-kernels | filecheck %s

// Layers differ in names, locations, ledger and weights only, and share a kernel; another type, property or schedule makes another, and so
// does an input that a launch before has written: it cannot be read early.
// CHECK-LABEL: func.func @decode
// CHECK: attributes {loc = "layers.0", kernel = "t1_row_0"}
// CHECK: attributes {loc = "layers.1", kernel = "t1_row_0"}
// CHECK: attributes {kernel = "t1_row_1"}
// CHECK: attributes {kernel = "t1_row_2"}
// CHECK: attributes {kernel = "t1_row_3"}
// CHECK: attributes {kernel = "t1_gemv_0"}
// CHECK: attributes {kernel = "t1_row_4"}
func.func @decode(%x: memref<1x8xf32>, %y: memref<1x8xf32>, %z: memref<1x8xf32>, %w: memref<1x16xf32>) attributes {lamella.bucket = {tokens = 1 : i64, sequences = 1 : i64, longest_query = 1 : i64, logit_rows = 1 : i64, blocks = 8 : i64, advance = true}} {
  tile.fused schedule <row, {warps = 4 : i64}> ins(%x : memref<1x8xf32>) outs(%y : memref<1x8xf32>) attributes {loc = "layers.0"} {
  ^bb0(%a: tensor<1x8xf32>):
    %r = tile.map "silu"(%a) {loc = "layers.0.act"} : tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %r : tensor<1x8xf32>
  }
  tile.fused schedule <row, {warps = 4 : i64}> ins(%z : memref<1x8xf32>) outs(%y : memref<1x8xf32>) ledger [#tile.ledger<joined, {reason = "other"}>] attributes {loc = "layers.1"} {
  ^bb0(%b: tensor<1x8xf32>):
    %s = tile.map "silu"(%b) {loc = "layers.1.act"} : tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %s : tensor<1x8xf32>
  }
  tile.fused schedule <row, {warps = 4 : i64}> ins(%y : memref<1x8xf32>) outs(%z : memref<1x8xf32>) {
  ^bb0(%b: tensor<1x8xf32>):
    %s = tile.map "silu"(%b) : tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %s : tensor<1x8xf32>
  }
  tile.fused schedule <row, {warps = 4 : i64}> ins(%y : memref<1x8xf32>) outs(%x : memref<1x8xf32>) {
  ^bb0(%b: tensor<1x8xf32>):
    %s = tile.map "relu"(%b) : tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %s : tensor<1x8xf32>
  }
  tile.fused schedule <row, {warps = 4 : i64}> ins(%w : memref<1x16xf32>) outs(%w : memref<1x16xf32>) {
  ^bb0(%b: tensor<1x16xf32>):
    %s = tile.map "silu"(%b) : tensor<1x16xf32> -> tensor<1x16xf32>
    tile.yield %s : tensor<1x16xf32>
  }
  tile.fused schedule <gemv, {warps = 4 : i64}> ins(%y : memref<1x8xf32>) outs(%x : memref<1x8xf32>) {
  ^bb0(%b: tensor<1x8xf32>):
    %s = tile.map "silu"(%b) : tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %s : tensor<1x8xf32>
  }
  tile.fused schedule <row, {warps = 8 : i64}> ins(%y : memref<1x8xf32>) outs(%x : memref<1x8xf32>) {
  ^bb0(%b: tensor<1x8xf32>):
    %s = tile.map "silu"(%b) : tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %s : tensor<1x8xf32>
  }
  func.return
}

// A name carries what distinguishes its bucket.
// CHECK-LABEL: func.func @ragged
// CHECK: attributes {kernel = "t40s4q37_region_0"}
func.func @ragged(%x: memref<1x8xf32>) attributes {lamella.bucket = {tokens = 40 : i64, sequences = 4 : i64, longest_query = 37 : i64, logit_rows = 4 : i64, blocks = 8 : i64, advance = false}} {
  tile.fused ins(%x : memref<1x8xf32>) outs(%x : memref<1x8xf32>) {
  ^bb0(%a: tensor<1x8xf32>):
    tile.yield %a : tensor<1x8xf32>
  }
  func.return
}
