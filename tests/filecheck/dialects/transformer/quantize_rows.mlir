// RUN: lamella-opt %s | lamella-opt | filecheck %s

%x = "test.op"() : () -> tensor<?x64xbf16, #transformer.dims<"N">>
%q, %s = transformer.quantize_rows %x {kind = "int8", loc = "layers.0.ffn_norm"} : (tensor<?x64xbf16, #transformer.dims<"N">>) -> (tensor<?x64xi8, #transformer.dims<"N">>, tensor<?x1xf32, #transformer.dims<"N">>)
// CHECK: %q, %s = transformer.quantize_rows %x {loc = "layers.0.ffn_norm", kind = "int8"} : (tensor<?x64xbf16, #transformer.dims<"N">>) -> (tensor<?x64xi8, #transformer.dims<"N">>, tensor<?x1xf32, #transformer.dims<"N">>)
%d = transformer.dequantize_rows %q, %s : (tensor<?x64xi8, #transformer.dims<"N">>, tensor<?x1xf32, #transformer.dims<"N">>) -> tensor<?x64xf32, #transformer.dims<"N">>
// CHECK-NEXT: %d = transformer.dequantize_rows %q, %s : (tensor<?x64xi8, #transformer.dims<"N">>, tensor<?x1xf32, #transformer.dims<"N">>) -> tensor<?x64xf32, #transformer.dims<"N">>
%w, %b = "test.op"() : () -> (tensor<8x64xf32>, tensor<8xbf16>)
// A bias has the type of the result: x is floats that nothing stores.
%y = transformer.linear %d, %w, %b : (tensor<?x64xf32, #transformer.dims<"N">>, tensor<8x64xf32>, tensor<8xbf16>) -> tensor<?x8xbf16, #transformer.dims<"N">>
// CHECK: transformer.linear %d, %w, %b
%z = "test.op"() : () -> tensor<3x64xf32>
%f, %t = transformer.quantize_rows %z {kind = "fp8"} : (tensor<3x64xf32>) -> (tensor<3x64xf8E4M3FN>, tensor<3x1xf32>)
// CHECK: %f, %t = transformer.quantize_rows %z {kind = "fp8"} : (tensor<3x64xf32>) -> (tensor<3x64xf8E4M3FN>, tensor<3x1xf32>)
