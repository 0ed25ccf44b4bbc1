// RUN: lamella-opt %s -p 'quantize-weights{kind=int8 skip="*.down"}' | filecheck %s

// The experts of a layer are one weight and packed as one; a router keeps its numbers.
func.func @forward(%x : tensor<3x16xbf16>) -> tensor<3x16xbf16> attributes {lamella.inputs = ["x"], lamella.outputs = ["y"], lamella.tied = array<i64: -1>} {
  %r = transformer.weight "router" : tensor<2x16xbf16>
  %logits = transformer.linear %x, %r {loc = "layers.0.ffn.router"} : (tensor<3x16xbf16>, tensor<2x16xbf16>) -> tensor<3x2xbf16>
  %weights, %chosen = transformer.route %logits {normalized = true, top_k = 1 : i64} : (tensor<3x2xbf16>) -> (tensor<3x1xbf16>, tensor<3x1xi32>)
  %g0 = transformer.weight "gate.0" : tensor<8x16xbf16>
  %g1 = transformer.weight "gate.1" : tensor<8x16xbf16>
  %gate = transformer.concat_rows %g0, %g1 : (tensor<8x16xbf16>, tensor<8x16xbf16>) -> tensor<16x16xbf16>
  %up = transformer.weight "up" : tensor<16x16xbf16>
  %down = transformer.weight "down" : tensor<32x8xbf16>
  %y = transformer.experts %x, %chosen, %weights, %gate, %up, %down {activation = "silu", experts = 2 : i64, loc = "layers.0.ffn.experts"} : (tensor<3x16xbf16>, tensor<3x1xi32>, tensor<3x1xbf16>, tensor<16x16xbf16>, tensor<16x16xbf16>, tensor<32x8xbf16>) -> tensor<3x16xbf16>
  func.return %y : tensor<3x16xbf16>
}
// CHECK:      lamella.folds = [
// CHECK-SAME: {kind = "weight", reason = "it is small and decides which experts count", verdict = "not_quantized", what = "transformer.linear at layers.0.ffn.router"}
// CHECK-SAME: {kind = "weight", reason = "int8, whole rows", verdict = "quantized", what = "transformer.experts at layers.0.ffn.experts.gate"}
// CHECK-SAME: {kind = "weight", reason = "int8, whole rows", verdict = "quantized", what = "transformer.experts at layers.0.ffn.experts.up"}
// CHECK-SAME: {kind = "weight", reason = "skip names layers.0.ffn.experts.down", verdict = "not_quantized", what = "transformer.experts at layers.0.ffn.experts.down"}
// CHECK:      %gate = transformer.concat_rows %g0, %g1
// CHECK:      [[S:%.*]] = transformer.group_scales %gate {packing = #transformer.packing<int8, group = 16>} : (tensor<16x16xbf16>) -> tensor<16x1xbf16>
// CHECK-NEXT: [[P:%.*]] = transformer.pack_weight %gate, [[S]] {packing = #transformer.packing<int8, group = 16>} {{.*}} -> tensor<16x4xi32>
// CHECK-NEXT: [[G:%.*]] = transformer.dequantize [[P]], [[S]] {loc = "layers.0.ffn.experts.gate", packing = #transformer.packing<int8, group = 16>}
// CHECK:      [[U:%.*]] = transformer.dequantize {{.*}} {loc = "layers.0.ffn.experts.up"
// CHECK:      transformer.experts %x, %chosen, %weights, [[G]], [[U]], %down
