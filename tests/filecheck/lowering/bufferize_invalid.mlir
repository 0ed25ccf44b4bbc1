// RUN: lamella-opt %s -p bufferize --split-input-file --verify-diagnostics | filecheck %s

// CHECK: tile.cast at layers.0: is outside of every region, expected tile.fused (run fuse-regions first)
func.func @loose(%x: tensor<4xf32>) -> tensor<4xbf16> {
  %y = tile.cast %x {loc = "layers.0"} : tensor<4xf32> -> tensor<4xbf16>
  func.return %y : tensor<4xbf16>
}

// -----

// CHECK: tile.fused at layers.0: input 1 is updated in place but its old value is read later
func.func @old_cache(%k: tensor<3x8xf32>, %slots: tensor<3xi32>, %cache: tensor<?x2x2x16x4xf32>) -> (tensor<?x2x2x16x4xf32>, tensor<?x2x2x16x4xf32>) attributes {lamella.tied = array<i64: 2, -1>} {
  %new = tile.fused ins(%k, %cache, %slots : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32>) attributes {loc = "layers.0"} {
  ^bb0(%a: tensor<3x8xf32>, %b: tensor<?x2x2x16x4xf32>, %c: tensor<3xi32>):
    %r = tile.scatter %a into %b[%c] part 0 : i64 : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32> -> tensor<?x2x2x16x4xf32>
    tile.yield %r : tensor<?x2x2x16x4xf32>
  } -> tensor<?x2x2x16x4xf32>
  func.return %new, %cache : tensor<?x2x2x16x4xf32>, tensor<?x2x2x16x4xf32>
}

// -----

// CHECK: tile.fused: result 0 updates argument 2 of the function, which is not tied to it (lamella.tied names the argument of each result)
func.func @untied(%k: tensor<3x8xf32>, %slots: tensor<3xi32>, %cache: tensor<?x2x2x16x4xf32>) -> tensor<?x2x2x16x4xf32> {
  %new = tile.fused ins(%k, %cache, %slots : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32>) {
  ^bb0(%a: tensor<3x8xf32>, %b: tensor<?x2x2x16x4xf32>, %c: tensor<3xi32>):
    %r = tile.scatter %a into %b[%c] part 0 : i64 : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32> -> tensor<?x2x2x16x4xf32>
    tile.yield %r : tensor<?x2x2x16x4xf32>
  } -> tensor<?x2x2x16x4xf32>
  func.return %new : tensor<?x2x2x16x4xf32>
}

// -----

// CHECK: tile.fused at positions: result 0 overwrites argument 0, whose old value is returned
func.func @returned(%p: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>) attributes {lamella.tied = array<i64: 0, -1>} {
  %later = tile.fused ins(%p : tensor<4xi32>) attributes {loc = "positions"} {
  ^bb0(%a: tensor<4xi32>):
    %r = tile.map "neg"(%a) : tensor<4xi32> -> tensor<4xi32>
    tile.yield %r : tensor<4xi32>
  } -> tensor<4xi32>
  func.return %later, %p : tensor<4xi32>, tensor<4xi32>
}

// -----

// CHECK: func.func @swapped: result 0 cannot take over argument 1, expected one value of its own a tie
func.func @swapped(%p: tensor<4xi32>, %q: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>) attributes {lamella.tied = array<i64: 1, 0>} {
  func.return %p, %q : tensor<4xi32>, tensor<4xi32>
}

// -----

// CHECK: tile.fused: a buffer of dynamic shape, got tensor<?xf32> (run specialize first)
func.func @dynamic(%x: tensor<?xf32>) -> tensor<?xf32> {
  %y = tile.fused ins(%x : tensor<?xf32>) {
  ^bb0(%a: tensor<?xf32>):
    tile.yield %a : tensor<?xf32>
  } -> tensor<?xf32>
  func.return %y : tensor<?xf32>
}

// -----

// What in-place says is checked: an annotation that would race, or that overwrites what is still wanted, is refused.
// CHECK: tile.fused at layers.0.ffn: result 0 cannot overwrite input 0: contract reads it from other programs
func.func @race(%x: tensor<1x8xf32>, %w: tensor<8x8xf32>) -> tensor<1x8xf32> {
  %y = tile.fused ins(%x : tensor<1x8xf32>) {
  ^bb0(%a: tensor<1x8xf32>):
    %r = tile.map "silu"(%a) : tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %r : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  %z = tile.fused ins(%y, %w : tensor<1x8xf32>, tensor<8x8xf32>) attributes {in_place = array<i64: 0>, loc = "layers.0.ffn"} {
  ^bb0(%a: tensor<1x8xf32>, %b: tensor<8x8xf32>):
    %r = tile.contract %a, %b : tensor<1x8xf32>, tensor<8x8xf32> -> tensor<1x8xf32>
    tile.yield %r : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  func.return %z : tensor<1x8xf32>
}

// -----

// CHECK: tile.fused: result 0 cannot overwrite input 0: it is read later
func.func @live(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %y = tile.fused ins(%x : tensor<4xf32>) {
  ^bb0(%a: tensor<4xf32>):
    %r = tile.map "silu"(%a) : tensor<4xf32> -> tensor<4xf32>
    tile.yield %r : tensor<4xf32>
  } -> tensor<4xf32>
  %z = tile.fused ins(%y : tensor<4xf32>) attributes {in_place = array<i64: 0>} {
  ^bb0(%a: tensor<4xf32>):
    %r = tile.map "neg"(%a) : tensor<4xf32> -> tensor<4xf32>
    tile.yield %r : tensor<4xf32>
  } -> tensor<4xf32>
  func.return %y, %z : tensor<4xf32>, tensor<4xf32>
}

// -----

// CHECK: tile.fused: result 0 cannot overwrite input 0: it is storage from outside the function
func.func @outside(%x: tensor<4xf32>) -> tensor<4xf32> {
  %z = tile.fused ins(%x : tensor<4xf32>) attributes {in_place = array<i64: 0>} {
  ^bb0(%a: tensor<4xf32>):
    %r = tile.map "neg"(%a) : tensor<4xf32> -> tensor<4xf32>
    tile.yield %r : tensor<4xf32>
  } -> tensor<4xf32>
  func.return %z : tensor<4xf32>
}

// -----

// CHECK: tile.fused: result 1 cannot overwrite input 0: another result does
func.func @both(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %y = tile.fused ins(%x : tensor<4xf32>) {
  ^bb0(%a: tensor<4xf32>):
    %r = tile.map "silu"(%a) : tensor<4xf32> -> tensor<4xf32>
    tile.yield %r : tensor<4xf32>
  } -> tensor<4xf32>
  %p, %q = tile.fused ins(%y, %x : tensor<4xf32>, tensor<4xf32>) attributes {in_place = array<i64: 0, 0>} {
  ^bb0(%a: tensor<4xf32>, %b: tensor<4xf32>):
    %r = tile.map "neg"(%b) : tensor<4xf32> -> tensor<4xf32>
    %s = tile.map "exp"(%b) : tensor<4xf32> -> tensor<4xf32>
    tile.yield %r, %s : tensor<4xf32>, tensor<4xf32>
  } -> tensor<4xf32>, tensor<4xf32>
  func.return %p, %q : tensor<4xf32>, tensor<4xf32>
}
