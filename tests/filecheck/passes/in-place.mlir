// RUN: lamella-opt %s -p in-place | filecheck %s
// RUN: lamella-opt %s -p in-place | lamella-opt | filecheck %s

// The IR of the pass's docstring: an epilogue reads %y where it writes %z, and nobody reads %y later. The argument %x belongs to the caller.
// CHECK-LABEL: func.func @residual
// CHECK:         %y = tile.fused ins(%x : tensor<1x8xf32>) ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "no input of its type dies here"}>] attributes {in_place = array<i64: -1>} {
// CHECK:         %z = tile.fused ins(%x, %w, %y : tensor<1x8xf32>, tensor<8x8xf32>, tensor<1x8xf32>) ledger [#tile.ledger<in_place, {input = 2 : i64, out = 0 : i64, reason = "the input dies here"}>] attributes {in_place = array<i64: 2>} {
func.func @residual(%x: tensor<1x8xf32>, %w: tensor<8x8xf32>) -> tensor<1x8xf32> {
  %y = tile.fused ins(%x : tensor<1x8xf32>) {
  ^bb0(%a: tensor<1x8xf32>):
    %r = tile.map "silu"(%a) : tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %r : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  %z = tile.fused ins(%x, %w, %y : tensor<1x8xf32>, tensor<8x8xf32>, tensor<1x8xf32>) {
  ^bb0(%a: tensor<1x8xf32>, %b: tensor<8x8xf32>, %c: tensor<1x8xf32>):
    %r = tile.contract %a, %b : tensor<1x8xf32>, tensor<8x8xf32> -> tensor<1x8xf32>
    %s = tile.map "add"(%r, %c) : tensor<1x8xf32>, tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %s : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  func.return %z : tensor<1x8xf32>
}

// Whole rows are read, columns are written: the norm of %y reads all of it in every program, each of which would overwrite its own columns.
// CHECK-LABEL: func.func @norm
// CHECK:         reason = "contract reads it from other programs"}>] attributes {in_place = array<i64: -1>} {
// CHECK-NEXT:    ^bb0(%a: tensor<1x8xf32>, %b: tensor<8x8xf32>):
func.func @norm(%x: tensor<1x8xf32>, %w: tensor<8x8xf32>) -> tensor<1x8xf32> {
  %y = tile.fused ins(%x : tensor<1x8xf32>) {
  ^bb0(%a: tensor<1x8xf32>):
    %r = tile.map "silu"(%a) : tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %r : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  %z = tile.fused ins(%y, %w : tensor<1x8xf32>, tensor<8x8xf32>) {
  ^bb0(%a: tensor<1x8xf32>, %b: tensor<8x8xf32>):
    %s = tile.reduce "max" %a : tensor<1x8xf32> -> tensor<1x1xf32>
    %n = tile.map "div"(%a, %s) : tensor<1x8xf32>, tensor<1x1xf32> -> tensor<1x8xf32>
    %c = tile.contract %n, %b : tensor<1x8xf32>, tensor<8x8xf32> -> tensor<1x8xf32>
    %r = tile.map "add"(%c, %a) : tensor<1x8xf32>, tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %r : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  func.return %z : tensor<1x8xf32>
}

// Two names of one storage: %c is read where it would be written, but %a is the same value, and a contraction reads it.
// CHECK-LABEL: func.func @alias
// CHECK:         ins(%y, %w, %y : {{.*}}) ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "contract reads it from other programs"}>] attributes {in_place = array<i64: -1>} {
func.func @alias(%x: tensor<1x8xf32>, %w: tensor<8x8xf32>) -> tensor<1x8xf32> {
  %y = tile.fused ins(%x : tensor<1x8xf32>) {
  ^bb0(%a: tensor<1x8xf32>):
    %r = tile.map "silu"(%a) : tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %r : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  %z = tile.fused ins(%y, %w, %y : tensor<1x8xf32>, tensor<8x8xf32>, tensor<1x8xf32>) {
  ^bb0(%a: tensor<1x8xf32>, %b: tensor<8x8xf32>, %c: tensor<1x8xf32>):
    %r = tile.contract %a, %b : tensor<1x8xf32>, tensor<8x8xf32> -> tensor<1x8xf32>
    %s = tile.map "add"(%r, %c) : tensor<1x8xf32>, tensor<1x8xf32> -> tensor<1x8xf32>
    tile.yield %s : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  func.return %z : tensor<1x8xf32>
}

// A value that somebody still reads keeps its storage, and so does what is returned. Once %z has taken over the storage of %y, the last
// region may take over that of %z.
// CHECK-LABEL: func.func @live
// CHECK:         %y = tile.fused
// CHECK:         %kept = tile.fused ins(%y : tensor<4x8xf32>) ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "input 0 is read later"}>] attributes {in_place = array<i64: -1>} {
// CHECK:         %z = tile.fused ins(%kept, %y : {{.*}}) ledger [#tile.ledger<in_place, {input = 1 : i64, out = 0 : i64, reason = "the input dies here"}>] attributes {in_place = array<i64: 1>} {
// CHECK:         %last = tile.fused ins(%z : tensor<4x8xf32>) ledger [#tile.ledger<in_place, {input = 0 : i64, out = 0 : i64, reason = "the input dies here"}>] attributes {in_place = array<i64: 0>} {
func.func @live(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %y = tile.fused ins(%x : tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>):
    %r = tile.map "silu"(%a) : tensor<4x8xf32> -> tensor<4x8xf32>
    tile.yield %r : tensor<4x8xf32>
  } -> tensor<4x8xf32>
  %kept = tile.fused ins(%y : tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>):
    %r = tile.map "neg"(%a) : tensor<4x8xf32> -> tensor<4x8xf32>
    tile.yield %r : tensor<4x8xf32>
  } -> tensor<4x8xf32>
  %z = tile.fused ins(%kept, %y : tensor<4x8xf32>, tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>):
    %r = tile.map "add"(%a, %b) : tensor<4x8xf32>, tensor<4x8xf32> -> tensor<4x8xf32>
    tile.yield %r : tensor<4x8xf32>
  } -> tensor<4x8xf32>
  %last = tile.fused ins(%z : tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>):
    %s = tile.reduce "sum" %a : tensor<4x8xf32> -> tensor<4x1xf32>
    %r = tile.map "mul"(%a, %s) : tensor<4x8xf32>, tensor<4x1xf32> -> tensor<4x8xf32>
    tile.yield %r : tensor<4x8xf32>
  } -> tensor<4x8xf32>
  func.return %last, %kept : tensor<4x8xf32>, tensor<4x8xf32>
}

// Two results want one input: the first has it. Where both are computed from it, neither has: the first to be stored would change what
// the second reads.
// CHECK-LABEL: func.func @two
// CHECK:         ledger [#tile.ledger<in_place, {input = 0 : i64, out = 0 : i64, reason = "the input dies here"}>, #tile.ledger<not_in_place, {out = 1 : i64, reason = "input 0 gives way to result 0"}>] attributes {in_place = array<i64: 0, -1>} {
// CHECK:         ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "another result is computed from it too"}>, #tile.ledger<not_in_place, {out = 1 : i64, reason = "another result is computed from it too"}>] attributes {in_place = array<i64: -1, -1>} {
func.func @two(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %y = tile.fused ins(%x : tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>):
    %r = tile.map "silu"(%a) : tensor<4x8xf32> -> tensor<4x8xf32>
    tile.yield %r : tensor<4x8xf32>
  } -> tensor<4x8xf32>
  %p, %q = tile.fused ins(%y, %x : tensor<4x8xf32>, tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>):
    %r = tile.map "neg"(%a) : tensor<4x8xf32> -> tensor<4x8xf32>
    %s = tile.map "exp"(%b) : tensor<4x8xf32> -> tensor<4x8xf32>
    tile.yield %r, %s : tensor<4x8xf32>, tensor<4x8xf32>
  } -> tensor<4x8xf32>, tensor<4x8xf32>
  %u, %v = tile.fused ins(%p : tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>):
    %r = tile.map "neg"(%a) : tensor<4x8xf32> -> tensor<4x8xf32>
    %s = tile.map "exp"(%a) : tensor<4x8xf32> -> tensor<4x8xf32>
    tile.yield %r, %s : tensor<4x8xf32>, tensor<4x8xf32>
  } -> tensor<4x8xf32>, tensor<4x8xf32>
  func.return %q, %u, %v : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}

