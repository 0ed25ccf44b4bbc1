// RUN: lamella-opt %s | lamella-opt | filecheck %s

%q, %positions, %s, %p = "test.op"() : () -> (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<3x64xf32>, tensor<3xi32>)
// CHECK: %0 = transformer.rope %q, %positions {loc = "layers.0.attn.rope_q", heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 8 : i64, style = "half", theta = 1.000000e+04 : f64, scaling = {factor = 2.000000e+00 : f64, rope_type = "linear"}} : (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>) -> tensor<?x64xbf16, #transformer.dims<"N">>
%0 = transformer.rope %q, %positions {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 8 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {factor = 2.0 : f64, rope_type = "linear"}, loc = "layers.0.attn.rope_q"} : (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>) -> tensor<?x64xbf16, #transformer.dims<"N">>
// CHECK-NEXT: %table = transformer.rope_table {length = 32 : i64, rotary_dim = 16 : i64, theta = 5.000000e+05 : f64, scaling = {}} : tensor<32x16xf32>
%table = transformer.rope_table {length = 32 : i64, rotary_dim = 16 : i64, theta = 5.0e+05 : f64, scaling = {}} : tensor<32x16xf32>
// CHECK-NEXT: %1 = transformer.rotate %s, %p, %table {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 16 : i64, style = "paired"} : (tensor<3x64xf32>, tensor<3xi32>, tensor<32x16xf32>) -> tensor<3x64xf32>
%1 = transformer.rotate %s, %p, %table {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 16 : i64, style = "paired"} : (tensor<3x64xf32>, tensor<3xi32>, tensor<32x16xf32>) -> tensor<3x64xf32>

// LongRoPE: the lengths of texts choose between two sets of frequencies, in a table of twice as many rows.
%y, %at, %lengths = "test.op"() : () -> (tensor<3x4xf32>, tensor<3xi32>, tensor<3xi32>)
// CHECK: %{{.*}} = transformer.rope %y, %at, %lengths {
%long = transformer.rope %y, %at, %lengths {heads = 2 : i64, head_dim = 2 : i64, rotary_dim = 2 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {factor = 2.0 : f64, long_factor = [4.0 : f64], original_max_position_embeddings = 16 : i64, rope_type = "longrope", short_factor = [1.0 : f64]}} : (tensor<3x4xf32>, tensor<3xi32>, tensor<3xi32>) -> tensor<3x4xf32>
// CHECK: transformer.rope_table {length = 16 : i64, {{.*}} : tensor<16x2xf32>
%short_table = transformer.rope_table {length = 16 : i64, rotary_dim = 2 : i64, theta = 1.0e+04 : f64, scaling = {factor = 2.0 : f64, long_factor = [4.0 : f64], original_max_position_embeddings = 16 : i64, rope_type = "longrope", short_factor = [1.0 : f64]}} : tensor<16x2xf32>
// CHECK: transformer.rope_table {length = 17 : i64, {{.*}} : tensor<34x2xf32>
%both_tables = transformer.rope_table {length = 17 : i64, rotary_dim = 2 : i64, theta = 1.0e+04 : f64, scaling = {factor = 2.0 : f64, long_factor = [4.0 : f64], original_max_position_embeddings = 16 : i64, rope_type = "longrope", short_factor = [1.0 : f64]}} : tensor<34x2xf32>
// CHECK: %{{.*}} = transformer.rope_row %at, %lengths {length = 17 : i64, original = 16 : i64} : (tensor<3xi32>, tensor<3xi32>) -> tensor<3xi32>
%row = transformer.rope_row %at, %lengths {length = 17 : i64, original = 16 : i64} : (tensor<3xi32>, tensor<3xi32>) -> tensor<3xi32>
