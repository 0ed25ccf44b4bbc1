// RUN: lamella-opt %s -p 'commute-row-scale{columns=true}' | filecheck %s
// RUN: lamella-opt %s -p commute-row-scale | filecheck %s --check-prefix=OFF

// OFF-NOT: lamella.folds

// Llama's norm: x · s is rounded, then multiplied by its weight. What the product reads is x times the weight, rounded once.
// CHECK-LABEL: @norm
// CHECK-SAME:    lamella.folds = [{kind = "row-scale", reason = "one number a row commutes with the sum; x is multiplied by its columns' numbers and rounded once, where it is made", verdict = "folded", what = "norm"}]
// CHECK:         %[[X:.*]] = tile.map "mul"(%xf, %gf) {loc = "norm"} : tensor<1x512xf32>, tensor<512xf32> -> tensor<1x512xf32>
// CHECK-NEXT:    %[[R:.*]] = tile.cast %[[X]] {loc = "norm"} : tensor<1x512xf32> -> tensor<1x512xbf16>
// CHECK:         %[[Q:.*]] = tile.contract %[[R]], %{{.*}} {loc = "q"}
// CHECK-NEXT:    tile.map "mul"(%[[Q]], %s) {loc = "q"} : tensor<1x8xf32>, tensor<1x1xf32> -> tensor<1x8xf32>
func.func @norm(%x: tensor<1x512xbf16>, %g: tensor<512xbf16>, %s: tensor<1x1xf32>, %words: tensor<8x128xi32>, %scales: tensor<8x1xbf16>) -> tensor<1x8xf32> {
  %xf = tile.cast %x : tensor<1x512xbf16> -> tensor<1x512xf32>
  %gf = tile.cast %g : tensor<512xbf16> -> tensor<512xf32>
  %n = tile.map "mul"(%xf, %s) : tensor<1x512xf32>, tensor<1x1xf32> -> tensor<1x512xf32>
  %n16 = tile.cast %n : tensor<1x512xf32> -> tensor<1x512xbf16>
  %nf = tile.cast %n16 : tensor<1x512xbf16> -> tensor<1x512xf32>
  %m = tile.map "mul"(%nf, %gf) : tensor<1x512xf32>, tensor<512xf32> -> tensor<1x512xf32>
  %m16 = tile.cast %m {loc = "norm"} : tensor<1x512xf32> -> tensor<1x512xbf16>
  %w = tile.dequantize %words, %scales as <int8, group = 512> : tensor<8x128xi32>, tensor<8x1xbf16> -> tensor<8x512xf32>
  %q = tile.contract %m16, %w {loc = "q"} : tensor<1x512xbf16>, tensor<8x512xf32> -> tensor<1x8xf32>
  func.return %q : tensor<1x8xf32>
}

// Gemma's: nothing is rounded in between, and the weight may stand first.
// CHECK-LABEL: @unrounded
// CHECK:         verdict = "folded"
// CHECK:         tile.map "mul"(%xf, %gf) : tensor<1x512xf32>, tensor<512xf32> -> tensor<1x512xf32>
// CHECK:         tile.map "mul"(%{{.*}}, %s) : tensor<1x8xf32>, tensor<1x1xf32> -> tensor<1x8xf32>
func.func @unrounded(%x: tensor<1x512xbf16>, %g: tensor<512xbf16>, %s: tensor<1x1xf32>, %words: tensor<8x128xi32>, %scales: tensor<8x1xbf16>) -> tensor<1x8xf32> {
  %xf = tile.cast %x : tensor<1x512xbf16> -> tensor<1x512xf32>
  %gf = tile.cast %g : tensor<512xbf16> -> tensor<512xf32>
  %n = tile.map "mul"(%s, %xf) : tensor<1x1xf32>, tensor<1x512xf32> -> tensor<1x512xf32>
  %m = tile.map "mul"(%gf, %n) : tensor<512xf32>, tensor<1x512xf32> -> tensor<1x512xf32>
  %m16 = tile.cast %m : tensor<1x512xf32> -> tensor<1x512xbf16>
  %w = tile.dequantize %words, %scales as <int8, group = 512> : tensor<8x128xi32>, tensor<8x1xbf16> -> tensor<8x512xf32>
  %q = tile.contract %m16, %w : tensor<1x512xbf16>, tensor<8x512xf32> -> tensor<1x8xf32>
  func.return %q : tensor<1x8xf32>
}

