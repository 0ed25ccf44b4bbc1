// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%0 = transformer.weight "embed" : tensor<?x6xf32, #transformer.dims<"N">>
// CHECK: transformer.weight: embed has shape (N, 6), expected static dimensions

// -----
%0 = transformer.weight "embed" : tensor<8x6xi64>
// CHECK: type is tensor<8x6xi64>, expected a tensor of f32 or f16 or bf16 or i32

// -----
%w = "test.op"() : () -> tensor<8x6xf32>
%0 = transformer.pair_rows %w {head_dim = 3 : i64, rotary_dim = 2 : i64} : (tensor<8x6xf32>) -> tensor<8x6xf32>
// CHECK: transformer.pair_rows: w has shape (8, 6), expected rows in heads of 3

// -----
%w = "test.op"() : () -> tensor<?x6xf32, #transformer.dims<"N">>
%0 = transformer.pair_rows %w {head_dim = 4 : i64, rotary_dim = 2 : i64} : (tensor<?x6xf32, #transformer.dims<"N">>) -> tensor<?x6xf32, #transformer.dims<"N">>
// CHECK: transformer.pair_rows: w has shape (N, 6), expected rows in heads of 4

// -----
%w = "test.op"() : () -> tensor<8x6xf32>
%0 = transformer.pair_rows %w {head_dim = 4 : i64, rotary_dim = 3 : i64, loc = "layers.0.attn.q"} : (tensor<8x6xf32>) -> tensor<8x6xf32>
// CHECK: transformer.pair_rows at layers.0.attn.q: rotary_dim is 3, expected an even number up to 4, the head size

// -----
%w = "test.op"() : () -> tensor<8x6xf32>
%0 = transformer.pair_rows %w {head_dim = 4 : i64, rotary_dim = 6 : i64} : (tensor<8x6xf32>) -> tensor<8x6xf32>
// CHECK: transformer.pair_rows: rotary_dim is 6, expected an even number up to 4, the head size

// -----
%w = "test.op"() : () -> tensor<8x6xf32>
%0 = transformer.pair_rows %w {head_dim = 4 : i64, rotary_dim = 2 : i64} : (tensor<8x6xf32>) -> tensor<6x8xf32>
// CHECK: transformer.pair_rows: result has shape (6, 8), expected (8, 6), the shape of w

// -----
%w, %g = "test.op"() : () -> (tensor<8x6xf32>, tensor<8xf32>)
%0 = transformer.scale_columns %w, %g : (tensor<8x6xf32>, tensor<8xf32>) -> tensor<8x6xf32>
// CHECK: transformer.scale_columns: gamma has shape (8,), expected (6,), the columns of w

// -----
%w, %g = "test.op"() : () -> (tensor<8x6xbf16>, tensor<6xf32>)
%0 = transformer.scale_columns %w, %g : (tensor<8x6xbf16>, tensor<6xf32>) -> tensor<8x6xbf16>
// CHECK: transformer.scale_columns: gamma has element type f32, expected bf16, that of w

// -----
%w, %g = "test.op"() : () -> (tensor<8x6xbf16>, tensor<6xbf16>)
%0 = transformer.scale_columns %w, %g : (tensor<8x6xbf16>, tensor<6xbf16>) -> tensor<8x6xf32>
// CHECK: transformer.scale_columns: result has element type f32, expected bf16, that of w

// -----
%w, %g = "test.op"() : () -> (tensor<6xbf16>, tensor<6xbf16>)
%0 = transformer.scale_columns %w, %g : (tensor<6xbf16>, tensor<6xbf16>) -> tensor<6xbf16>
// CHECK: transformer.scale_columns: w has shape (6,), expected 2 axes

// -----
%b, %w, %s = "test.op"() : () -> (tensor<6xf32>, tensor<8x6xf32>, tensor<6xf32>)
%0 = transformer.shift_bias %b, %w, %s : (tensor<6xf32>, tensor<8x6xf32>, tensor<6xf32>) -> tensor<6xf32>
// CHECK: transformer.shift_bias: bias has shape (6,), expected (8,), the outputs of w

// -----
%b, %w, %s = "test.op"() : () -> (tensor<8xf32>, tensor<8x6xf32>, tensor<8xf32>)
%0 = transformer.shift_bias %b, %w, %s : (tensor<8xf32>, tensor<8x6xf32>, tensor<8xf32>) -> tensor<8xf32>
// CHECK: transformer.shift_bias: beta has shape (8,), expected (6,), the columns of w

// -----
%b, %w, %s = "test.op"() : () -> (tensor<8xf16>, tensor<8x6xf32>, tensor<6xf32>)
%0 = transformer.shift_bias %b, %w, %s : (tensor<8xf16>, tensor<8x6xf32>, tensor<6xf32>) -> tensor<8xf16>
// CHECK: transformer.shift_bias: bias has element type f16, expected f32, that of w

// -----
%b, %w, %s = "test.op"() : () -> (tensor<8xf32>, tensor<8x6xf32>, tensor<6xf32>)
%0 = transformer.shift_bias %b, %w, %s : (tensor<8xf32>, tensor<8x6xf32>, tensor<6xf32>) -> tensor<6xf32>
// CHECK: transformer.shift_bias: result has shape (6,), expected (8,), the shape of bias

// -----
%0 = transformer.concat_rows  : () -> tensor<8x6xf32>
// CHECK: transformer.concat_rows: has no operands, expected one or more

// -----
%a, %b = "test.op"() : () -> (tensor<8x6xf32>, tensor<2x5xf32>)
%0 = transformer.concat_rows %a, %b : (tensor<8x6xf32>, tensor<2x5xf32>) -> tensor<10x6xf32>
// CHECK: transformer.concat_rows: w2 has shape (2, 5), expected (2, 6), rows like those of w1

// -----
%a, %b = "test.op"() : () -> (tensor<8x6xf32>, tensor<2x6xf16>)
%0 = transformer.concat_rows %a, %b : (tensor<8x6xf32>, tensor<2x6xf16>) -> tensor<10x6xf32>
// CHECK: transformer.concat_rows: w2 has element type f16, expected f32, that of w1

// -----
%a, %b = "test.op"() : () -> (tensor<8x6xf32>, tensor<2x6xf32>)
%0 = transformer.concat_rows %a, %b : (tensor<8x6xf32>, tensor<2x6xf32>) -> tensor<8x6xf32>
// CHECK: transformer.concat_rows: result has shape (8, 6), expected (10, 6), the rows of all operands

// -----
%a, %b = "test.op"() : () -> (tensor<8xf32>, tensor<f32>)
%0 = transformer.concat_rows %a, %b : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
// CHECK: transformer.concat_rows: w2 has shape (), expected a static number of rows

// -----
%w = "test.op"() : () -> tensor<8x6xf32>
%0 = transformer.transpose %w : (tensor<8x6xf32>) -> tensor<8x6xf32>
// CHECK: transformer.transpose: result has shape (8, 6), expected (6, 8), the axes of w exchanged

// -----
%w = "test.op"() : () -> tensor<8x6xf32>
%0 = transformer.transpose %w : (tensor<8x6xf32>) -> tensor<6x8xbf16>
// CHECK: transformer.transpose: result has element type bf16, expected f32, that of w

// -----
%w = "test.op"() : () -> tensor<8x6xf32>
%0 = transformer.slice_rows %w {start = 6 : i64, size = 3 : i64} : (tensor<8x6xf32>) -> tensor<3x6xf32>
// CHECK: transformer.slice_rows: w has shape (8, 6), expected rows 6 to 9

// -----
%w = "test.op"() : () -> tensor<8x6xf32>
%0 = transformer.slice_rows %w {start = 6 : i64, size = 2 : i64} : (tensor<8x6xf32>) -> tensor<3x6xf32>
// CHECK: transformer.slice_rows: result has shape (3, 6), expected (2, 6), the rows taken

// -----
%w = "test.op"() : () -> tensor<32x6xf32>
%0 = transformer.pair_rows %w {head_dim = 16 : i64, rotary_dim = 8 : i64} : (tensor<32x6xf32>) -> tensor<32x6xf32>
// CHECK: transformer.pair_rows: result lies in plain order, expected pairs of 8 in heads of 16, head_dim and rotary_dim

// -----
%w = "test.op"() : () -> tensor<32x6xf32, #transformer.layout<head = 16, paired = 8>>
%0 = transformer.pair_rows %w {head_dim = 16 : i64, rotary_dim = 8 : i64} : (tensor<32x6xf32, #transformer.layout<head = 16, paired = 8>>) -> tensor<32x6xf32, #transformer.layout<head = 16, paired = 8>>
// CHECK: transformer.pair_rows: w lies in pairs of 8 in heads of 16, expected plain order, which has no pairs yet

// -----
%w, %g = "test.op"() : () -> (tensor<32x6xf32, #transformer.layout<head = 16, paired = 8>>, tensor<6xf32>)
%0 = transformer.scale_columns %w, %g : (tensor<32x6xf32, #transformer.layout<head = 16, paired = 8>>, tensor<6xf32>) -> tensor<32x6xf32>
// CHECK: transformer.scale_columns: result lies in plain order, expected pairs of 8 in heads of 16, that of the rows of w

// -----
%b, %w, %g = "test.op"() : () -> (tensor<32xf32>, tensor<32x6xf32, #transformer.layout<head = 16, paired = 8>>, tensor<6xf32>)
%0 = transformer.shift_bias %b, %w, %g : (tensor<32xf32>, tensor<32x6xf32, #transformer.layout<head = 16, paired = 8>>, tensor<6xf32>) -> tensor<32xf32>
// CHECK: transformer.shift_bias: bias lies in plain order, expected pairs of 8 in heads of 16, that of the rows of w

// -----
%w, %v = "test.op"() : () -> (tensor<32x6xf32>, tensor<32x6xf32, #transformer.layout<head = 16, paired = 8>>)
%0 = transformer.concat_rows %w, %v : (tensor<32x6xf32>, tensor<32x6xf32, #transformer.layout<head = 16, paired = 8>>) -> tensor<64x6xf32>
// CHECK: transformer.concat_rows: w2 lies in pairs of 8 in heads of 16, expected plain order, in which rows of several weights can be one

// -----
%w = "test.op"() : () -> tensor<32x6xf32, #transformer.layout<head = 16, paired = 8>>
%0 = transformer.transpose %w : (tensor<32x6xf32, #transformer.layout<head = 16, paired = 8>>) -> tensor<6x32xf32>
// CHECK: transformer.transpose: w lies in pairs of 8 in heads of 16, expected plain order, in which columns can lie

// -----
%w = "test.op"() : () -> tensor<32x6xf32, #transformer.layout<head = 16, paired = 8>>
%0 = transformer.slice_rows %w {start = 16 : i64, size = 16 : i64} : (tensor<32x6xf32, #transformer.layout<head = 16, paired = 8>>) -> tensor<16x6xf32>
// CHECK: transformer.slice_rows: w lies in pairs of 8 in heads of 16, expected plain order, in which rows are counted

// -----
%w = "test.op"() : () -> tensor<24x8xf32>
%0 = transformer.slice_rows %w {groups = 5 : i64, size = 4 : i64, start = 0 : i64} : (tensor<24x8xf32>) -> tensor<20x8xf32>
// CHECK: transformer.slice_rows: w has shape (24, 8), expected rows in 5 equal groups

// -----
%w = "test.op"() : () -> tensor<24x8xf32>
%0 = transformer.slice_rows %w {groups = 2 : i64, size = 4 : i64, start = 10 : i64} : (tensor<24x8xf32>) -> tensor<8x8xf32>
// CHECK: transformer.slice_rows: w has shape (24, 8), expected rows 10 to 14 of each group

// -----
%w = "test.op"() : () -> tensor<3x4xf32>
%0 = transformer.flatten %w : (tensor<3x4xf32>) -> tensor<4xf32>
// CHECK: transformer.flatten: result has shape (4,), expected (12,), the numbers of w
