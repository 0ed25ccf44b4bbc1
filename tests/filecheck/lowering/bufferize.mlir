// RUN: lamella-opt %s -p 'in-place,bufferize' | filecheck %s
// RUN: lamella-opt %s -p 'in-place,bufferize' | lamella-opt --legal buffers | filecheck %s

// The residual is overwritten by the epilogue that reads it element by element; the argument %x and the returned %z are not.
// CHECK-LABEL: func.func @residual
// CHECK-SAME:    (%x: memref<1x8xf32>) -> memref<1x8xf32> {
// CHECK-NEXT:    %w = host.weight "w" : memref<8x8xf32>
// CHECK-NEXT:    %y = memref.alloc() : memref<1x8xf32>
// CHECK-NEXT:    tile.fused ins(%x : memref<1x8xf32>) outs(%y : memref<1x8xf32>) ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "no input of its type dies here"}>] {
// CHECK:         %u = memref.alloc() : memref<1x8xf32>
// CHECK-NEXT:    tile.fused schedule <gemv, {k = 8 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%y, %w : memref<1x8xf32>, memref<8x8xf32>) outs(%u : memref<1x8xf32>) ledger [#tile.ledger<chosen, {kind = "schedule"}>, #tile.ledger<not_in_place, {out = 0 : i64, reason = "input 0 is read later"}>] attributes {loc = "layers.0.o"} {
// CHECK:         tile.fused ins(%u, %w, %y : memref<1x8xf32>, memref<8x8xf32>, memref<1x8xf32>) outs(%y : memref<1x8xf32>) ledger [#tile.ledger<in_place, {input = 2 : i64, out = 0 : i64, reason = "the input dies here"}>] {
// CHECK-NEXT:    ^bb0(%a: tensor<1x8xf32>, %b: tensor<8x8xf32>, %c: tensor<1x8xf32>):
// CHECK:         func.return %y : memref<1x8xf32>
func.func @residual(%x: tensor<1x8xf32>) -> tensor<1x8xf32> {
  %w = transformer.weight "w" : tensor<8x8xf32>
  %y = tile.fused ins(%x : tensor<1x8xf32>) {
  ^bb0(%a: tensor<1x8xf32>):
    %r = tile.map "silu"(%a) : tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %r : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  %u = tile.fused schedule <gemv, {k = 8 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%y, %w : tensor<1x8xf32>, tensor<8x8xf32>) ledger [#tile.ledger<chosen, {kind = "schedule"}>] attributes {loc = "layers.0.o"} {
  ^bb0(%a: tensor<1x8xf32>, %b: tensor<8x8xf32>):
    %r = tile.contract %a, %b : tensor<1x8xf32>, tensor<8x8xf32> -> tensor<1x8xf32>
    tile.yield %r : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  %z = tile.fused ins(%u, %w, %y : tensor<1x8xf32>, tensor<8x8xf32>, tensor<1x8xf32>) {
  ^bb0(%a: tensor<1x8xf32>, %b: tensor<8x8xf32>, %c: tensor<1x8xf32>):
    %r = tile.contract %a, %b : tensor<1x8xf32>, tensor<8x8xf32> -> tensor<1x8xf32>
    %s = tile.map "add"(%r, %c) : tensor<1x8xf32>, tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %s : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  func.return %z : tensor<1x8xf32>
}

// -----
// Programs of the contraction read all of %y, so its buffer cannot take the result (invariant 1).
// CHECK-LABEL: func.func @race
// CHECK:         outs(%z : memref<1x8xf32>) ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "contract reads it from other programs"}>]
func.func @race(%x: tensor<1x8xf32>, %w: tensor<8x8xf32>) -> tensor<1x8xf32> {
  %y = tile.fused ins(%x : tensor<1x8xf32>) {
  ^bb0(%a: tensor<1x8xf32>):
    %r = tile.map "silu"(%a) : tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %r : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  %z = tile.fused ins(%y, %w : tensor<1x8xf32>, tensor<8x8xf32>) {
  ^bb0(%a: tensor<1x8xf32>, %b: tensor<8x8xf32>):
    %r = tile.contract %a, %b : tensor<1x8xf32>, tensor<8x8xf32> -> tensor<1x8xf32>
    %s = tile.map "add"(%r, %a) : tensor<1x8xf32>, tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %s : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  func.return %z : tensor<1x8xf32>
}

// -----
// A cache is updated where it lies; what reads it afterwards reads the argument. The table becomes a constant.
// CHECK-LABEL: func.func @cache
// CHECK-SAME:    (%k: memref<3x8xf32>, %slots: memref<3xi32>, %cache: memref<?x2x2x16x4xf32>) -> memref<?x2x2x16x4xf32> attributes {lamella.tied = array<i64: 2>} {
// CHECK-NEXT:    %{{.*}} = host.constant "rope_table" {op = "transformer.rope_table", arguments = {length = 32 : i64, rotary_dim = 4 : i64, scaling = {}, theta = 1.000000e+04 : f64}} : memref<32x4xf32>
// CHECK-NEXT:    tile.fused ins(%k, %cache, %slots : memref<3x8xf32>, memref<?x2x2x16x4xf32>, memref<3xi32>) outs(%cache : memref<?x2x2x16x4xf32>) ledger [#tile.ledger<in_place, {input = 1 : i64, out = 0 : i64, reason = "a scatter updates its cache"}>] {
// CHECK:         func.return %cache : memref<?x2x2x16x4xf32>
func.func @cache(%k: tensor<3x8xf32>, %slots: tensor<3xi32>, %cache: tensor<?x2x2x16x4xf32>) -> tensor<?x2x2x16x4xf32> attributes {lamella.tied = array<i64: 2>} {
  %table = transformer.rope_table {length = 32 : i64, rotary_dim = 4 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x4xf32>
  %new = tile.fused ins(%k, %cache, %slots : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32>) {
  ^bb0(%a: tensor<3x8xf32>, %b: tensor<?x2x2x16x4xf32>, %c: tensor<3xi32>):
    %keyed = tile.scatter %a into %b[%c] part 0 : i64 : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32> -> tensor<?x2x2x16x4xf32>
    %both = tile.scatter %a into %keyed[%c] part 1 : i64 : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32> -> tensor<?x2x2x16x4xf32>
    tile.yield %both : tensor<?x2x2x16x4xf32>
  } -> tensor<?x2x2x16x4xf32>
  func.return %new : tensor<?x2x2x16x4xf32>
}

// -----
// A tied result goes to its argument once nobody reads the old value; where somebody still does, through a copy after that.
// CHECK-LABEL: func.func @tied
// CHECK-NEXT:    %later = memref.alloc() : memref<4xi32>
// CHECK-NEXT:    tile.fused ins(%p : memref<4xi32>) outs(%later : memref<4xi32>) ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "its argument is read later"}>] attributes {loc = "positions"} {
// CHECK:         tile.fused ins(%p, %n : memref<4xi32>, memref<4xi32>) outs(%n : memref<4xi32>) ledger [#tile.ledger<in_place, {argument = 1 : i64, out = 0 : i64, reason = "the result is tied"}>] {
// CHECK:         tile.fused schedule <row, {{.*}}> ins(%later : memref<4xi32>) outs(%p : memref<4xi32>) ledger [#tile.ledger<copied, {argument = 0 : i64, reason = "tied, but its argument was still read"}>] {
// CHECK-NEXT:    ^bb0(%{{.*}}: tensor<4xi32>):
// CHECK-NEXT:      tile.cast
// CHECK:         func.return %p, %n : memref<4xi32>, memref<4xi32>
func.func @tied(%p: tensor<4xi32>, %n: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>) attributes {lamella.tied = array<i64: 0, 1>} {
  %later = tile.fused ins(%p : tensor<4xi32>) attributes {loc = "positions"} {
  ^bb0(%a: tensor<4xi32>):
    %one = tile.constant 1 : i32 : tensor<i32>
    %r = tile.map "add"(%a, %one) : tensor<4xi32>, tensor<i32> -> tensor<4xi32>
    tile.yield %r : tensor<4xi32>
  } -> tensor<4xi32>
  %sum = tile.fused ins(%p, %n : tensor<4xi32>, tensor<4xi32>) {
  ^bb0(%a: tensor<4xi32>, %b: tensor<4xi32>):
    %r = tile.map "add"(%a, %b) : tensor<4xi32>, tensor<4xi32> -> tensor<4xi32>
    tile.yield %r : tensor<4xi32>
  } -> tensor<4xi32>
  func.return %later, %sum : tensor<4xi32>, tensor<4xi32>
}
