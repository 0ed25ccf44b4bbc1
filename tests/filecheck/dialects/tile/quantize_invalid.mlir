// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%p, %s = "test.op"() : () -> (tensor<8x8xi32>, tensor<8x2xf16>)
%w = tile.dequantize %p, %s as <int8, group = 32> : tensor<8x8xi32>, tensor<8x2xf16> -> tensor<8x64xf32>
// CHECK: tile.dequantize: words have shape (8, 8), expected (8, 16), 4 columns of (8, 64) a word

// -----
%p, %s, %m = "test.op"() : () -> (tensor<8x8xi32>, tensor<8x2xf16>, tensor<8x1xf16>)
%w = tile.dequantize %p, %s, %m as <int4, group = 32> : tensor<8x8xi32>, tensor<8x2xf16>, tensor<8x1xf16> -> tensor<8x64xf32>
// CHECK: tile.dequantize: mins have type tensor<8x1xf16>, expected tensor<8x2xf16>, that of scales
