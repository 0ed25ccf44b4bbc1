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
