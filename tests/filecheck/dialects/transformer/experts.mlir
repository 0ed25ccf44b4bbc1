// RUN: lamella-opt %s | lamella-opt | filecheck %s

%x, %logits, %w, %d = "test.op"() : () -> (tensor<?x8xbf16, #transformer.dims<"N">>, tensor<?x5xbf16, #transformer.dims<"N">>, tensor<20x8xbf16>, tensor<40x4xbf16>)
// CHECK: %weights, %chosen = transformer.route %logits {loc = "route", normalized = true, top_k = 2 : i64} : (tensor<?x5xbf16, #transformer.dims<"N">>) -> (tensor<?x2xf32, #transformer.dims<"N">>, tensor<?x2xi32, #transformer.dims<"N">>)
%weights, %chosen = transformer.route %logits {loc = "route", normalized = true, top_k = 2 : i64} : (tensor<?x5xbf16, #transformer.dims<"N">>) -> (tensor<?x2xf32, #transformer.dims<"N">>, tensor<?x2xi32, #transformer.dims<"N">>)
// CHECK-NEXT: %y = transformer.experts %x, %chosen, %weights, %w, %w, %d {activation = "silu", experts = 5 : i64} :
%y = transformer.experts %x, %chosen, %weights, %w, %w, %d {activation = "silu", experts = 5 : i64} : (tensor<?x8xbf16, #transformer.dims<"N">>, tensor<?x2xi32, #transformer.dims<"N">>, tensor<?x2xf32, #transformer.dims<"N">>, tensor<20x8xbf16>, tensor<20x8xbf16>, tensor<40x4xbf16>) -> tensor<?x8xbf16, #transformer.dims<"N">>

// Packed experts: what unpacks them is f32, beside x in bf16.
%p, %s, %m = "test.op"() : () -> (tensor<20x1xi32>, tensor<20x1xbf16>, tensor<20x1xbf16>)
// CHECK: %g = transformer.dequantize %p, %s, %m {packing = #transformer.packing<int4, group = 8>}
%g = transformer.dequantize %p, %s, %m {packing = #transformer.packing<int4, group = 8>} : (tensor<20x1xi32>, tensor<20x1xbf16>, tensor<20x1xbf16>) -> tensor<20x8xf32>
// CHECK-NEXT: %z = transformer.experts %x, %chosen, %weights, %g, %w, %d {activation = "silu", experts = 5 : i64} : ({{.*}}, tensor<20x8xf32>, tensor<20x8xbf16>, tensor<40x4xbf16>)
%z = transformer.experts %x, %chosen, %weights, %g, %w, %d {activation = "silu", experts = 5 : i64} : (tensor<?x8xbf16, #transformer.dims<"N">>, tensor<?x2xi32, #transformer.dims<"N">>, tensor<?x2xf32, #transformer.dims<"N">>, tensor<20x8xf32>, tensor<20x8xbf16>, tensor<40x4xbf16>) -> tensor<?x8xbf16, #transformer.dims<"N">>
