// RUN: lamella-opt %s | lamella-opt | filecheck %s
// RUN: lamella-opt %s --print-op-generic | lamella-opt | filecheck %s
// RUN: lamella-opt %s -p 'dce' | filecheck %s --check-prefix=DCE

// CHECK: func.func @tensors
func.func @tensors(%x: tensor<3x8xf32>) -> tensor<3x8xf32> {
  // CHECK: %y = tile.fused schedule <row, {columns = 8 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%x : tensor<3x8xf32>) ledger [#tile.ledger<joined, {consumer = "tile.map", reason = "same rows"}>] attributes {loc = "layers.0"} {
  // CHECK-NEXT: ^bb0(%a: tensor<3x8xf32>):
  // CHECK-NEXT:   %b = tile.map "silu"(%a) : tensor<3x8xf32> -> tensor<3x8xf32>
  // CHECK-NEXT:   tile.yield %b : tensor<3x8xf32>
  // CHECK-NEXT: } -> tensor<3x8xf32>
  %y = tile.fused schedule <row, {columns = 8 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%x : tensor<3x8xf32>) ledger [#tile.ledger<joined, {consumer = "tile.map", reason = "same rows"}>] attributes {loc = "layers.0"} {
  ^bb0(%a: tensor<3x8xf32>):
    %b = tile.map "silu"(%a) : tensor<3x8xf32> -> tensor<3x8xf32>
    tile.yield %b : tensor<3x8xf32>
  } -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}

// A region on tensors that nobody uses goes; one on buffers stays, since it stores to memory.
// CHECK: func.func @buffers
// DCE: func.func @buffers
// DCE-NEXT: tile.fused ins(%x : memref<3x8xf32>) outs(%y : memref<3x8xf32>) {
// DCE: func.return
func.func @buffers(%x: memref<3x8xf32>, %y: memref<3x8xf32>, %t: tensor<3x8xf32>) {
  // CHECK: %unused = tile.fused ins(%t : tensor<3x8xf32>) {
  %unused = tile.fused ins(%t : tensor<3x8xf32>) {
  ^bb0(%a: tensor<3x8xf32>):
    tile.yield %a : tensor<3x8xf32>
  } -> tensor<3x8xf32>
  // CHECK: tile.fused ins(%x : memref<3x8xf32>) outs(%y : memref<3x8xf32>) {
  tile.fused ins(%x : memref<3x8xf32>) outs(%y : memref<3x8xf32>) {
  ^bb0(%a: tensor<3x8xf32>):
    tile.yield %a : tensor<3x8xf32>
  }
  func.return
}

// What a result may overwrite stands beside the region (in-place).
// CHECK: func.func @in_place
// CHECK-NEXT: tile.fused ins(%x : tensor<3x8xf32>) attributes {in_place = array<i64: 0, -1>} {
func.func @in_place(%x: tensor<3x8xf32>) -> (tensor<3x8xf32>, tensor<3x8xf32>) {
  %p, %q = tile.fused ins(%x : tensor<3x8xf32>) attributes {in_place = array<i64: 0, -1>} {
  ^bb0(%a: tensor<3x8xf32>):
    tile.yield %a, %a : tensor<3x8xf32>, tensor<3x8xf32>
  } -> tensor<3x8xf32>, tensor<3x8xf32>
  func.return %p, %q : tensor<3x8xf32>, tensor<3x8xf32>
}
