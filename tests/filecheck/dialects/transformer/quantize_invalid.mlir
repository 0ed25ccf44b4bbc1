// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%p, %s = "test.op"() : () -> (tensor<8x8xi32>, tensor<8x2xf32>)
%d = transformer.dequantize %p, %s {packing = #transformer.packing<int4, group = 32>, loc = "layers.0.attn.q"} : (tensor<8x8xi32>, tensor<8x2xf32>) -> tensor<8x32xf32>
// CHECK: transformer.dequantize at layers.0.attn.q: words have shape (8, 8), expected (8, 4), 8 columns of (8, 32) a word

// -----
%p, %s = "test.op"() : () -> (tensor<8x8xi32>, tensor<8x4xf32>)
%d = transformer.dequantize %p, %s {packing = #transformer.packing<int4, group = 32>} : (tensor<8x8xi32>, tensor<8x4xf32>) -> tensor<8x64xf32>
// CHECK: transformer.dequantize: scales have shape (8, 4), expected (8, 2), one for 32 columns

// -----
%p, %s, %m = "test.op"() : () -> (tensor<8x8xi32>, tensor<8x2xf32>, tensor<8x1xf16>)
%d = transformer.dequantize %p, %s, %m {packing = #transformer.packing<int4, group = 32>} : (tensor<8x8xi32>, tensor<8x2xf32>, tensor<8x1xf16>) -> tensor<8x64xf32>
// CHECK: transformer.dequantize: mins has shape (8, 1), expected (8, 2), the shape of scales

// -----
%w = "test.op"() : () -> tensor<8x60xf32>
%s = transformer.group_scales %w {packing = #transformer.packing<int8, group = 32>} : (tensor<8x60xf32>) -> tensor<8x1xf32>
// CHECK: transformer.group_scales: 60 columns are no whole groups of 32 in words of 4

// -----
%w, %s, %m = "test.op"() : () -> (tensor<8x64xf32>, tensor<8x2xf32>, tensor<8x2xf16>)
%m2 = transformer.group_mins %w, %s {packing = #transformer.packing<int8, group = 32>} : (tensor<8x64xf32>, tensor<8x2xf32>) -> tensor<8x1xf32>
// CHECK: transformer.group_mins: result has shape (8, 1), expected (8, 2), the shape of scales

// -----
%w, %s = "test.op"() : () -> (tensor<8x64xf32>, tensor<8x2xf32>)
%p = transformer.pack_weight %w, %s {packing = #transformer.packing<int8, group = 32>} : (tensor<8x64xf32>, tensor<8x2xf32>) -> tensor<8x8xi32>
// CHECK: transformer.pack_weight: words have shape (8, 8), expected (8, 16), 4 columns of (8, 64) a word

// -----
"test.op"() {packing = #transformer.packing<int3, group = 32>} : () -> ()
// CHECK: transformer.packing: kind is int3, expected int4 or int8 or fp8

// -----
"test.op"() {packing = #transformer.packing<int4, group = 12>} : () -> ()
// CHECK: transformer.packing: group is 12, expected whole words of 8

// -----
%p, %s = "test.op"() : () -> (tensor<8x64xf8E4M3FN>, tensor<8x2xf32>)
%d = transformer.dequantize %p, %s {packing = #transformer.packing<fp8, group = 32>} : (tensor<8x64xf8E4M3FN>, tensor<8x2xf32>) -> tensor<8x64xf32>
// CHECK: transformer.dequantize: group is 32, expected 64: fp8 has one scale a row

// -----
%p, %s = "test.op"() : () -> (tensor<8x64xf8E4M3FN>, tensor<8x1xf32>)
%d = transformer.dequantize %p, %s {packing = #transformer.packing<int8, group = 64>} : (tensor<8x64xf8E4M3FN>, tensor<8x1xf32>) -> tensor<8x64xf32>
// CHECK: transformer.dequantize: words have elements f8E4M3FN, expected i32 for int8

// -----
%p, %s, %m = "test.op"() : () -> (tensor<8x64xf8E4M3FN>, tensor<8x1xf32>, tensor<8x1xf32>)
%d = transformer.dequantize %p, %s, %m {packing = #transformer.packing<fp8, group = 64>} : (tensor<8x64xf8E4M3FN>, tensor<8x1xf32>, tensor<8x1xf32>) -> tensor<8x64xf32>
// CHECK: transformer.dequantize: has mins, expected none: fp8 has a sign

// -----
%p, %s = "test.op"() : () -> (tensor<8x16xi32>, tensor<8x2xf32>)
%d = transformer.dequantize %p, %s {packing = #transformer.packing<int4, group = 64>, by_group = 1 : i64} : (tensor<8x16xi32>, tensor<8x2xf32>) -> tensor<8x128xf32>
// CHECK: transformer.dequantize: scales have shape (8, 2), expected (2, 8), one for 64 columns

// -----
%p, %s = "test.op"() : () -> (tensor<8x16xi32>, tensor<8x2xf32>)
%d = transformer.dequantize %p, %s {packing = #transformer.packing<int4, group = 64>, by_group = 4 : i64} : (tensor<8x16xi32>, tensor<8x2xf32>) -> tensor<8x128xf32>
// CHECK: transformer.dequantize: by_group is 4, expected a divisor of the 2 groups of a row

// -----
%s = "test.op"() : () -> tensor<8x2xf32>
%t = transformer.by_group %s {together = 3 : i64} : (tensor<8x2xf32>) -> tensor<8x2xf32>
// CHECK: transformer.by_group: together is 3, expected a divisor of 2 groups

// -----
%s = "test.op"() : () -> tensor<8x2xf32>
%t = transformer.by_group %s : (tensor<8x2xf32>) -> tensor<8x2xf32>
// CHECK: transformer.by_group: result has shape (8, 2), expected (2, 8), that of 1 groups side by side

// -----
%p, %s = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xi8>)
%w = transformer.dequantize %p, %s {packing = #transformer.packing<int4, group = 32>} : (tensor<8x32xi32>, tensor<8x8xi8>) -> tensor<8x256xf32>
// CHECK: transformer.dequantize: scales have elements i8, expected floats, as there are no super_scales

// -----
%p, %s, %a = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xf16>, tensor<8x2xf16>)
%w = transformer.dequantize %p, %s super %a {packing = #transformer.packing<int4, group = 32>} : (tensor<8x32xi32>, tensor<8x8xf16> super tensor<8x2xf16>) -> tensor<8x256xf32>
// CHECK: transformer.dequantize: scales have elements f16, expected i8, which super_scales multiply

// -----
%p, %s, %a = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x3xf16>)
%w = transformer.dequantize %p, %s super %a {packing = #transformer.packing<int4, group = 32>} : (tensor<8x32xi32>, tensor<8x8xi8> super tensor<8x3xf16>) -> tensor<8x256xf32>
// CHECK: transformer.dequantize: super_scales have shape (8, 3), expected those of 8 rows, each for whole groups of 8

// -----
%p, %s, %m, %a = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8>, tensor<8x2xf16>)
%w = transformer.dequantize %p, %s, %m super %a {packing = #transformer.packing<int4, group = 32>} : (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8> super tensor<8x2xf16>) -> tensor<8x256xf32>
// CHECK: transformer.dequantize: mins have no super_mins, expected both: scales have super_scales

// -----
%p, %s, %a, %b = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x2xf16>, tensor<8x2xf16>)
%w = transformer.dequantize %p, %s super %a, %b {packing = #transformer.packing<int4, group = 32>} : (tensor<8x32xi32>, tensor<8x8xi8> super tensor<8x2xf16>, tensor<8x2xf16>) -> tensor<8x256xf32>
// CHECK: transformer.dequantize: has super_mins, expected none: there are no mins

// -----
%p, %s, %m, %a, %b = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8>, tensor<8x2xf16>, tensor<8x1xf16>)
%w = transformer.dequantize %p, %s, %m super %a, %b {packing = #transformer.packing<int4, group = 32>} : (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8> super tensor<8x2xf16>, tensor<8x1xf16>) -> tensor<8x256xf32>
// CHECK: transformer.dequantize: super_mins have shape (8, 1), expected (8, 2), that of super_scales

// -----
%p, %s, %a = "test.op"() : () -> (tensor<8x256xf8E4M3FN>, tensor<8x1xi8>, tensor<8x1xf16>)
%w = transformer.dequantize %p, %s super %a {packing = #transformer.packing<fp8, group = 256>} : (tensor<8x256xf8E4M3FN>, tensor<8x1xi8> super tensor<8x1xf16>) -> tensor<8x256xf32>
// CHECK: transformer.dequantize: has super_scales, expected none: fp8 has one scale a row