// In float16 x times the weight may leave the range, so nothing is even considered; two tokens are no runs, and weights of floats have none.
// CHECK-LABEL: @f16
// CHECK-NOT:     lamella.folds
// CHECK:         tile.contract %m16
func.func @f16(%x: tensor<1x512xf16>, %g: tensor<512xf16>, %s: tensor<1x1xf32>, %words: tensor<8x128xi32>, %scales: tensor<8x1xf16>) -> tensor<1x8xf32> {
  %xf = tile.cast %x : tensor<1x512xf16> -> tensor<1x512xf32>
  %gf = tile.cast %g : tensor<512xf16> -> tensor<512xf32>
  %n = tile.map "mul"(%xf, %s) : tensor<1x512xf32>, tensor<1x1xf32> -> tensor<1x512xf32>
  %m = tile.map "mul"(%n, %gf) : tensor<1x512xf32>, tensor<512xf32> -> tensor<1x512xf32>
  %m16 = tile.cast %m : tensor<1x512xf32> -> tensor<1x512xf16>
  %w = tile.dequantize %words, %scales as <int8, group = 512> : tensor<8x128xi32>, tensor<8x1xf16> -> tensor<8x512xf32>
  %q = tile.contract %m16, %w : tensor<1x512xf16>, tensor<8x512xf32> -> tensor<1x8xf32>
  func.return %q : tensor<1x8xf32>
}

// CHECK-LABEL: @tokens
// CHECK-SAME:    reason = "only one token times packed weights in runs adds up the squares of a row that is not its x", verdict = "refused"
// CHECK:         tile.contract %m16
func.func @tokens(%x: tensor<2x512xbf16>, %g: tensor<512xbf16>, %s: tensor<2x1xf32>, %words: tensor<8x128xi32>, %scales: tensor<8x1xbf16>) -> tensor<2x8xf32> {
  %xf = tile.cast %x : tensor<2x512xbf16> -> tensor<2x512xf32>
  %gf = tile.cast %g : tensor<512xbf16> -> tensor<512xf32>
  %n = tile.map "mul"(%xf, %s) : tensor<2x512xf32>, tensor<2x1xf32> -> tensor<2x512xf32>
  %m = tile.map "mul"(%n, %gf) : tensor<2x512xf32>, tensor<512xf32> -> tensor<2x512xf32>
  %m16 = tile.cast %m : tensor<2x512xf32> -> tensor<2x512xbf16>
  %w = tile.dequantize %words, %scales as <int8, group = 512> : tensor<8x128xi32>, tensor<8x1xbf16> -> tensor<8x512xf32>
  %q = tile.contract %m16, %w : tensor<2x512xbf16>, tensor<8x512xf32> -> tensor<2x8xf32>
  func.return %q : tensor<2x8xf32>
}

// CHECK-LABEL: @floats
// CHECK-SAME:    verdict = "refused"
// CHECK:         tile.contract %m16, %w
func.func @floats(%x: tensor<1x512xbf16>, %g: tensor<512xbf16>, %s: tensor<1x1xf32>, %w: tensor<8x512xbf16>) -> tensor<1x8xf32> {
  %xf = tile.cast %x : tensor<1x512xbf16> -> tensor<1x512xf32>
  %gf = tile.cast %g : tensor<512xbf16> -> tensor<512xf32>
  %n = tile.map "mul"(%xf, %s) : tensor<1x512xf32>, tensor<1x1xf32> -> tensor<1x512xf32>
  %m = tile.map "mul"(%n, %gf) : tensor<1x512xf32>, tensor<512xf32> -> tensor<1x512xf32>
  %m16 = tile.cast %m : tensor<1x512xf32> -> tensor<1x512xbf16>
  %q = tile.contract %m16, %w : tensor<1x512xbf16>, tensor<8x512xbf16> -> tensor<1x8xf32>
  func.return %q : tensor<1x8xf32>
}
