// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%x, %p = "test.op"() : () -> (tensor<?x60xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>)
%0 = transformer.rope %x, %p {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 16 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {}, loc = "layers.0.attn.rope_q"} : (tensor<?x60xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>) -> tensor<?x60xf32, #transformer.dims<"N">>
// CHECK: transformer.rope at layers.0.attn.rope_q: x has shape (N, 60), expected (N, 64), heads times head_dim

// -----
%x, %p = "test.op"() : () -> (tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"R">>)
%0 = transformer.rope %x, %p {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 16 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {}} : (tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"R">>) -> tensor<?x64xf32, #transformer.dims<"N">>
// CHECK: transformer.rope: positions has shape (R,), expected (N,), the rows of x

// -----
%x, %p = "test.op"() : () -> (tensor<2x64xf32>, tensor<2xi32>)
%0 = transformer.rope %x, %p {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 7 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {}} : (tensor<2x64xf32>, tensor<2xi32>) -> tensor<2x64xf32>
// CHECK: transformer.rope: rotary_dim is 7, expected an even number from 2 to head_dim = 16

// -----
%x, %p = "test.op"() : () -> (tensor<2x64xf32>, tensor<2xi32>)
%0 = transformer.rope %x, %p {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 8 : i64, style = "quarter", theta = 1.0e+04 : f64, scaling = {}} : (tensor<2x64xf32>, tensor<2xi32>) -> tensor<2x64xf32>
// CHECK: transformer.rope: style is "quarter", expected "half" or "paired"

// -----
%x, %p, %t = "test.op"() : () -> (tensor<2x64xf32>, tensor<2xi32>, tensor<32x8xf32>)
%0 = transformer.rotate %x, %p, %t {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 16 : i64, style = "half"} : (tensor<2x64xf32>, tensor<2xi32>, tensor<32x8xf32>) -> tensor<2x64xf32>
// CHECK: transformer.rotate: table has shape (32, 8), expected (32, 16), rotary_dim

// -----
%x, %p, %t = "test.op"() : () -> (tensor<2x64xf32>, tensor<2xi32>, tensor<32x16xf32>)
%0 = transformer.rotate %x, %p, %t {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 16 : i64, style = "half"} : (tensor<2x64xf32>, tensor<2xi32>, tensor<32x16xf32>) -> tensor<2x64xf16>
// CHECK: transformer.rotate: result has element type f16, expected f32, that of x

// -----
%0 = transformer.rope_table {length = 32 : i64, rotary_dim = 16 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x8xf32>
// CHECK: transformer.rope_table: result has shape (32, 8), expected (32, 16), length and rotary_dim

// -----
%x, %p, %t = "test.op"() : () -> (tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>, tensor<2xi32>, tensor<32x8xf32>)
%0 = transformer.rotate %x, %p, %t {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 8 : i64, style = "half"} : (tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>, tensor<2xi32>, tensor<32x8xf32>) -> tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>
// CHECK: transformer.rotate: x lies in pairs of 8 in heads of 16, expected plain order, for style "half"

// -----
%x, %p, %t = "test.op"() : () -> (tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>, tensor<2xi32>, tensor<32x16xf32>)
%0 = transformer.rotate %x, %p, %t {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 16 : i64, style = "paired"} : (tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>, tensor<2xi32>, tensor<32x16xf32>) -> tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>
// CHECK: transformer.rotate: x lies in pairs of 8 in heads of 16, expected plain order or pairs of 16 in heads of 16, for style "paired"

// -----
%x, %p, %t = "test.op"() : () -> (tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>, tensor<2xi32>, tensor<32x8xf32>)
%0 = transformer.rotate %x, %p, %t {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 8 : i64, style = "paired"} : (tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>, tensor<2xi32>, tensor<32x8xf32>) -> tensor<2x64xf32>
// CHECK: transformer.rotate: result lies in plain order, expected pairs of 8 in heads of 16, that of x

// -----
%y, %at = "test.op"() : () -> (tensor<3x4xf32>, tensor<3xi32>)
%long = transformer.rope %y, %at {heads = 2 : i64, head_dim = 2 : i64, rotary_dim = 2 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {factor = 2.0 : f64, long_factor = [4.0 : f64], original_max_position_embeddings = 16 : i64, rope_type = "longrope", short_factor = [1.0 : f64]}, loc = "layers.0.attn.rope_q"} : (tensor<3x4xf32>, tensor<3xi32>) -> tensor<3x4xf32>
// CHECK: transformer.rope at layers.0.attn.rope_q: has no lengths, expected them where scaling is longrope, and nowhere else

// -----
%y, %at = "test.op"() : () -> (tensor<3x4xf32>, tensor<3xi32>)
%long = transformer.rope %y, %at, %at {heads = 2 : i64, head_dim = 2 : i64, rotary_dim = 2 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {}} : (tensor<3x4xf32>, tensor<3xi32>, tensor<3xi32>) -> tensor<3x4xf32>
// CHECK: transformer.rope: has lengths, expected them where scaling is longrope, and nowhere else

// -----
%table = transformer.rope_table {length = 17 : i64, rotary_dim = 2 : i64, theta = 1.0e+04 : f64, scaling = {factor = 2.0 : f64, long_factor = [4.0 : f64], original_max_position_embeddings = 16 : i64, rope_type = "longrope", short_factor = [1.0 : f64]}} : tensor<17x2xf32>
// CHECK: transformer.rope_table: result has shape (17, 2), expected (34, 2), length and rotary_dim

// -----
%table = transformer.rope_table {length = 17 : i64, rotary_dim = 2 : i64, theta = 1.0e+04 : f64, scaling = {rope_type = "longrope"}} : tensor<17x2xf32>
// CHECK: a scaling of longrope has original_max_position_embeddings None, expected a length

// -----
%at, %lengths = "test.op"() : () -> (tensor<3xi32>, tensor<4xi32>)
%row = transformer.rope_row %at, %lengths {length = 17 : i64, original = 16 : i64} : (tensor<3xi32>, tensor<4xi32>) -> tensor<3xi32>
// CHECK: transformer.rope_row: lengths has shape (4,), expected (3,), the shape of positions
