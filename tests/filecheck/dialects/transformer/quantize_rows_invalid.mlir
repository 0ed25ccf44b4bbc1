// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%x = "test.op"() : () -> tensor<3x64xbf16>
%q, %s = transformer.quantize_rows %x {kind = "int4", loc = "layers.0.attn_norm"} : (tensor<3x64xbf16>) -> (tensor<3x64xi8>, tensor<3x1xf32>)
// CHECK: transformer.quantize_rows at layers.0.attn_norm: kind is int4, expected int8 or fp8

// -----
%x = "test.op"() : () -> tensor<3x64xbf16>
%q, %s = transformer.quantize_rows %x {kind = "fp8"} : (tensor<3x64xbf16>) -> (tensor<3x64xi8>, tensor<3x1xf32>)
// CHECK: transformer.quantize_rows: values have type tensor<3x64xi8>, expected tensor<3x64xf8E4M3FN> for fp8

// -----
%x = "test.op"() : () -> tensor<3x64xbf16>
%q, %s = transformer.quantize_rows %x {kind = "int8"} : (tensor<3x64xbf16>) -> (tensor<3x64xi8>, tensor<3xf32>)
// CHECK: transformer.quantize_rows: scales has shape (3,), expected (3, 1), one number for each row of x

// -----
%q, %s = "test.op"() : () -> (tensor<3x64xi8>, tensor<3x2xf32>)
%d = transformer.dequantize_rows %q, %s : (tensor<3x64xi8>, tensor<3x2xf32>) -> tensor<3x64xf32>
// CHECK: transformer.dequantize_rows: scales has shape (3, 2), expected (3, 1), one number for each row of values

// -----
%q, %s = "test.op"() : () -> (tensor<3x64xi8>, tensor<3x1xf32>)
%d = transformer.dequantize_rows %q, %s : (tensor<3x64xi8>, tensor<3x1xf32>) -> tensor<3x64xbf16>
// CHECK: type is tensor<3x64xbf16>, expected a tensor of f32
