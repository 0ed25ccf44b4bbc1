// RUN: lamella-opt %s | lamella-opt | filecheck %s

%x, %y = "test.op"() : () -> (tensor<?x6xf16, #transformer.dims<"N">>, tensor<?x6xf16, #transformer.dims<"N">>)
// CHECK: %0 = transformer.silu %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%0 = transformer.silu %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
// CHECK-NEXT: %1 = transformer.gelu %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%1 = transformer.gelu %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
// CHECK-NEXT: %2 = transformer.gelu_tanh %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%2 = transformer.gelu_tanh %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
// CHECK-NEXT: %3 = transformer.relu %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%3 = transformer.relu %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
// CHECK-NEXT: %4 = transformer.tanh %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%4 = transformer.tanh %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
// CHECK-NEXT: %5 = transformer.sigmoid %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%5 = transformer.sigmoid %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
// CHECK-NEXT: %6 = transformer.exp %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%6 = transformer.exp %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
// CHECK-NEXT: %7 = transformer.sqrt %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%7 = transformer.sqrt %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
// CHECK-NEXT: %8 = transformer.neg %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%8 = transformer.neg %x : (tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
// CHECK-NEXT: %9 = transformer.add %x, %y {loc = "layers.0.add"} : (tensor<?x6xf16, #transformer.dims<"N">>, tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%9 = transformer.add %x, %y {loc = "layers.0.add"} : (tensor<?x6xf16, #transformer.dims<"N">>, tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
// CHECK-NEXT: %10 = transformer.sub %x, %y {loc = "layers.0.sub"} : (tensor<?x6xf16, #transformer.dims<"N">>, tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%10 = transformer.sub %x, %y {loc = "layers.0.sub"} : (tensor<?x6xf16, #transformer.dims<"N">>, tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
// CHECK-NEXT: %11 = transformer.mul %x, %y {loc = "layers.0.mul"} : (tensor<?x6xf16, #transformer.dims<"N">>, tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%11 = transformer.mul %x, %y {loc = "layers.0.mul"} : (tensor<?x6xf16, #transformer.dims<"N">>, tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
// CHECK-NEXT: %12 = transformer.div %x, %y {loc = "layers.0.div"} : (tensor<?x6xf16, #transformer.dims<"N">>, tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%12 = transformer.div %x, %y {loc = "layers.0.div"} : (tensor<?x6xf16, #transformer.dims<"N">>, tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
// CHECK-NEXT: %13 = transformer.maximum %x, %y {loc = "layers.0.maximum"} : (tensor<?x6xf16, #transformer.dims<"N">>, tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%13 = transformer.maximum %x, %y {loc = "layers.0.maximum"} : (tensor<?x6xf16, #transformer.dims<"N">>, tensor<?x6xf16, #transformer.dims<"N">>) -> tensor<?x6xf16, #transformer.dims<"N">>
%scaled = "test.op"() : () -> tensor<3x64xbf16>
// CHECK: %{{.*}} = transformer.scale %scaled {loc = "embed.scale", factor = 1.250000e+01 : f64} : (tensor<3x64xbf16>) -> tensor<3x64xbf16>
%times = transformer.scale %scaled {loc = "embed.scale", factor = 12.5 : f64} : (tensor<3x64xbf16>) -> tensor<3x64xbf16>

%rows, %factor = "test.op"() : () -> (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<?x1xbf16, #transformer.dims<"N">>)
// CHECK: %{{.*}} = transformer.scale_rows %rows, %factor {loc = "layers.0.ffn.shared"} : (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<?x1xbf16, #transformer.dims<"N">>) -> tensor<?x64xbf16, #transformer.dims<"N">>
%scaled_rows = transformer.scale_rows %rows, %factor {loc = "layers.0.ffn.shared"} : (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<?x1xbf16, #transformer.dims<"N">>) -> tensor<?x64xbf16, #transformer.dims<"N">>
