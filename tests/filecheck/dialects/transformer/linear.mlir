// RUN: lamella-opt %s | lamella-opt | filecheck %s

%x, %w, %b = "test.op"() : () -> (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<96x64xbf16>, tensor<96xbf16>)
// CHECK: %0 = transformer.linear %x, %w {loc = "layers.0.attn.q"} : (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<96x64xbf16>) -> tensor<?x96xbf16, #transformer.dims<"N">>
%0 = transformer.linear %x, %w {loc = "layers.0.attn.q"} : (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<96x64xbf16>) -> tensor<?x96xbf16, #transformer.dims<"N">>
// CHECK-NEXT: %1 = transformer.linear %x, %w, %b : (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<96x64xbf16>, tensor<96xbf16>) -> tensor<?x96xf32, #transformer.dims<"N">>
%1 = transformer.linear %x, %w, %b : (tensor<?x64xbf16, #transformer.dims<"N">>, tensor<96x64xbf16>, tensor<96xbf16>) -> tensor<?x96xf32, #transformer.dims<"N">>
// CHECK-NEXT: %2 = transformer.slice_columns %1 {loc = "layers.0.attn.k", start = 64 : i64, size = 16 : i64} : (tensor<?x96xf32, #transformer.dims<"N">>) -> tensor<?x16xf32, #transformer.dims<"N">>
%2 = transformer.slice_columns %1 {loc = "layers.0.attn.k", start = 64 : i64, size = 16 : i64} : (tensor<?x96xf32, #transformer.dims<"N">>) -> tensor<?x16xf32, #transformer.dims<"N">>

// The rows of a weight are the columns of the product, in the same order.
%ordered, %ordered_bias, %rows = "test.op"() : () -> (tensor<64x8xf32, #transformer.layout<head = 16, paired = 8>>, tensor<64xf32, #transformer.layout<head = 16, paired = 8>>, tensor<?x8xf32, #transformer.dims<"N">>)
// CHECK: %product = transformer.linear %rows, %ordered, %ordered_bias : (tensor<?x8xf32, #transformer.dims<"N">>, tensor<64x8xf32, #transformer.layout<head = 16, paired = 8>>, tensor<64xf32, #transformer.layout<head = 16, paired = 8>>) -> tensor<?x64xf32, #transformer.layout<dims = ["N"], head = 16, paired = 8>>
%product = transformer.linear %rows, %ordered, %ordered_bias : (tensor<?x8xf32, #transformer.dims<"N">>, tensor<64x8xf32, #transformer.layout<head = 16, paired = 8>>, tensor<64xf32, #transformer.layout<head = 16, paired = 8>>) -> tensor<?x64xf32, #transformer.layout<dims = ["N"], head = 16, paired = 8>>
