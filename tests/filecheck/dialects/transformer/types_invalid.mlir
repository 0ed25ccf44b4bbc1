// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

"test.op"() {type = !transformer.kv_cache<8 x 64 x i32, block = 16, paired = 0>} : () -> ()
// CHECK: transformer.kv_cache: element type is i32, expected f32, f16, bf16 or f8E4M3FN

// -----
"test.op"() {type = !transformer.kv_cache<8 x 64 x f32, block = 0, paired = 0>} : () -> ()
// CHECK: transformer.kv_cache: heads, head size and block are positive, got

// -----
"test.op"() {type = !transformer.kv_cache<8 x 64 x f32, block = 16, paired = 66>} : () -> ()
// CHECK: transformer.kv_cache: paired is 66, expected an even number up to 64

// -----
"test.op"() {type = !transformer.kv_cache<8 x 64 x f32, block = 16>} : () -> ()
// CHECK: types_invalid.mlir:15:67: Expected ','

// -----
"test.op"() {type = tensor<?xf32, #transformer.dims<N>>} : () -> ()
// CHECK: types_invalid.mlir:19:{{[0-9]+}}: string literal expected

// -----
"test.op"() {type = tensor<32xf32, #transformer.layout<head = 16, paired = 18>>} : () -> ()
// CHECK: transformer.layout: paired is 18, expected an even number up to head = 16

// -----
"test.op"() {type = tensor<32xf32, #transformer.layout<head = 16, paired = 0>>} : () -> ()
// CHECK: transformer.layout: paired is 0, expected an even number up to head = 16

// -----
"test.op"() {type = tensor<?xf32, #transformer.layout<"N", head = 16, paired = 8>>} : () -> ()
// CHECK: types_invalid.mlir:31:{{[0-9]+}}: Expected 'head'
