// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%x, %y = "test.op"() : () -> (tensor<?x6xf32, #transformer.dims<"N">>, tensor<?x6xf32, #transformer.dims<"R">>)
%0 = transformer.add %x, %y {loc = "layers.0.attn.residual"} : (tensor<?x6xf32, #transformer.dims<"N">>, tensor<?x6xf32, #transformer.dims<"R">>) -> tensor<?x6xf32, #transformer.dims<"N">>
// CHECK: transformer.add at layers.0.attn.residual: y has shape (R, 6), expected (N, 6), the shape of x

// -----
%x, %y = "test.op"() : () -> (tensor<2x6xf32>, tensor<2x6xf16>)
%0 = transformer.mul %x, %y : (tensor<2x6xf32>, tensor<2x6xf16>) -> tensor<2x6xf32>
// CHECK: transformer.mul: y has element type f16, expected f32, that of x

// -----
%x = "test.op"() : () -> tensor<2x6xf32>
%0 = transformer.silu %x : (tensor<2x6xf32>) -> tensor<2x5xf32>
// CHECK: transformer.silu: result has shape (2, 5), expected (2, 6), the shape of x

// -----
%x = "test.op"() : () -> tensor<2x6xf32>
%0 = transformer.div %x, %x : (tensor<2x6xf32>, tensor<2x6xf32>) -> tensor<2x6xbf16>
// CHECK: transformer.div: result has element type bf16, expected f32, that of x

// -----
%x = "test.op"() : () -> tensor<2x6xi32>
%0 = transformer.exp %x : (tensor<2x6xi32>) -> tensor<2x6xi32>
// CHECK: type is tensor<2x6xi32>, expected a tensor of f32 or f16 or bf16

// -----
%x = "test.op"() : () -> tensor<3x64xbf16>
%0 = transformer.scale %x {factor = 2.0 : f64, loc = "embed.scale"} : (tensor<3x64xbf16>) -> tensor<3x64xf32>
// CHECK: transformer.scale at embed.scale: result has element type f32, expected bf16, that of x

// -----
%x, %factor = "test.op"() : () -> (tensor<?x64xf32, #transformer.dims<"N">>, tensor<?x64xf32, #transformer.dims<"N">>)
%0 = transformer.scale_rows %x, %factor {loc = "layers.0.ffn.shared"} : (tensor<?x64xf32, #transformer.dims<"N">>, tensor<?x64xf32, #transformer.dims<"N">>) -> tensor<?x64xf32, #transformer.dims<"N">>
// CHECK: transformer.scale_rows at layers.0.ffn.shared: factor has shape (N, 64), expected (N, 1), one number a row of x

// -----
%x, %factor = "test.op"() : () -> (tensor<3x64xf32>, tensor<3x1xbf16>)
%0 = transformer.scale_rows %x, %factor : (tensor<3x64xf32>, tensor<3x1xbf16>) -> tensor<3x64xf32>
// CHECK: transformer.scale_rows: factor has element type bf16, expected f32, that of x
