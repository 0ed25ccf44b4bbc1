// RUN: lamella-opt %s | lamella-opt | filecheck %s

// CHECK: %0 = "test.op"() : () -> tensor<?x8x?xf32, #transformer.dims<"N", "B+1">>
%0 = "test.op"() : () -> tensor<?x8x?xf32, #transformer.dims<"N", "B+1">>
// CHECK-NEXT: %1 = "test.op"() : () -> !transformer.kv_cache<8 x 64 x bf16, block = 16, paired = 32>
%1 = "test.op"() : () -> !transformer.kv_cache<8 x 64 x bf16, block = 16, paired = 32>
