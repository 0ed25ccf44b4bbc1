// RUN: lamella-opt %s | lamella-opt | filecheck %s

// CHECK: %x, %a, %b, %acc = "test.op"() : () -> (tensor<4x8xf32>, tensor<4x16xbf16>, tensor<16x32xbf16>, tensor<4x32xf32>)
%x, %a, %b, %acc = "test.op"() : () -> (tensor<4x8xf32>, tensor<4x16xbf16>, tensor<16x32xbf16>, tensor<4x32xf32>)
// CHECK-NEXT: %sum = kernel.reduce "sum" %x {axis = 1 : i64} : tensor<4x8xf32> -> tensor<4xf32>
%sum = kernel.reduce "sum" %x {axis = 1 : i64} : tensor<4x8xf32> -> tensor<4xf32>
// CHECK-NEXT: %max = kernel.reduce "max" %x {axis = 0 : i64, keep_dims} : tensor<4x8xf32> -> tensor<1x8xf32>
%max = kernel.reduce "max" %x {axis = 0 : i64, keep_dims} : tensor<4x8xf32> -> tensor<1x8xf32>
// CHECK-NEXT: %where = kernel.reduce "argmax" %x {axis = 1 : i64} : tensor<4x8xf32> -> tensor<4xi32>
%where = kernel.reduce "argmax" %x {axis = 1 : i64} : tensor<4x8xf32> -> tensor<4xi32>
// CHECK-NEXT: %product = kernel.reduce "custom" %x {axis = 1 : i64, identity = 1.000000e+00 : f32} : tensor<4x8xf32> -> tensor<4xf32> {
%product = kernel.reduce "custom" %x {axis = 1 : i64, identity = 1.000000e+00 : f32} : tensor<4x8xf32> -> tensor<4xf32> {
// CHECK-NEXT: ^bb0(%p: f32, %q: f32):
^bb0(%p: f32, %q: f32):
  // CHECK-NEXT: %r = kernel.mul %p, %q : f32, f32 -> f32
  %r = kernel.mul %p, %q : f32, f32 -> f32
  // CHECK-NEXT: kernel.yield %r : f32
  kernel.yield %r : f32
// CHECK-NEXT: }
}
// CHECK-NEXT: %alone = kernel.dot %a, %b : tensor<4x16xbf16>, tensor<16x32xbf16> -> tensor<4x32xf32>
%alone = kernel.dot %a, %b : tensor<4x16xbf16>, tensor<16x32xbf16> -> tensor<4x32xf32>
// CHECK-NEXT: %more = kernel.dot %a, %b, %acc {source = "linear"} : tensor<4x16xbf16>, tensor<16x32xbf16>, tensor<4x32xf32> -> tensor<4x32xf32>
%more = kernel.dot %a, %b, %acc {source = "linear"} : tensor<4x16xbf16>, tensor<16x32xbf16>, tensor<4x32xf32> -> tensor<4x32xf32>
%w8, %d, %n = "test.op"() : () -> (tensor<16x32xi8>, tensor<32x8xi8>, tensor<16x8xi32>)
// CHECK: %bytes = kernel.dot %w8, %d, %n : tensor<16x32xi8>, tensor<32x8xi8>, tensor<16x8xi32> -> tensor<16x8xi32>
%bytes = kernel.dot %w8, %d, %n : tensor<16x32xi8>, tensor<32x8xi8>, tensor<16x8xi32> -> tensor<16x8xi32>
%f8, %g8 = "test.op"() : () -> (tensor<16x32xf8E4M3FN>, tensor<32x8xf8E4M3FN>)
// CHECK: %floats = kernel.dot %f8, %g8 : tensor<16x32xf8E4M3FN>, tensor<32x8xf8E4M3FN> -> tensor<16x8xf32>
%floats = kernel.dot %f8, %g8 : tensor<16x32xf8E4M3FN>, tensor<32x8xf8E4M3FN> -> tensor<16x8xf32>
