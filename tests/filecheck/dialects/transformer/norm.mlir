// RUN: lamella-opt %s | lamella-opt | filecheck %s

%x, %w, %s, %v = "test.op"() : () -> (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<64xbf16>, tensor<3x64xf32>, tensor<64xf32>)
// CHECK: %0 = transformer.rms_norm %x, %w {loc = "final_norm", eps = 1.000000e-05 : f64} : (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<64xbf16>) -> tensor<?x64xbf16, #transformer.dims<"N">>
%0 = transformer.rms_norm %x, %w {eps = 1.0e-05 : f64, loc = "final_norm"} : (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<64xbf16>) -> tensor<?x64xbf16, #transformer.dims<"N">>
// CHECK-NEXT: %1 = transformer.rms_norm %s, %v {eps = 1.2345678901234567e-06 : f64} : (tensor<3x64xf32>, tensor<64xf32>) -> tensor<3x64xf32>
%1 = transformer.rms_norm %s, %v {eps = 1.2345678901234567e-06 : f64} : (tensor<3x64xf32>, tensor<64xf32>) -> tensor<3x64xf32>
// CHECK-NEXT: %2 = transformer.rms_norm %s {eps = 1.000000e-05 : f64} : (tensor<3x64xf32>) -> tensor<3x64xf32>
%2 = transformer.rms_norm %s {eps = 1.0e-05 : f64} : (tensor<3x64xf32>) -> tensor<3x64xf32>
// CHECK-NEXT: %3 = transformer.rms_norm %s, %v {eps = 1.000000e-05 : f64, offset = 1.000000e+00 : f64} : (tensor<3x64xf32>, tensor<64xf32>) -> tensor<3x64xf32>
%3 = transformer.rms_norm %s, %v {eps = 1.0e-05 : f64, offset = 1.0 : f64} : (tensor<3x64xf32>, tensor<64xf32>) -> tensor<3x64xf32>
// CHECK-NEXT: %4 = transformer.layer_norm %s {eps = 1.000000e-05 : f64} : (tensor<3x64xf32>) -> tensor<3x64xf32>
%4 = transformer.layer_norm %s {eps = 1.0e-05 : f64} : (tensor<3x64xf32>) -> tensor<3x64xf32>
// CHECK-NEXT: %5 = transformer.layer_norm %s, %v {eps = 1.000000e-05 : f64} : (tensor<3x64xf32>, tensor<64xf32>) -> tensor<3x64xf32>
%5 = transformer.layer_norm %s, %v {eps = 1.0e-05 : f64} : (tensor<3x64xf32>, tensor<64xf32>) -> tensor<3x64xf32>
// CHECK-NEXT: %6 = transformer.layer_norm %s, %v, %v {loc = "layers.3.attn_norm", eps = 1.000000e-05 : f64} : (tensor<3x64xf32>, tensor<64xf32>, tensor<64xf32>) -> tensor<3x64xf32>
%6 = transformer.layer_norm %s, %v, %v {eps = 1.0e-05 : f64, loc = "layers.3.attn_norm"} : (tensor<3x64xf32>, tensor<64xf32>, tensor<64xf32>) -> tensor<3x64xf32>
// One norm a head: of 4 heads of 16, with a weight for all heads, and with a weight for each.
%h = "test.op"() : () -> tensor<16xf32>
// CHECK: %{{.*}} = transformer.rms_norm %s, %h {eps = 1.000000e-05 : f64, heads = 4 : i64} : (tensor<3x64xf32>, tensor<16xf32>) -> tensor<3x64xf32>
%7 = transformer.rms_norm %s, %h {eps = 1.0e-05 : f64, heads = 4 : i64} : (tensor<3x64xf32>, tensor<16xf32>) -> tensor<3x64xf32>
// CHECK-NEXT: %{{.*}} = transformer.layer_norm %s, %v {eps = 1.000000e-05 : f64, heads = 4 : i64} : (tensor<3x64xf32>, tensor<64xf32>) -> tensor<3x64xf32>
%8 = transformer.layer_norm %s, %v {eps = 1.0e-05 : f64, heads = 4 : i64} : (tensor<3x64xf32>, tensor<64xf32>) -> tensor<3x64xf32>