// Elements of another size, or rows of another length, do not fit: storage is taken over whole.
// CHECK-LABEL: func.func @sizes
// CHECK:         %b = tile.fused ins(%y : tensor<4x8xf32>) ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "no input of its type dies here"}>] attributes {in_place = array<i64: -1>} {
// CHECK:         %s = tile.fused ins(%b : tensor<4x8xbf16>) ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "no input of its type dies here"}>] attributes {in_place = array<i64: -1>} {
func.func @sizes(%x: tensor<4x8xf32>) -> tensor<4x1xbf16> {
  %y = tile.fused ins(%x : tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>):
    %r = tile.map "silu"(%a) : tensor<4x8xf32> -> tensor<4x8xf32>
    tile.yield %r : tensor<4x8xf32>
  } -> tensor<4x8xf32>
  %b = tile.fused ins(%y : tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>):
    %r = tile.cast %a : tensor<4x8xf32> -> tensor<4x8xbf16>
    tile.yield %r : tensor<4x8xbf16>
  } -> tensor<4x8xbf16>
  %s = tile.fused ins(%b : tensor<4x8xbf16>) {
  ^bb0(%a: tensor<4x8xbf16>):
    %w = tile.cast %a : tensor<4x8xbf16> -> tensor<4x8xf32>
    %t = tile.reduce "sum" %w : tensor<4x8xf32> -> tensor<4x1xf32>
    %r = tile.cast %t : tensor<4x1xf32> -> tensor<4x1xbf16>
    tile.yield %r : tensor<4x1xbf16>
  } -> tensor<4x1xbf16>
  func.return %s : tensor<4x1xbf16>
}

