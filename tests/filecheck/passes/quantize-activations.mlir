// RUN: lamella-opt %s -p 'quantize-activations{kind=int8 skip="*.gate"}' | filecheck %s
// RUN: lamella-opt %s -p 'quantize-activations{kind=int8},transformer-to-tile,canonicalize' | filecheck %s --check-prefix TILE
// RUN: lamella-opt %s -p 'quantize-activations' | filecheck %s --check-prefix NONE
// RUN: not lamella-opt %s -p 'quantize-activations{kind=fp8}' 2>&1 | filecheck %s --check-prefix FP8
// RUN: not lamella-opt %s -p 'quantize-activations{kind=int4}' 2>&1 | filecheck %s --check-prefix KIND

// NONE-NOT: transformer.quantize_rows
// FP8: no linear can multiply activations of fp8, expected weights of fp8 with one scale a row
// KIND: unknown kind 'int4', expected none, int8, fp8

func.func @forward(%x : tensor<2x64xbf16>, %p : tensor<64x16xi32>, %s : tensor<64x1xbf16>, %g : tensor<64x2xbf16>, %w : tensor<64x64xbf16>, %b : tensor<64xbf16>) -> (tensor<2x64xbf16>, tensor<2x64xbf16>, tensor<2x64xbf16>, tensor<2x64xbf16>, tensor<2x64xbf16>, tensor<2x64xbf16>) attributes {lamella.inputs = ["x", "p", "s", "g", "w", "b"], lamella.outputs = ["q", "k", "gate", "v", "u", "o"], lamella.tied = array<i64: -1, -1, -1, -1, -1, -1>} {
  %d = transformer.dequantize %p, %s {packing = #transformer.packing<int8, group = 64>} : (tensor<64x16xi32>, tensor<64x1xbf16>) -> tensor<64x64xf32>
  %e = transformer.dequantize %p, %g {packing = #transformer.packing<int8, group = 32>} : (tensor<64x16xi32>, tensor<64x2xbf16>) -> tensor<64x64xf32>
  %l = transformer.dequantize %p, %s, %s {packing = #transformer.packing<int8, group = 64>} : (tensor<64x16xi32>, tensor<64x1xbf16>, tensor<64x1xbf16>) -> tensor<64x64xf32>
  %q = transformer.linear %x, %d, %b {loc = "layers.0.attn.q"} : (tensor<2x64xbf16>, tensor<64x64xf32>, tensor<64xbf16>) -> tensor<2x64xbf16>
  %k = transformer.linear %x, %d {loc = "layers.0.attn.k"} : (tensor<2x64xbf16>, tensor<64x64xf32>) -> tensor<2x64xbf16>
  %gate = transformer.linear %x, %d {loc = "layers.0.ffn.gate"} : (tensor<2x64xbf16>, tensor<64x64xf32>) -> tensor<2x64xbf16>
  %v = transformer.linear %x, %e {loc = "layers.0.attn.v"} : (tensor<2x64xbf16>, tensor<64x64xf32>) -> tensor<2x64xbf16>
  %u = transformer.linear %x, %w {loc = "layers.0.ffn.up"} : (tensor<2x64xbf16>, tensor<64x64xbf16>) -> tensor<2x64xbf16>
  %o = transformer.linear %x, %l {loc = "layers.0.attn.o"} : (tensor<2x64xbf16>, tensor<64x64xf32>) -> tensor<2x64xbf16>
  func.return %q, %k, %gate, %v, %u, %o : tensor<2x64xbf16>, tensor<2x64xbf16>, tensor<2x64xbf16>, tensor<2x64xbf16>, tensor<2x64xbf16>, tensor<2x64xbf16>
}
// CHECK:      lamella.folds = [
// CHECK-SAME: {kind = "activation", reason = "x in int8, a scale a row", verdict = "quantized", what = "transformer.linear at layers.0.attn.q"}
// CHECK-SAME: {kind = "activation", reason = "x in int8, a scale a row", verdict = "quantized", what = "transformer.linear at layers.0.attn.k"}
// CHECK-SAME: {kind = "activation", reason = "skip names layers.0.ffn.gate", verdict = "not_quantized", what = "transformer.linear at layers.0.ffn.gate"}
// CHECK-SAME: {kind = "activation", reason = "its weight has a scale for 32 columns, not one a row", verdict = "not_quantized", what = "transformer.linear at layers.0.attn.v"}
// CHECK-SAME: {kind = "activation", reason = "its weight is floats, not int8", verdict = "not_quantized", what = "transformer.linear at layers.0.ffn.up"}
// CHECK-SAME: {kind = "activation", reason = "the rows of its weight have least values", verdict = "not_quantized", what = "transformer.linear at layers.0.attn.o"}
// CHECK:      %values, %row_scales = transformer.quantize_rows %x {kind = "int8"} : (tensor<2x64xbf16>) -> (tensor<2x64xi8>, tensor<2x1xf32>)
// CHECK-NEXT: [[X:%.*]] = transformer.dequantize_rows %values, %row_scales : (tensor<2x64xi8>, tensor<2x1xf32>) -> tensor<2x64xf32>
// CHECK-NEXT: transformer.linear [[X]], %d, %b {loc = "layers.0.attn.q"}
// CHECK-NEXT: transformer.linear [[X]], %d {loc = "layers.0.attn.k"}
// CHECK-NEXT: transformer.linear %x, %d {loc = "layers.0.ffn.gate"}
// CHECK-NEXT: transformer.linear %x, %e
// CHECK-NEXT: transformer.linear %x, %w
// CHECK-NEXT: transformer.linear %x, %l

// The values are multiplied, and their scales multiply the sums.
// TILE:      [[F:%.*]] = tile.cast %x : tensor<2x64xbf16> -> tensor<2x64xf32>
// TILE-NEXT: [[M:%.*]] = tile.map "magnitude"([[F]])
// TILE-NEXT: [[L:%.*]] = tile.reduce "max" [[M]]
// TILE-NEXT: tile.constant
// TILE-NEXT: [[A:%.*]] = tile.map "maximum"([[L]], {{%.*}})
// TILE-NEXT: tile.constant
// TILE-NEXT: %row_scales = tile.map "mul"([[A]], {{%.*}})
// TILE-NEXT: [[D:%.*]] = tile.map "div"([[F]], %row_scales)
// TILE-NEXT: %values = tile.cast [[D]] : tensor<2x64xf32> -> tensor<2x64xi8>
// TILE-NEXT: [[C:%.*]] = tile.contract %values, %d {loc = "layers.0.attn.q"} : tensor<2x64xi8>, tensor<64x64xf32> -> tensor<2x64xf32>
// TILE-NEXT: [[S:%.*]] = tile.map "mul"([[C]], %row_scales)
// TILE-NEXT: [[B:%.*]] = tile.cast %b
// TILE-NEXT: tile.map "add"([[S]], [[B]])
