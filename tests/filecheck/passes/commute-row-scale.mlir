// RUN: lamella-opt %s -p commute-row-scale | filecheck %s

// The IR of the pass's docstring: x is stored in bf16, scaled in float32, rounded, multiplied. The scale moves behind both products.
// CHECK-LABEL: @norm
// CHECK-SAME:    lamella.folds = [{kind = "row-scale"
// CHECK-SAME:    verdict = "folded"
// CHECK-NOT:     tile.cast
// CHECK:         %[[Q:.*]] = tile.contract %x, %wq {loc = "q"} : tensor<2x8xbf16>, tensor<4x8xbf16> -> tensor<2x4xf32>
// CHECK-NEXT:    %[[QS:.*]] = tile.map "mul"(%[[Q]], %s) {loc = "q"} : tensor<2x4xf32>, tensor<2x1xf32> -> tensor<2x4xf32>
// CHECK-NEXT:    %[[K:.*]] = tile.contract %x, %wk : tensor<2x8xbf16>, tensor<6x8xbf16> -> tensor<2x6xf32>
// CHECK-NEXT:    %[[KS:.*]] = tile.map "mul"(%[[K]], %s)
// CHECK-NEXT:    func.return %[[QS]], %[[KS]]
func.func @norm(%x: tensor<2x8xbf16>, %s: tensor<2x1xf32>, %wq: tensor<4x8xbf16>, %wk: tensor<6x8xbf16>) -> (tensor<2x4xf32>, tensor<2x6xf32>) {
  %xf = tile.cast %x : tensor<2x8xbf16> -> tensor<2x8xf32>
  %n = tile.map "mul"(%xf, %s) : tensor<2x8xf32>, tensor<2x1xf32> -> tensor<2x8xf32>
  %x16 = tile.cast %n {loc = "norm"} : tensor<2x8xf32> -> tensor<2x8xbf16>
  %q = tile.contract %x16, %wq {loc = "q"} : tensor<2x8xbf16>, tensor<4x8xbf16> -> tensor<2x4xf32>
  %k = tile.contract %x16, %wk : tensor<2x8xbf16>, tensor<6x8xbf16> -> tensor<2x6xf32>
  func.return %q, %k : tensor<2x4xf32>, tensor<2x6xf32>
}

// In float32 nothing is rounded, and the operands may stand in the other order.
// CHECK-LABEL: @float32
// CHECK:         %[[Y:.*]] = tile.contract %x, %w :
// CHECK-NEXT:    %[[R:.*]] = tile.map "mul"(%[[Y]], %s)
// CHECK-NEXT:    func.return %[[R]]
func.func @float32(%x: tensor<1x8xf32>, %s: tensor<1x1xf32>, %w: tensor<4x8xf32>) -> tensor<1x4xf32> {
  %n = tile.map "mul"(%s, %x) : tensor<1x1xf32>, tensor<1x8xf32> -> tensor<1x8xf32>
  %y = tile.contract %n, %w : tensor<1x8xf32>, tensor<4x8xf32> -> tensor<1x4xf32>
  func.return %y : tensor<1x4xf32>
}

// The scaled value is returned too: it has to be stored, so nothing moves, and the near miss is recorded.
// CHECK-LABEL: @used_elsewhere
// CHECK-SAME:    reason = "the scaled value is used outside contractions too, so it is stored and rounded anyway", verdict = "refused"
// CHECK:         tile.contract %n, %w
func.func @used_elsewhere(%x: tensor<1x8xf32>, %s: tensor<1x1xf32>, %w: tensor<4x8xf32>) -> (tensor<1x4xf32>, tensor<1x8xf32>) {
  %n = tile.map "mul"(%x, %s) : tensor<1x8xf32>, tensor<1x1xf32> -> tensor<1x8xf32>
  %y = tile.contract %n, %w : tensor<1x8xf32>, tensor<4x8xf32> -> tensor<1x4xf32>
  func.return %y, %n : tensor<1x4xf32>, tensor<1x8xf32>
}

// A scale of one number a column does not commute with a sum over columns; a narrower rounding is not the type x is stored in.
// CHECK-LABEL: @no_match
// CHECK-NOT:     lamella.folds
// CHECK:         tile.contract %n, %w
// CHECK:         tile.contract %m16, %w16
func.func @no_match(%x: tensor<2x8xf32>, %g: tensor<8xf32>, %s: tensor<2x1xf32>, %w: tensor<4x8xf32>, %w16: tensor<4x8xbf16>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {
  %n = tile.map "mul"(%x, %g) : tensor<2x8xf32>, tensor<8xf32> -> tensor<2x8xf32>
  %y = tile.contract %n, %w : tensor<2x8xf32>, tensor<4x8xf32> -> tensor<2x4xf32>
  %m = tile.map "mul"(%x, %s) : tensor<2x8xf32>, tensor<2x1xf32> -> tensor<2x8xf32>
  %m16 = tile.cast %m : tensor<2x8xf32> -> tensor<2x8xbf16>
  %z = tile.contract %m16, %w16 : tensor<2x8xbf16>, tensor<4x8xbf16> -> tensor<2x4xf32>
  func.return %y, %z : tensor<2x4xf32>, tensor<2x4xf32>
}
