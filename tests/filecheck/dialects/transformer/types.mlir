// RUN: lamella-opt %s | lamella-opt | filecheck %s

// CHECK: %0 = "test.op"() : () -> tensor<?x8x?xf32, #transformer.dims<"N", "B+1">>
%0 = "test.op"() : () -> tensor<?x8x?xf32, #transformer.dims<"N", "B+1">>
// CHECK-NEXT: %1 = "test.op"() : () -> !transformer.kv_cache<8 x 64 x bf16, block = 16, paired = 32>
%1 = "test.op"() : () -> !transformer.kv_cache<8 x 64 x bf16, block = 16, paired = 32>
// The order of features, with and without named dimensions beside it.
// CHECK-NEXT: %2 = "test.op"() : () -> tensor<64x8xf32, #transformer.layout<head = 16, paired = 8>>
%2 = "test.op"() : () -> tensor<64x8xf32, #transformer.layout<head = 16, paired = 8>>
// CHECK-NEXT: %3 = "test.op"() : () -> tensor<?x?x64xbf16, #transformer.layout<dims = ["B", "N"], head = 16, paired = 8>>
%3 = "test.op"() : () -> tensor<?x?x64xbf16, #transformer.layout<dims = ["B", "N"], head = 16, paired = 8>>
