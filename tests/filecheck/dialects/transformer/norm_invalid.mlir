// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%x, %w = "test.op"() : () -> (tensor<?x64xf32, #transformer.dims<"N">>, tensor<32xf32>)
%0 = transformer.rms_norm %x, %w {eps = 1.0e-05 : f64, loc = "layers.3.attn_norm"} : (tensor<?x64xf32, #transformer.dims<"N">>, tensor<32xf32>) -> tensor<?x64xf32, #transformer.dims<"N">>
// CHECK: transformer.rms_norm at layers.3.attn_norm: weight has shape (32,), expected (64,), the last axis of x

// -----
%x, %w = "test.op"() : () -> (tensor<2x64xf32>, tensor<64xbf16>)
%0 = transformer.rms_norm %x, %w {eps = 1.0e-05 : f64} : (tensor<2x64xf32>, tensor<64xbf16>) -> tensor<2x64xf32>
// CHECK: transformer.rms_norm: weight has element type bf16, expected f32, that of x

// -----
%x, %w = "test.op"() : () -> (tensor<?x64xf32, #transformer.dims<"N">>, tensor<64xf32>)
%0 = transformer.rms_norm %x, %w {eps = 1.0e-05 : f64} : (tensor<?x64xf32, #transformer.dims<"N">>, tensor<64xf32>) -> tensor<?x64xf32, #transformer.dims<"R">>
// CHECK: transformer.rms_norm: result has shape (R, 64), expected (N, 64), the shape of x

// -----
%x, %w = "test.op"() : () -> (tensor<2x64xf32>, tensor<64xf32>)
%0 = transformer.rms_norm %x, %w {eps = 1.0e-05 : f64} : (tensor<2x64xf32>, tensor<64xf32>) -> tensor<2x64xf16>
// CHECK: transformer.rms_norm: result has element type f16, expected f32, that of x

// -----
%x = "test.op"() : () -> tensor<f32>
%0 = transformer.rms_norm %x, %x {eps = 1.0e-05 : f64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
// CHECK: transformer.rms_norm: x has rank 0, expected a last axis to normalize

// -----
%x = "test.op"() : () -> tensor<2x64xf32>
%0 = transformer.rms_norm %x {eps = 1.0e-05 : f64, offset = 1.0 : f64} : (tensor<2x64xf32>) -> tensor<2x64xf32>
// CHECK: transformer.rms_norm: offset is 1.0 and there is no weight, expected both or neither

// -----
%x, %w = "test.op"() : () -> (tensor<2x64xf32>, tensor<64xf32>)
%0 = transformer.layer_norm %x, %w, %w, %w {eps = 1.0e-05 : f64} : (tensor<2x64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<64xf32>) -> tensor<2x64xf32>
// CHECK: transformer.layer_norm: has 3 parameters, expected a weight and a bias at most

// -----
%x, %w, %b = "test.op"() : () -> (tensor<2x64xf32>, tensor<64xf32>, tensor<2xf32>)
%0 = transformer.layer_norm %x, %w, %b {eps = 1.0e-05 : f64, loc = "final_norm"} : (tensor<2x64xf32>, tensor<64xf32>, tensor<2xf32>) -> tensor<2x64xf32>
// CHECK: transformer.layer_norm at final_norm: bias has shape (2,), expected (64,), the last axis of x

// -----
%x, %w = "test.op"() : () -> (tensor<2x64xf32>, tensor<64xf16>)
%0 = transformer.layer_norm %x, %w {eps = 1.0e-05 : f64} : (tensor<2x64xf32>, tensor<64xf16>) -> tensor<2x64xf32>
// CHECK: transformer.layer_norm: weight has element type f16, expected f32, that of x

// -----
%x = "test.op"() : () -> tensor<2x64xf32>
%0 = transformer.layer_norm %x {eps = 1.0e-05 : f64} : (tensor<2x64xf32>) -> tensor<2x32xf32>
// CHECK: transformer.layer_norm: result has shape (2, 32), expected (2, 64), the shape of x

// -----
%x = "test.op"() : () -> tensor<f32>
%0 = transformer.layer_norm %x {eps = 1.0e-05 : f64} : (tensor<f32>) -> tensor<f32>
// CHECK: transformer.layer_norm: x has rank 0, expected a last axis to normalize

// -----
%x, %w = "test.op"() : () -> (tensor<2x64xf32>, tensor<16xf32>)
%0 = transformer.rms_norm %x, %w {eps = 1.0e-05 : f64, heads = 5 : i64, loc = "layers.0.attn.q_norm"} : (tensor<2x64xf32>, tensor<16xf32>) -> tensor<2x64xf32>
// CHECK: transformer.rms_norm at layers.0.attn.q_norm: x has rows of 64, expected a multiple of heads = 5

// -----
%x, %w = "test.op"() : () -> (tensor<2x64xf32>, tensor<32xf32>)
%0 = transformer.layer_norm %x, %w {eps = 1.0e-05 : f64, heads = 4 : i64} : (tensor<2x64xf32>, tensor<32xf32>) -> tensor<2x64xf32>
// CHECK: transformer.layer_norm: weight has shape (32,), expected (16,), one head of x

// -----
%x, %w = "test.op"() : () -> (tensor<2x64xf32, #transformer.layout<head = 16, paired = 16>>, tensor<16xf32>)
%0 = transformer.rms_norm %x, %w {eps = 1.0e-05 : f64, heads = 4 : i64} : (tensor<2x64xf32, #transformer.layout<head = 16, paired = 16>>, tensor<16xf32>) -> tensor<2x64xf32, #transformer.layout<head = 16, paired = 16>>
// CHECK: transformer.rms_norm: weight lies in plain order, expected pairs of 16 in heads of 16, that of x

// -----
%x = "test.op"() : () -> tensor<2x64xf32, #transformer.layout<head = 16, paired = 16>>
%0 = transformer.layer_norm %x {eps = 1.0e-05 : f64} : (tensor<2x64xf32, #transformer.layout<head = 16, paired = 16>>) -> tensor<2x64xf32>
// CHECK: transformer.layer_norm: result lies in plain order, expected pairs of 16 in heads of 16, that of x
