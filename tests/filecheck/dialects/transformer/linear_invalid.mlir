// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%x, %w = "test.op"() : () -> (tensor<?x64xf32, #transformer.dims<"N">>, tensor<96x32xf32>)
%0 = transformer.linear %x, %w {loc = "layers.3.attn.q"} : (tensor<?x64xf32, #transformer.dims<"N">>, tensor<96x32xf32>) -> tensor<?x96xf32, #transformer.dims<"N">>
// CHECK: transformer.linear at layers.3.attn.q: weight has shape (96, 32), expected (96, 64), the last axis of x

// -----
%x, %w = "test.op"() : () -> (tensor<2x64xf32>, tensor<96x64xf16>)
%0 = transformer.linear %x, %w : (tensor<2x64xf32>, tensor<96x64xf16>) -> tensor<2x96xf32>
// CHECK: transformer.linear: weight has element type f16, expected f32, that of x

// -----
%x, %w, %b = "test.op"() : () -> (tensor<2x64xf32>, tensor<96x64xf32>, tensor<64xf32>)
%0 = transformer.linear %x, %w, %b : (tensor<2x64xf32>, tensor<96x64xf32>, tensor<64xf32>) -> tensor<2x96xf32>
// CHECK: transformer.linear: bias has shape (64,), expected (96,), the outputs of weight

// -----
%x, %w, %b = "test.op"() : () -> (tensor<2x64xf32>, tensor<96x64xf32>, tensor<96xf16>)
%0 = transformer.linear %x, %w, %b : (tensor<2x64xf32>, tensor<96x64xf32>, tensor<96xf16>) -> tensor<2x96xf32>
// CHECK: transformer.linear: bias has element type f16, expected f32, that of x

// -----
%x, %w = "test.op"() : () -> (tensor<?x64xf32, #transformer.dims<"N">>, tensor<96x64xf32>)
%0 = transformer.linear %x, %w : (tensor<?x64xf32, #transformer.dims<"N">>, tensor<96x64xf32>) -> tensor<?x96xf32, #transformer.dims<"R">>
// CHECK: transformer.linear: result has shape (R, 96), expected (N, 96), the rows of x and the outputs of weight

// -----
%x, %w = "test.op"() : () -> (tensor<64xf32>, tensor<96x64xf32>)
%0 = transformer.linear %x, %w : (tensor<64xf32>, tensor<96x64xf32>) -> tensor<96xf32>
// CHECK: transformer.linear: x has shape (64,), expected 2 axes

// -----
%x = "test.op"() : () -> tensor<2x8xf32>
%0 = transformer.slice_columns %x {start = 6 : i64, size = 3 : i64} : (tensor<2x8xf32>) -> tensor<2x3xf32>
// CHECK: transformer.slice_columns: x has shape (2, 8), expected columns 6 to 9

// -----
%x = "test.op"() : () -> tensor<2x8xf32>
%0 = transformer.slice_columns %x {start = 0 : i64, size = 3 : i64} : (tensor<2x8xf32>) -> tensor<2x3xbf16>
// CHECK: transformer.slice_columns: result has element type bf16, expected f32, that of x

// -----
%x, %w = "test.op"() : () -> (tensor<?x8xf32, #transformer.dims<"N">>, tensor<64x8xf32, #transformer.layout<head = 16, paired = 8>>)
%0 = transformer.linear %x, %w : (tensor<?x8xf32, #transformer.dims<"N">>, tensor<64x8xf32, #transformer.layout<head = 16, paired = 8>>) -> tensor<?x64xf32, #transformer.dims<"N">>
// CHECK: transformer.linear: result lies in plain order, expected pairs of 8 in heads of 16, that of the rows of weight

// -----
%x, %w, %b = "test.op"() : () -> (tensor<2x8xf32>, tensor<64x8xf32, #transformer.layout<head = 16, paired = 8>>, tensor<64xf32>)
%0 = transformer.linear %x, %w, %b : (tensor<2x8xf32>, tensor<64x8xf32, #transformer.layout<head = 16, paired = 8>>, tensor<64xf32>) -> tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>
// CHECK: transformer.linear: bias lies in plain order, expected pairs of 8 in heads of 16, that of the rows of weight

// -----
%x, %w = "test.op"() : () -> (tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>, tensor<8x64xf32>)
%0 = transformer.linear %x, %w : (tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>, tensor<8x64xf32>) -> tensor<2x8xf32>
// CHECK: transformer.linear: x lies in pairs of 8 in heads of 16, expected plain order, that of the columns of weight
