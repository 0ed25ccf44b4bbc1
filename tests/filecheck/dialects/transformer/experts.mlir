// RUN: lamella-opt %s | lamella-opt | filecheck %s

%x, %logits, %w, %d = "test.op"() : () -> (tensor<?x8xbf16, #transformer.dims<"N">>, tensor<?x5xbf16, #transformer.dims<"N">>, tensor<20x8xbf16>, tensor<40x4xbf16>)
// CHECK: %weights, %chosen = transformer.route %logits {loc = "route", normalized = true, top_k = 2 : i64} : (tensor<?x5xbf16, #transformer.dims<"N">>) -> (tensor<?x2xf32, #transformer.dims<"N">>, tensor<?x2xi32, #transformer.dims<"N">>)
%weights, %chosen = transformer.route %logits {loc = "route", normalized = true, top_k = 2 : i64} : (tensor<?x5xbf16, #transformer.dims<"N">>) -> (tensor<?x2xf32, #transformer.dims<"N">>, tensor<?x2xi32, #transformer.dims<"N">>)
// CHECK-NEXT: %y = transformer.experts %x, %chosen, %weights, %w, %w, %d {activation = "silu", experts = 5 : i64} :
%y = transformer.experts %x, %chosen, %weights, %w, %w, %d {activation = "silu", experts = 5 : i64} : (tensor<?x8xbf16, #transformer.dims<"N">>, tensor<?x2xi32, #transformer.dims<"N">>, tensor<?x2xf32, #transformer.dims<"N">>, tensor<20x8xbf16>, tensor<20x8xbf16>, tensor<40x4xbf16>) -> tensor<?x8xbf16, #transformer.dims<"N">>
