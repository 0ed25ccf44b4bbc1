// RUN: lamella-opt %s -p bufferize | filecheck %s

// Where in-place did not run, nothing that a region reads is overwritten: %z and the sum get buffers of their own.
// CHECK-LABEL: func.func @plain
// CHECK:         outs(%y : memref<4x8xf32>) ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "in-place did not run"}>] {
// CHECK:         %z = memref.alloc() : memref<4x8xf32>
// CHECK-NEXT:    tile.fused ins(%y : memref<4x8xf32>) outs(%z : memref<4x8xf32>) ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "in-place did not run"}>] {
// CHECK:         func.return %z
func.func @plain(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = tile.fused ins(%x : tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>):
    %r = tile.map "silu"(%a) : tensor<4x8xf32> -> tensor<4x8xf32>
    tile.yield %r : tensor<4x8xf32>
  } -> tensor<4x8xf32>
  %z = tile.fused ins(%y : tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>):
    %r = tile.map "neg"(%a) : tensor<4x8xf32> -> tensor<4x8xf32>
    tile.yield %r : tensor<4x8xf32>
  } -> tensor<4x8xf32>
  func.return %z : tensor<4x8xf32>
}

// A tied result goes to its argument at once if the region does not read it, else by a copy.
// CHECK-LABEL: func.func @tied
// CHECK:         %sum = memref.alloc() : memref<4xi32>
// CHECK-NEXT:    tile.fused ins(%p : memref<4xi32>) outs(%sum, %t : memref<4xi32>, memref<4xi32>) ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "in-place did not run"}>, #tile.ledger<in_place, {argument = 1 : i64, out = 1 : i64, reason = "the result is tied"}>] {
// CHECK:         tile.fused schedule <row, {{.*}}> ins(%sum : memref<4xi32>) outs(%p : memref<4xi32>) ledger [#tile.ledger<copied,
// CHECK:         func.return %p, %t
func.func @tied(%p: tensor<4xi32>, %t: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>) attributes {lamella.tied = array<i64: 0, 1>} {
  %sum, %other = tile.fused ins(%p : tensor<4xi32>) {
  ^bb0(%a: tensor<4xi32>):
    %r = tile.map "add"(%a, %a) : tensor<4xi32>, tensor<4xi32> -> tensor<4xi32>
    %s = tile.map "neg"(%a) : tensor<4xi32> -> tensor<4xi32>
    tile.yield %r, %s : tensor<4xi32>, tensor<4xi32>
  } -> tensor<4xi32>, tensor<4xi32>
  func.return %sum, %other : tensor<4xi32>, tensor<4xi32>
}

// A cache has one place, whoever ran.
// CHECK-LABEL: func.func @cache
// CHECK:         tile.fused ins(%k, %cache, %slots : {{.*}}) outs(%cache : memref<?x2x2x16x4xf32>) ledger [#tile.ledger<in_place, {input = 1 : i64, out = 0 : i64, reason = "a scatter updates its cache"}>] {
func.func @cache(%k: tensor<3x8xf32>, %slots: tensor<3xi32>, %cache: tensor<?x2x2x16x4xf32>) -> tensor<?x2x2x16x4xf32> attributes {lamella.tied = array<i64: 2>} {
  %new = tile.fused ins(%k, %cache, %slots : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32>) {
  ^bb0(%a: tensor<3x8xf32>, %b: tensor<?x2x2x16x4xf32>, %c: tensor<3xi32>):
    %r = tile.scatter %a into %b[%c] part 0 : i64 : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32> -> tensor<?x2x2x16x4xf32>
    tile.yield %r : tensor<?x2x2x16x4xf32>
  } -> tensor<?x2x2x16x4xf32>
  func.return %new : tensor<?x2x2x16x4xf32>
}
