// RUN: lamella-opt %s -p 'quantize-weights{kind=int4 head=same}' | filecheck %s

// A table that is tied to the head is packed once: the head multiplies it, the embedding gathers rows of it.
func.func @forward(%t : tensor<2xi32>) -> tensor<2x64xbf16> attributes {lamella.inputs = ["t"], lamella.outputs = ["y"], lamella.tied = array<i64: -1>} {
  %table = transformer.weight "embed" : tensor<64x64xbf16>
  %x = transformer.embedding %t, %table {loc = "embed"} : (tensor<2xi32>, tensor<64x64xbf16>) -> tensor<2x64xbf16>
  %y = transformer.linear %x, %table {loc = "lm_head"} : (tensor<2x64xbf16>, tensor<64x64xbf16>) -> tensor<2x64xbf16>
  func.return %y : tensor<2x64xbf16>
}
// CHECK:      lamella.folds = [{kind = "weight", reason = "int4, whole rows, each with its least value, rows of transformer.embedding at embed too", verdict = "quantized", what = "transformer.linear at lm_head"}]
// CHECK:      %table = transformer.weight "embed"
// CHECK-NEXT: [[S:%.*]] = transformer.group_scales %table
// CHECK-NEXT: [[M:%.*]] = transformer.group_mins %table, [[S]]
// CHECK-NEXT: [[P:%.*]] = transformer.pack_weight %table, [[S]], [[M]]
// CHECK-NEXT: [[W:%.*]] = transformer.dequantize [[P]], [[S]], [[M]] {loc = "lm_head", packing = #transformer.packing<int4, group = 64>}
// CHECK-NEXT: %x = transformer.embedding %t, [[W]] {loc = "embed"} : (tensor<2xi32>, tensor<64x64xf32>) -> tensor<2x64xbf16>
// CHECK-NEXT: %y = transformer.linear %x, [[W]] {loc = "lm_head"}

// With `head=none` nothing is packed: the table would be held twice.
// RUN: lamella-opt %s -p 'quantize-weights{kind=int4 embed=int8}' | filecheck %s --check-prefix KEPT
// KEPT: {kind = "weight", reason = "the head keeps its weight: head=none", verdict = "not_quantized", what = "transformer.linear at lm_head"}
// KEPT: {kind = "weight", reason = "weight embed is also read by transformer.linear at lm_head", verdict = "not_quantized", what = "transformer.embedding at embed"}
// KEPT: transformer.linear %x, %table
