// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.reduce "median" %x {axis = 1 : i64} : tensor<4x8xf32> -> tensor<4xf32>
// CHECK: kernel.reduce %e: kind is 'median', expected one of sum, max, min, argmax, argmin, custom

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.reduce "sum" %x {axis = 2 : i64} : tensor<4x8xf32> -> tensor<4xf32>
// CHECK: kernel.reduce %e: axis is 2, expected one of the 2 axes of (4, 8)

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.reduce "sum" %x {axis = 1 : i64} : tensor<4x8xf32> -> tensor<4x1xf32>
// CHECK: kernel.reduce %e: result has type tensor<4x1xf32>, expected tensor<4xf32>

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.reduce "argmax" %x {axis = 1 : i64} : tensor<4x8xf32> -> tensor<4xf32>
// CHECK: kernel.reduce %e: result has type tensor<4xf32>, expected tensor<4xi32>

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.reduce "sum" %h {axis = 1 : i64} : tensor<4x8xbf16> -> tensor<4xbf16>
// CHECK: kernel.reduce %e: operand %h has type tensor<4x8xbf16>, expected elements f32 or i32 or i64; cast it first

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.reduce "custom" %x {axis = 1 : i64} : tensor<4x8xf32> -> tensor<4xf32>
// CHECK: kernel.reduce %e: kind 'custom'; custom, and only custom, has a region and an identity

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.reduce "custom" %x {axis = 1 : i64, identity = 1.0 : f32} : tensor<4x8xf32> -> tensor<4xf32> {
^bb0(%a: f32):
  kernel.yield %a : f32
}
// CHECK: kernel.reduce %e: the region takes ['f32'], expected two f32 and to yield one

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.reduce "custom" %x {axis = 1 : i64, identity = 1.0 : f32} : tensor<4x8xf32> -> tensor<4xf32> {
^bb0(%a: f32, %b: f32):
  %t = kernel.mul %a, %s : f32, f32 -> f32
  kernel.yield %t : f32
}
// CHECK: kernel.reduce %e: kernel.mul in the region uses a value from outside, expected its arguments or constants

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.reduce "custom" %x {axis = 1 : i64, identity = 1.0 : f32} : tensor<4x8xf32> -> tensor<4xf32> {
^bb0(%a: f32, %b: f32):
  %t = kernel.arange {start = 0 : i64, end = 4 : i64} : tensor<4xi32>
  kernel.yield %b : f32
}
// CHECK: kernel.reduce %e: the region holds kernel.arange, expected elementwise ops on scalars

// -----
%a, %b, %c = "test.op"() : () -> (tensor<16x32xf32>, tensor<16x32xf32>, tensor<16x16xf32>)
%d = kernel.dot %a, %b : tensor<16x32xf32>, tensor<16x32xf32> -> tensor<16x32xf32>
// CHECK: kernel.dot %d: shapes (16, 32) and (16, 32), expected (M, K) and (K, N)

// -----
%a, %b = "test.op"() : () -> (tensor<16x8xf32>, tensor<8x16xf32>)
%d = kernel.dot %a, %b : tensor<16x8xf32>, tensor<8x16xf32> -> tensor<16x16xf32>
// CHECK: kernel.dot %d: K is 8 and N is 16, expected at least 16 and 8

// -----
%a, %b = "test.op"() : () -> (tensor<16x16xf32>, tensor<16x16xf16>)
%d = kernel.dot %a, %b : tensor<16x16xf32>, tensor<16x16xf16> -> tensor<16x16xf32>
// CHECK: kernel.dot %d: a has elements f32, b f16, expected the same

// -----
%a = "test.op"() : () -> tensor<16x16xf16>
%d = kernel.dot %a, %a, %a : tensor<16x16xf16>, tensor<16x16xf16>, tensor<16x16xf16> -> tensor<16x16xf32>
// CHECK: kernel.dot %d: acc has type tensor<16x16xf16>, expected tensor<16x16xf32>

// -----
%a = "test.op"() : () -> tensor<16x16xf16>
%d = kernel.dot %a, %a : tensor<16x16xf16>, tensor<16x16xf16> -> tensor<16x16xf16>
// CHECK: kernel.dot %d: result has type tensor<16x16xf16>, expected tensor<16x16xf32>

// -----
%a, %b = "test.op"() : () -> (tensor<16x16xi8>, tensor<16x8xi8>)
%d = kernel.dot %a, %b : tensor<16x16xi8>, tensor<16x8xi8> -> tensor<16x8xi32>
// CHECK: kernel.dot %d: K is 16 and N is 8, expected at least 32 and 8

// -----
%a, %b = "test.op"() : () -> (tensor<16x32xi8>, tensor<32x8xi8>)
%d = kernel.dot %a, %b : tensor<16x32xi8>, tensor<32x8xi8> -> tensor<16x8xf32>
// CHECK: kernel.dot %d: result has type tensor<16x8xf32>, expected tensor<16x8xi32>

// -----
%a, %b = "test.op"() : () -> (tensor<16x16xf8E4M3FN>, tensor<16x8xf8E4M3FN>)
%d = kernel.dot %a, %b : tensor<16x16xf8E4M3FN>, tensor<16x8xf8E4M3FN> -> tensor<16x8xf32>
// CHECK: kernel.dot %d: K is 16 and N is 8, expected at least 32 and 8
