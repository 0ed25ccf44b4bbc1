// RUN: lamella-opt %s -p 'quantize-weights{kind=int4 head=int8 skip="*.down *.up"}' | filecheck %s

func.func @forward(%x : tensor<2x64xbf16>, %t : tensor<2xi32>) -> tensor<2x8xbf16> attributes {lamella.inputs = ["x", "t"], lamella.outputs = ["y"], lamella.tied = array<i64: -1>} {
  %w = transformer.weight "q_proj" : tensor<64x64xbf16>
  %q = transformer.linear %x, %w {loc = "layers.0.attn.q"} : (tensor<2x64xbf16>, tensor<64x64xbf16>) -> tensor<2x64xbf16>
  %u = transformer.weight "up_proj" : tensor<60x64xbf16>
  %a = transformer.linear %q, %u {loc = "layers.0.ffn.up"} : (tensor<2x64xbf16>, tensor<60x64xbf16>) -> tensor<2x60xbf16>
  %o = transformer.weight "o_proj" : tensor<64x60xbf16>
  %b = transformer.linear %a, %o {loc = "layers.0.attn.o"} : (tensor<2x60xbf16>, tensor<64x60xbf16>) -> tensor<2x64xbf16>
  %table = transformer.weight "embed" : tensor<64x64xbf16>
  %e = transformer.embedding %t, %table : (tensor<2xi32>, tensor<64x64xbf16>) -> tensor<2x64xbf16>
  %c = transformer.add %b, %e : (tensor<2x64xbf16>, tensor<2x64xbf16>) -> tensor<2x64xbf16>
  %d = transformer.linear %c, %table {loc = "layers.1.attn.q"} : (tensor<2x64xbf16>, tensor<64x64xbf16>) -> tensor<2x64xbf16>
  %h = transformer.weight "lm_head" : tensor<8x64xbf16>
  %y = transformer.linear %d, %h {loc = "lm_head"} : (tensor<2x64xbf16>, tensor<8x64xbf16>) -> tensor<2x8xbf16>
  func.return %y : tensor<2x8xbf16>
}
// CHECK:      lamella.folds = [
// CHECK-SAME: {kind = "weight", reason = "int4, whole rows, each with its least value", verdict = "quantized", what = "transformer.linear at layers.0.attn.q"}
// CHECK-SAME: {kind = "weight", reason = "skip names layers.0.ffn.up", verdict = "not_quantized", what = "transformer.linear at layers.0.ffn.up"}
// CHECK-SAME: {kind = "weight", reason = "60 columns are no whole groups of 32", verdict = "not_quantized", what = "transformer.linear at layers.0.attn.o"}
// CHECK-SAME: {kind = "weight", reason = "weight embed is also read by transformer.embedding", verdict = "not_quantized", what = "transformer.linear at layers.1.attn.q"}
// CHECK-SAME: {kind = "weight", reason = "int8, whole rows", verdict = "quantized", what = "transformer.linear at lm_head"}
// CHECK:      [[S:%.*]] = transformer.group_scales %w {packing = #transformer.packing<int4, group = 64>, affine = true} : (tensor<64x64xbf16>) -> tensor<64x1xbf16>
// CHECK-NEXT: [[M:%.*]] = transformer.group_mins %w, [[S]] {packing = #transformer.packing<int4, group = 64>}
// CHECK-NEXT: [[P:%.*]] = transformer.pack_weight %w, [[S]], [[M]] {packing = #transformer.packing<int4, group = 64>} {{.*}} -> tensor<64x8xi32>
// CHECK-NEXT: [[D:%.*]] = transformer.dequantize [[P]], [[S]], [[M]] {loc = "layers.0.attn.q", packing = #transformer.packing<int4, group = 64>}
// CHECK-NEXT: transformer.linear %x, [[D]] {loc = "layers.0.attn.q"}
// CHECK:      transformer.linear %q, %u
// CHECK:      transformer.linear %a, %o
// CHECK:      transformer.linear %c, %table
// CHECK:      transformer.group_scales %h {packing = #transformer.packing<int8, group = 64>}

// RUN: lamella-opt %s -p 'quantize-weights{kind=fp8}' | filecheck %s --check-prefix FP8
// FP8:      {kind = "weight", reason = "fp8, whole rows", verdict = "quantized", what = "transformer.linear at layers.0.attn.q"}
// FP8:      [[S:%.*]] = transformer.group_scales %w {packing = #transformer.packing<fp8, group = 64>} : (tensor<64x64xbf16>) -> tensor<64x1xbf16>
// FP8-NEXT: [[P:%.*]] = transformer.pack_weight %w, [[S]] {packing = #transformer.packing<fp8, group = 64>} {{.*}} -> tensor<64x64xf8E4M3FN>
// FP8-NEXT: [[D:%.*]] = transformer.dequantize [[P]], [[S]] {loc = "layers.0.attn.q", packing = #transformer.packing<fp8, group = 64>}