// Chunks of attention are merged by programs that do not own what they read: even the residual, which is read where it would be written,
// stays.
// CHECK-LABEL: func.func @split
// CHECK:         %o = tile.fused ins(%acc, %max, %max, %y : {{.*}}) ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "programs of attention, sampling or routing read what others write"}>] attributes {in_place = array<i64: -1>} {
func.func @split(%x: tensor<4x8xf32>, %acc: tensor<4x2x3x4xf32>, %max: tensor<4x2x3xf32>) -> tensor<4x8xf32> {
  %y = tile.fused ins(%x : tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>):
    %r = tile.map "silu"(%a) : tensor<4x8xf32> -> tensor<4x8xf32>
    tile.yield %r : tensor<4x8xf32>
  } -> tensor<4x8xf32>
  %o = tile.fused ins(%acc, %max, %max, %y : tensor<4x2x3x4xf32>, tensor<4x2x3xf32>, tensor<4x2x3xf32>, tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x2x3x4xf32>, %b: tensor<4x2x3xf32>, %c: tensor<4x2x3xf32>, %d: tensor<4x8xf32>):
    %m = tile.attend_merge %a, %b, %c : tensor<4x2x3x4xf32>, tensor<4x2x3xf32>, tensor<4x2x3xf32> -> tensor<4x8xf32>
    %r = tile.map "add"(%m, %d) : tensor<4x8xf32>, tensor<4x8xf32> -> tensor<4x8xf32>
    tile.yield %r : tensor<4x8xf32>
  } -> tensor<4x8xf32>
  func.return %o : tensor<4x8xf32>
}

