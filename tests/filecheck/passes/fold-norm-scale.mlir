// RUN: lamella-opt %s -p fold-norm-scale --split-input-file | filecheck %s
// RUN: lamella-opt %s -p 'fold-norm-scale,fold-norm-scale' --split-input-file | filecheck %s --check-prefix=AGAIN

// The scale goes into every linear, in program order; biases stay as they are.
// CHECK:      func.func @rms(
// CHECK-SAME: lamella.folds = [{kind = "norm-scale", reason = "into layers.0.attn.q, layers.0.attn.k", verdict = "folded", what = "transformer.rms_norm at layers.0.attn_norm"}]
// CHECK:      %n = transformer.rms_norm %x {loc = "layers.0.attn_norm", eps = 1.000000e-05 : f64} : (tensor<3x4xbf16>) -> tensor<3x4xbf16>
// CHECK-NEXT: %0 = transformer.scale_columns %wq, %g : (tensor<8x4xbf16>, tensor<4xbf16>) -> tensor<8x4xbf16>
// CHECK-NEXT: %q = transformer.linear %n, %0, %bq {loc = "layers.0.attn.q"}
// CHECK-NEXT: %1 = transformer.scale_columns %wk, %g : (tensor<2x4xbf16>, tensor<4xbf16>) -> tensor<2x4xbf16>
// CHECK-NEXT: %k = transformer.linear %n, %1 {loc = "layers.0.attn.k"}
// A second run finds nothing to do.
// AGAIN:      func.func @rms(
// AGAIN-SAME: what = "transformer.rms_norm at layers.0.attn_norm"}, {kind = "norm-scale", reason = "no norm has a weight", verdict = "not_folded", what = "@rms"}]
// AGAIN:      transformer.scale_columns %wq, %g
// AGAIN-NEXT: transformer.linear
func.func @rms(%x : tensor<3x4xbf16>) -> (tensor<3x8xbf16>, tensor<3x2xbf16>) {
  %g = transformer.weight "layers.0.attn_norm" : tensor<4xbf16>
  %wq = transformer.weight "layers.0.attn.q_proj" : tensor<8x4xbf16>
  %bq = transformer.weight "layers.0.attn.q_proj.bias" : tensor<8xbf16>
  %wk = transformer.weight "layers.0.attn.k_proj" : tensor<2x4xbf16>
  %n = transformer.rms_norm %x, %g {eps = 1.0e-05 : f64, loc = "layers.0.attn_norm"} : (tensor<3x4xbf16>, tensor<4xbf16>) -> tensor<3x4xbf16>
  %q = transformer.linear %n, %wq, %bq {loc = "layers.0.attn.q"} : (tensor<3x4xbf16>, tensor<8x4xbf16>, tensor<8xbf16>) -> tensor<3x8xbf16>
  %k = transformer.linear %n, %wk {loc = "layers.0.attn.k"} : (tensor<3x4xbf16>, tensor<2x4xbf16>) -> tensor<3x2xbf16>
  func.return %q, %k : tensor<3x8xbf16>, tensor<3x2xbf16>
}
// -----
// The shift goes into the bias, by the weight as it was before scaling.
// CHECK:      func.func @layer_norm(
// CHECK-SAME: reason = "into fc", verdict = "folded", what = "transformer.layer_norm at norm"
// CHECK:      %n = transformer.layer_norm %x {loc = "norm", eps = 1.000000e-05 : f64} : (tensor<3x4xf32>) -> tensor<3x4xf32>
// CHECK-NEXT: %0 = transformer.scale_columns %w, %g : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
// CHECK-NEXT: %1 = transformer.shift_bias %b, %w, %s : (tensor<8xf32>, tensor<8x4xf32>, tensor<4xf32>) -> tensor<8xf32>
// CHECK-NEXT: %y = transformer.linear %n, %0, %1 {loc = "fc"}
func.func @layer_norm(%x : tensor<3x4xf32>) -> tensor<3x8xf32> {
  %g = transformer.weight "norm" : tensor<4xf32>
  %s = transformer.weight "norm.bias" : tensor<4xf32>
  %w = transformer.weight "fc" : tensor<8x4xf32>
  %b = transformer.weight "fc.bias" : tensor<8xf32>
  %n = transformer.layer_norm %x, %g, %s {eps = 1.0e-05 : f64, loc = "norm"} : (tensor<3x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %y = transformer.linear %n, %w, %b {loc = "fc"} : (tensor<3x4xf32>, tensor<8x4xf32>, tensor<8xf32>) -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}
// -----
// Gemma's 1 + w; a weight that is paired or joined already is still a plain weight.
// CHECK:      func.func @gemma(
// CHECK:      %n = transformer.rms_norm %x {eps = 1.000000e-06 : f64} : (tensor<3x4xf32>) -> tensor<3x4xf32>
// CHECK-NEXT: %0 = transformer.scale_columns %p, %g {offset = 1.000000e+00 : f64}
// CHECK-NEXT: %y = transformer.linear %n, %0
func.func @gemma(%x : tensor<3x4xf32>) -> tensor<3x10xf32, #transformer.layout<head = 2, paired = 2>> {
  %g = transformer.weight "norm" : tensor<4xf32>
  %w = transformer.weight "q" : tensor<8x4xf32>
  %v = transformer.weight "k" : tensor<2x4xf32>
  %j = transformer.concat_rows %w, %v : (tensor<8x4xf32>, tensor<2x4xf32>) -> tensor<10x4xf32>
  %p = transformer.pair_rows %j {head_dim = 2 : i64, rotary_dim = 2 : i64} : (tensor<10x4xf32>) -> tensor<10x4xf32, #transformer.layout<head = 2, paired = 2>>
  %n = transformer.rms_norm %x, %g {eps = 1.0e-06 : f64, offset = 1.0 : f64} : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %y = transformer.linear %n, %p : (tensor<3x4xf32>, tensor<10x4xf32, #transformer.layout<head = 2, paired = 2>>) -> tensor<3x10xf32, #transformer.layout<head = 2, paired = 2>>
  func.return %y : tensor<3x10xf32, #transformer.layout<head = 2, paired = 2>>
}
// -----
// One reader that is no linear keeps the norm whole.
// CHECK:      func.func @gate(
// CHECK-SAME: reason = "transformer.silu at gate reads it and is no linear of it", verdict = "not_folded", what = "transformer.rms_norm at norm"
// CHECK-NOT:  transformer.scale_columns
// AGAIN:      func.func @gate(
// AGAIN-SAME: lamella.folds = [{kind = "norm-scale", reason = "transformer.silu at gate reads it and is no linear of it", verdict = "not_folded", what = "transformer.rms_norm at norm"}]
func.func @gate(%x : tensor<3x4xf32>) -> (tensor<3x8xf32>, tensor<3x4xf32>) {
  %g = transformer.weight "norm" : tensor<4xf32>
  %w = transformer.weight "fc" : tensor<8x4xf32>
  %n = transformer.rms_norm %x, %g {eps = 1.0e-05 : f64, loc = "norm"} : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %y = transformer.linear %n, %w {loc = "fc"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %a = transformer.silu %n {loc = "gate"} : (tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y, %a : tensor<3x8xf32>, tensor<3x4xf32>
}
// -----
// As the other operand of a linear a norm is not what the linear multiplies.
// CHECK:      func.func @as_weight(
// CHECK-SAME: reason = "transformer.linear at fc reads it and is no linear of it", verdict = "not_folded", what = "transformer.rms_norm at norm"
// CHECK-NOT:  transformer.scale_columns
func.func @as_weight(%x : tensor<4x4xf32>) -> tensor<4x4xf32> {
  %g = transformer.weight "norm" : tensor<4xf32>
  %n = transformer.rms_norm %x, %g {eps = 1.0e-05 : f64, loc = "norm"} : (tensor<4x4xf32>, tensor<4xf32>) -> tensor<4x4xf32>
  %y = transformer.linear %n, %n {loc = "fc"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %y : tensor<4x4xf32>
}
// -----
// A tied embedding stays one storage.
// CHECK:      func.func @tied(
// CHECK-SAME: reason = "weight embed is also used by transformer.embedding at embed", verdict = "not_folded", what = "transformer.rms_norm at final_norm"
// CHECK-NOT:  transformer.scale_columns
func.func @tied(%t : tensor<3xi32>) -> tensor<3x8xf32> {
  %e = transformer.weight "embed" : tensor<8x4xf32>
  %g = transformer.weight "final_norm" : tensor<4xf32>
  %x = transformer.embedding %t, %e {loc = "embed"} : (tensor<3xi32>, tensor<8x4xf32>) -> tensor<3x4xf32>
  %n = transformer.rms_norm %x, %g {eps = 1.0e-05 : f64, loc = "final_norm"} : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %same = transformer.weight "embed" : tensor<8x4xf32>
  %y = transformer.linear %n, %same {loc = "lm_head"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}
// -----
// A weight of two layers would need two scales.
// CHECK:      func.func @shared(
// CHECK-SAME: reason = "weight fc is also used by transformer.linear at two", verdict = "not_folded", what = "transformer.rms_norm at norm.0"
// CHECK-SAME: reason = "weight fc is also used by transformer.linear at one", verdict = "not_folded", what = "transformer.rms_norm at norm.1"
// CHECK-NOT:  transformer.scale_columns
func.func @shared(%x : tensor<3x4xf32>) -> tensor<3x4xf32> {
  %g = transformer.weight "norm.0" : tensor<4xf32>
  %h = transformer.weight "norm.1" : tensor<4xf32>
  %w = transformer.weight "fc" : tensor<4x4xf32>
  %n = transformer.rms_norm %x, %g {eps = 1.0e-05 : f64, loc = "norm.0"} : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %y = transformer.linear %n, %w {loc = "one"} : (tensor<3x4xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
  %m = transformer.rms_norm %y, %h {eps = 1.0e-05 : f64, loc = "norm.1"} : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %z = transformer.linear %m, %w {loc = "two"} : (tensor<3x4xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
  func.return %z : tensor<3x4xf32>
}
// -----
// What unpacks a weight each step multiplies by its own scales.
// CHECK:      func.func @packed(
// CHECK-SAME: reason = "transformer.linear at fc takes test.op at unpack, expected a plain weight: one that is packed keeps its own scales", verdict = "not_folded"
// CHECK-NOT:  transformer.scale_columns
func.func @packed(%x : tensor<3x4xf32>, %blocks : tensor<8x2xi8>) -> tensor<3x8xf32> {
  %g = transformer.weight "norm" : tensor<4xf32>
  %w = "test.op"(%blocks) {loc = "unpack"} : (tensor<8x2xi8>) -> tensor<8x4xf32>
  %n = transformer.rms_norm %x, %g {eps = 1.0e-05 : f64, loc = "norm"} : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %y = transformer.linear %n, %w {loc = "fc"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}
// -----
// A weight that becomes eight-bit floats when the model is loaded is scaled before: its scales and its words are made of the scaled one.
// CHECK:      func.func @floats(
// CHECK-SAME: reason = "into fc, again", verdict = "folded"
// CHECK:      %n = transformer.rms_norm %x {loc = "norm"
// CHECK-NEXT: %[[SCALED:.*]] = transformer.scale_columns %w, %g
// CHECK-NEXT: %s = transformer.group_scales %[[SCALED]] {
// CHECK-NEXT: %p = transformer.pack_weight %[[SCALED]], %s
// CHECK-NEXT: %d = transformer.dequantize %p, %s
// CHECK-NEXT: transformer.linear %n, %d
// A second linear of the same words finds them scaled.
// CHECK-NEXT: transformer.linear %n, %d
func.func @floats(%x : tensor<3x4xf32>) -> (tensor<3x8xf32>, tensor<3x8xf32>) {
  %g = transformer.weight "norm" : tensor<4xf32>
  %w = transformer.weight "fc" : tensor<8x4xf32>
  %n = transformer.rms_norm %x, %g {eps = 1.0e-05 : f64, loc = "norm"} : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %s = transformer.group_scales %w {packing = #transformer.packing<fp8, group = 4>} : (tensor<8x4xf32>) -> tensor<8x1xf32>
  %p = transformer.pack_weight %w, %s {packing = #transformer.packing<fp8, group = 4>} : (tensor<8x4xf32>, tensor<8x1xf32>) -> tensor<8x4xf8E4M3FN>
  %d = transformer.dequantize %p, %s {packing = #transformer.packing<fp8, group = 4>} : (tensor<8x4xf8E4M3FN>, tensor<8x1xf32>) -> tensor<8x4xf32>
  %y = transformer.linear %n, %d {loc = "fc"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %z = transformer.linear %n, %d {loc = "again"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  func.return %y, %z : tensor<3x8xf32>, tensor<3x8xf32>
}
// -----
// Whole numbers have the same step for all columns.
// CHECK:      func.func @whole(
// CHECK-SAME: reason = "transformer.linear at fc is rounded to int8, whose steps are alike for all columns: those that the scale makes small would be left few", verdict = "not_folded"
// CHECK-NOT:  transformer.scale_columns
func.func @whole(%x : tensor<3x4xf32>) -> tensor<3x8xf32> {
  %g = transformer.weight "norm" : tensor<4xf32>
  %w = transformer.weight "fc" : tensor<8x4xf32>
  %n = transformer.rms_norm %x, %g {eps = 1.0e-05 : f64, loc = "norm"} : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %s = transformer.group_scales %w {packing = #transformer.packing<int8, group = 4>} : (tensor<8x4xf32>) -> tensor<8x1xf32>
  %p = transformer.pack_weight %w, %s {packing = #transformer.packing<int8, group = 4>} : (tensor<8x4xf32>, tensor<8x1xf32>) -> tensor<8x1xi32>
  %d = transformer.dequantize %p, %s {packing = #transformer.packing<int8, group = 4>} : (tensor<8x1xi32>, tensor<8x1xf32>) -> tensor<8x4xf32>
  %y = transformer.linear %n, %d {loc = "fc"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}
// -----
// A shift needs a bias in every linear.
// CHECK:      func.func @no_bias(
// CHECK-SAME: reason = "transformer.linear at k has no bias to take the shift", verdict = "not_folded", what = "transformer.layer_norm at norm"
// CHECK-NOT:  transformer.scale_columns
func.func @no_bias(%x : tensor<3x4xf32>) -> (tensor<3x8xf32>, tensor<3x2xf32>) {
  %g = transformer.weight "norm" : tensor<4xf32>
  %s = transformer.weight "norm.bias" : tensor<4xf32>
  %wq = transformer.weight "q" : tensor<8x4xf32>
  %bq = transformer.weight "q.bias" : tensor<8xf32>
  %wk = transformer.weight "k" : tensor<2x4xf32>
  %n = transformer.layer_norm %x, %g, %s {eps = 1.0e-05 : f64, loc = "norm"} : (tensor<3x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %q = transformer.linear %n, %wq, %bq {loc = "q"} : (tensor<3x4xf32>, tensor<8x4xf32>, tensor<8xf32>) -> tensor<3x8xf32>
  %k = transformer.linear %n, %wk {loc = "k"} : (tensor<3x4xf32>, tensor<2x4xf32>) -> tensor<3x2xf32>
  func.return %q, %k : tensor<3x8xf32>, tensor<3x2xf32>
}
// -----
// A bias that others read may not change either.
// CHECK:      func.func @shared_bias(
// CHECK-SAME: reason = "weight b is also used by transformer.linear at other", verdict = "not_folded", what = "transformer.layer_norm at norm"
// CHECK-NOT:  transformer.shift_bias
func.func @shared_bias(%x : tensor<3x4xf32>) -> (tensor<3x8xf32>, tensor<3x8xf32>) {
  %g = transformer.weight "norm" : tensor<4xf32>
  %s = transformer.weight "norm.bias" : tensor<4xf32>
  %w = transformer.weight "w" : tensor<8x4xf32>
  %v = transformer.weight "v" : tensor<8x4xf32>
  %b = transformer.weight "b" : tensor<8xf32>
  %n = transformer.layer_norm %x, %g, %s {eps = 1.0e-05 : f64, loc = "norm"} : (tensor<3x4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %y = transformer.linear %n, %w, %b {loc = "fc"} : (tensor<3x4xf32>, tensor<8x4xf32>, tensor<8xf32>) -> tensor<3x8xf32>
  %z = transformer.linear %x, %v, %b {loc = "other"} : (tensor<3x4xf32>, tensor<8x4xf32>, tensor<8xf32>) -> tensor<3x8xf32>
  func.return %y, %z : tensor<3x8xf32>, tensor<3x8xf32>
}
// -----
// CHECK:      func.func @narrow(
// CHECK-SAME: reason = "its scale times a weight can overflow or vanish in f16", verdict = "not_folded"
// CHECK-NOT:  transformer.scale_columns
func.func @narrow(%x : tensor<3x4xf16>) -> tensor<3x8xf16> {
  %g = transformer.weight "norm" : tensor<4xf16>
  %w = transformer.weight "fc" : tensor<8x4xf16>
  %n = transformer.rms_norm %x, %g {eps = 1.0e-05 : f64} : (tensor<3x4xf16>, tensor<4xf16>) -> tensor<3x4xf16>
  %y = transformer.linear %n, %w : (tensor<3x4xf16>, tensor<8x4xf16>) -> tensor<3x8xf16>
  func.return %y : tensor<3x8xf16>
}
// -----
// CHECK:      func.func @argument(
// CHECK-SAME: reason = "its scale comes from an argument, expected a weight", verdict = "not_folded"
// CHECK-NOT:  transformer.scale_columns
func.func @argument(%x : tensor<3x4xf32>, %g : tensor<4xf32>) -> tensor<3x8xf32> {
  %w = transformer.weight "fc" : tensor<8x4xf32>
  %n = transformer.rms_norm %x, %g {eps = 1.0e-05 : f64} : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  %y = transformer.linear %n, %w : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}
// -----
// CHECK:      func.func @unread(
// CHECK-SAME: reason = "nothing reads it", verdict = "not_folded"
func.func @unread(%x : tensor<3x4xf32>) {
  %g = transformer.weight "norm" : tensor<4xf32>
  %n = transformer.rms_norm %x, %g {eps = 1.0e-05 : f64} : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
  func.return
}
// -----
// CHECK:      func.func @heads(
// CHECK-SAME: reason = "it normalizes each head by itself", verdict = "not_folded"
// CHECK-NOT:  transformer.scale_columns
func.func @heads(%x : tensor<3x8xf32>) -> tensor<3x8xf32> {
  %g = transformer.weight "q_norm" : tensor<4xf32>
  %w = transformer.weight "fc" : tensor<8x8xf32>
  %n = transformer.rms_norm %x, %g {eps = 1.0e-05 : f64, heads = 2 : i64} : (tensor<3x8xf32>, tensor<4xf32>) -> tensor<3x8xf32>
  %y = transformer.linear %n, %w : (tensor<3x8xf32>, tensor<8x8xf32>) -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}
