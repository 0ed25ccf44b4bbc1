// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%p, %s = "test.op"() : () -> (tensor<8x8xi32>, tensor<8x2xf16>)
%w = tile.dequantize %p, %s as <int8, group = 32> : tensor<8x8xi32>, tensor<8x2xf16> -> tensor<8x64xf32>
// CHECK: tile.dequantize: words have shape (8, 8), expected (8, 16), 4 columns of (8, 64) a word

// -----
%p, %s, %m = "test.op"() : () -> (tensor<8x8xi32>, tensor<8x2xf16>, tensor<8x1xf16>)
%w = tile.dequantize %p, %s, %m as <int4, group = 32> : tensor<8x8xi32>, tensor<8x2xf16>, tensor<8x1xf16> -> tensor<8x64xf32>
// CHECK: tile.dequantize: mins have shape (8, 1), expected (8, 2), that of scales

// -----
%p, %s = "test.op"() : () -> (tensor<8x64xi32>, tensor<8x1xf16>)
%w = tile.dequantize %p, %s as <fp8, group = 64> : tensor<8x64xi32>, tensor<8x1xf16> -> tensor<8x64xf32>
// CHECK: tile.dequantize: words have elements i32, expected f8E4M3FN for fp8

// -----
%p, %s, %m = "test.op"() : () -> (tensor<8x64xf8E4M3FN>, tensor<8x1xf16>, tensor<8x1xf16>)
%w = tile.dequantize %p, %s, %m as <fp8, group = 64> : tensor<8x64xf8E4M3FN>, tensor<8x1xf16>, tensor<8x1xf16> -> tensor<8x64xf32>
// CHECK: tile.dequantize: has mins, expected none: fp8 has a sign

// -----
%p, %s = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xi8>)
%w = tile.dequantize %p, %s as <int4, group = 32> : tensor<8x32xi32>, tensor<8x8xi8> -> tensor<8x256xf32>
// CHECK: tile.dequantize: scales have elements i8, expected floats, as there are no super_scales

// -----
%p, %s, %a = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xf16>, tensor<8x2xf16>)
%w = tile.dequantize %p, %s super %a as <int4, group = 32> : tensor<8x32xi32>, tensor<8x8xf16> super tensor<8x2xf16> -> tensor<8x256xf32>
// CHECK: tile.dequantize: scales have elements f16, expected i8, which super_scales multiply

// -----
%p, %s, %a = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x3xf16>)
%w = tile.dequantize %p, %s super %a as <int4, group = 32> : tensor<8x32xi32>, tensor<8x8xi8> super tensor<8x3xf16> -> tensor<8x256xf32>
// CHECK: tile.dequantize: super_scales have shape (8, 3), expected those of 8 rows, each for whole groups of 8

// -----
%p, %s, %m, %a = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8>, tensor<8x2xf16>)
%w = tile.dequantize %p, %s, %m super %a as <int4, group = 32> : tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8> super tensor<8x2xf16> -> tensor<8x256xf32>
// CHECK: tile.dequantize: mins have no super_mins, expected both: scales have super_scales

// -----
%p, %s, %a, %b = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x2xf16>, tensor<8x2xf16>)
%w = tile.dequantize %p, %s super %a, %b as <int4, group = 32> : tensor<8x32xi32>, tensor<8x8xi8> super tensor<8x2xf16>, tensor<8x2xf16> -> tensor<8x256xf32>
// CHECK: tile.dequantize: has super_mins, expected none: there are no mins

// -----
%p, %s, %m, %a, %b = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8>, tensor<8x2xf16>, tensor<8x1xf16>)
%w = tile.dequantize %p, %s, %m super %a, %b as <int4, group = 32> : tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8> super tensor<8x2xf16>, tensor<8x1xf16> -> tensor<8x256xf32>
// CHECK: tile.dequantize: super_mins have shape (8, 1), expected (8, 2), that of super_scales

// -----
%p, %s, %a = "test.op"() : () -> (tensor<8x256xf8E4M3FN>, tensor<8x1xi8>, tensor<8x1xf16>)
%w = tile.dequantize %p, %s super %a as <fp8, group = 256> : tensor<8x256xf8E4M3FN>, tensor<8x1xi8> super tensor<8x1xf16> -> tensor<8x256xf32>
// CHECK: tile.dequantize: has super_scales, expected none: fp8 has one scale a row