// A cache is updated where it lies, unless its old value is read later: bufferize then refuses the function.
// CHECK-LABEL: func.func @cache
// CHECK:         ledger [#tile.ledger<in_place, {input = 1 : i64, out = 0 : i64, reason = "a scatter updates its cache"}>] attributes {in_place = array<i64: 1>} {
// CHECK-LABEL: func.func @old_cache
// CHECK:         ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "the old value of its cache is read later"}>] attributes {in_place = array<i64: -1>} {
func.func @cache(%k: tensor<3x8xf32>, %slots: tensor<3xi32>, %cache: tensor<?x2x2x16x4xf32>) -> tensor<?x2x2x16x4xf32> attributes {lamella.tied = array<i64: 2>} {
  %new = tile.fused ins(%k, %cache, %slots : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32>) {
  ^bb0(%a: tensor<3x8xf32>, %b: tensor<?x2x2x16x4xf32>, %c: tensor<3xi32>):
    %r = tile.scatter %a into %b[%c] part 0 : i64 : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32> -> tensor<?x2x2x16x4xf32>
    tile.yield %r : tensor<?x2x2x16x4xf32>
  } -> tensor<?x2x2x16x4xf32>
  func.return %new : tensor<?x2x2x16x4xf32>
}
func.func @old_cache(%k: tensor<3x8xf32>, %slots: tensor<3xi32>, %cache: tensor<?x2x2x16x4xf32>) -> (tensor<?x2x2x16x4xf32>, tensor<?x2x2x16x4xf32>) attributes {lamella.tied = array<i64: 2, -1>} {
  %new = tile.fused ins(%k, %cache, %slots : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32>) {
  ^bb0(%a: tensor<3x8xf32>, %b: tensor<?x2x2x16x4xf32>, %c: tensor<3xi32>):
    %r = tile.scatter %a into %b[%c] part 0 : i64 : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32> -> tensor<?x2x2x16x4xf32>
    tile.yield %r : tensor<?x2x2x16x4xf32>
  } -> tensor<?x2x2x16x4xf32>
  func.return %new, %cache : tensor<?x2x2x16x4xf32>, tensor<?x2x2x16x4xf32>
}

// A tied result goes to its argument, whether the region reads that (%n) or not (%t), once nobody reads the old value (%p is read again).
// CHECK-LABEL: func.func @tied
// CHECK:         %later = tile.fused ins(%p : tensor<4xi32>) ledger [#tile.ledger<not_in_place, {out = 0 : i64, reason = "its argument is read later"}>] attributes {in_place = array<i64: -1>} {
// CHECK:         %sum, %other = tile.fused ins(%p, %n : {{.*}}) ledger [#tile.ledger<in_place, {argument = 1 : i64, out = 0 : i64, reason = "the result is tied"}>, #tile.ledger<in_place, {argument = 2 : i64, out = 1 : i64, reason = "the result is tied"}>] attributes {in_place = array<i64: 1, -1>} {
func.func @tied(%p: tensor<4xi32>, %n: tensor<4xi32>, %t: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) attributes {lamella.tied = array<i64: 0, 1, 2>} {
  %later = tile.fused ins(%p : tensor<4xi32>) {
  ^bb0(%a: tensor<4xi32>):
    %r = tile.map "neg"(%a) : tensor<4xi32> -> tensor<4xi32>
    tile.yield %r : tensor<4xi32>
  } -> tensor<4xi32>
  %sum, %other = tile.fused ins(%p, %n : tensor<4xi32>, tensor<4xi32>) {
  ^bb0(%a: tensor<4xi32>, %b: tensor<4xi32>):
    %r = tile.map "add"(%a, %b) : tensor<4xi32>, tensor<4xi32> -> tensor<4xi32>
    %s = tile.map "neg"(%a) : tensor<4xi32> -> tensor<4xi32>
    tile.yield %r, %s : tensor<4xi32>, tensor<4xi32>
  } -> tensor<4xi32>, tensor<4xi32>
  func.return %later, %sum, %other : tensor<4xi32>, tensor<4xi32>, tensor<4xi32>
}
