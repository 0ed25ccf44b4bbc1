// RUN: lamella-opt %s | lamella-opt | filecheck %s

%q, %positions, %s, %p = "test.op"() : () -> (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<3x64xf32>, tensor<3xi32>)
// CHECK: %0 = transformer.rope %q, %positions {loc = "layers.0.attn.rope_q", heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 8 : i64, style = "half", theta = 1.000000e+04 : f64, scaling = {factor = 2.000000e+00 : f64, rope_type = "linear"}} : (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>) -> tensor<?x64xbf16, #transformer.dims<"N">>
%0 = transformer.rope %q, %positions {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 8 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {factor = 2.0 : f64, rope_type = "linear"}, loc = "layers.0.attn.rope_q"} : (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>) -> tensor<?x64xbf16, #transformer.dims<"N">>
// CHECK-NEXT: %table = transformer.rope_table {length = 32 : i64, rotary_dim = 16 : i64, theta = 5.000000e+05 : f64, scaling = {}} : tensor<32x16xf32>
%table = transformer.rope_table {length = 32 : i64, rotary_dim = 16 : i64, theta = 5.0e+05 : f64, scaling = {}} : tensor<32x16xf32>
// CHECK-NEXT: %1 = transformer.rotate %s, %p, %table {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 16 : i64, style = "paired"} : (tensor<3x64xf32>, tensor<3xi32>, tensor<32x16xf32>) -> tensor<3x64xf32>
%1 = transformer.rotate %s, %p, %table {heads = 4 : i64, head_dim = 16 : i64, rotary_dim = 16 : i64, style = "paired"} : (tensor<3x64xf32>, tensor<3xi32>, tensor<32x16xf32>) -> tensor<3x64xf32>
