// RUN: lamella-opt %s | lamella-opt | filecheck %s

// CHECK: %p, %c, %o, %m, %z, %one, %i = "test.op"() : () -> (!kernel.ptr<bf16>, !kernel.ptr<i32>, tensor<64xi64>, tensor<64xi1>, bf16, i32, i32)
%p, %c, %o, %m, %z, %one, %i = "test.op"() : () -> (!kernel.ptr<bf16>, !kernel.ptr<i32>, tensor<64xi64>, tensor<64xi1>, bf16, i32, i32)
// CHECK-NEXT: %x = kernel.load %p[%o] : !kernel.ptr<bf16>, tensor<64xi64> -> tensor<64xbf16>
%x = kernel.load %p[%o] : !kernel.ptr<bf16>, tensor<64xi64> -> tensor<64xbf16>
// CHECK-NEXT: %y = kernel.load %p[%o] mask %m : tensor<64xi1> other %z : bf16 {eviction = "first"} : !kernel.ptr<bf16>, tensor<64xi64> -> tensor<64xbf16>
%y = kernel.load %p[%o] mask %m : tensor<64xi1> other %z : bf16 {eviction = "first"} : !kernel.ptr<bf16>, tensor<64xi64> -> tensor<64xbf16>
// CHECK-NEXT: %s = kernel.load %c[%i] {cache = "cg"} : !kernel.ptr<i32>, i32 -> i32
%s = kernel.load %c[%i] {cache = "cg"} : !kernel.ptr<i32>, i32 -> i32
// CHECK-NEXT: kernel.store %p[%o], %x : !kernel.ptr<bf16>, tensor<64xi64>, tensor<64xbf16>
kernel.store %p[%o], %x : !kernel.ptr<bf16>, tensor<64xi64>, tensor<64xbf16>
// CHECK-NEXT: kernel.store %p[%o], %z mask %m : tensor<64xi1> {source = "residual"} : !kernel.ptr<bf16>, tensor<64xi64>, bf16
kernel.store %p[%o], %z mask %m : tensor<64xi1> {source = "residual"} : !kernel.ptr<bf16>, tensor<64xi64>, bf16
// CHECK-NEXT: %before = kernel.atomic_add %c[%i], %one : !kernel.ptr<i32>, i32, i32 -> i32
%before = kernel.atomic_add %c[%i], %one : !kernel.ptr<i32>, i32, i32 -> i32
%f, %g = "test.op"() : () -> (!kernel.ptr<f8E4M3FN>, tensor<64xi1>)
%none = kernel.constant 0.0 : f8E4M3FN -> f8E4M3FN
%w = kernel.load %f[%o] mask %g : tensor<64xi1> other %none : f8E4M3FN : !kernel.ptr<f8E4M3FN>, tensor<64xi64> -> tensor<64xf8E4M3FN>
%v = kernel.cast %w : tensor<64xf8E4M3FN> -> tensor<64xf32>
// CHECK: %w = kernel.load %f[%o] mask %g : tensor<64xi1> other %none : f8E4M3FN : !kernel.ptr<f8E4M3FN>, tensor<64xi64> -> tensor<64xf8E4M3FN>
// CHECK-NEXT: %v = kernel.cast %w : tensor<64xf8E4M3FN> -> tensor<64xf32>
%words = "test.op"() : () -> !kernel.ptr<i32>
%bytes = kernel.as_bytes %words : !kernel.ptr<i32> -> !kernel.ptr<i8>
%packed = kernel.load %bytes[%o] : !kernel.ptr<i8>, tensor<64xi64> -> tensor<64xi8>
%lower = kernel.lower_half %packed : tensor<64xi8> -> tensor<64xi8>
%upper = kernel.upper_half %packed : tensor<64xi8> -> tensor<64xi8>
%wide = kernel.widen "lower" %packed : tensor<64xi8> -> tensor<64xbf16>
%bytes_f16 = kernel.widen "whole" %packed : tensor<64xi8> -> tensor<64xf16>
%raised = kernel.widen "upper" raised %packed : tensor<64xi8> -> tensor<64xbf16>
// CHECK: %bytes = kernel.as_bytes %words : !kernel.ptr<i32> -> !kernel.ptr<i8>
// CHECK-NEXT: %packed = kernel.load %bytes[%o] : !kernel.ptr<i8>, tensor<64xi64> -> tensor<64xi8>
// CHECK-NEXT: %lower = kernel.lower_half %packed : tensor<64xi8> -> tensor<64xi8>
// CHECK-NEXT: %upper = kernel.upper_half %packed : tensor<64xi8> -> tensor<64xi8>
// CHECK-NEXT: %wide = kernel.widen "lower" %packed : tensor<64xi8> -> tensor<64xbf16>
// CHECK-NEXT: %bytes_f16 = kernel.widen "whole" %packed : tensor<64xi8> -> tensor<64xf16>
// CHECK-NEXT: %raised = kernel.widen "upper" raised %packed : tensor<64xi8> -> tensor<64xbf16>
%d, %row, %column = "test.op"() : () -> (!kernel.descriptor<128x64xbf16>, i32, i32)
// CHECK: !kernel.descriptor<128x64xbf16>, i32, i32)
%tile = kernel.load_block %d[%row, %column] : !kernel.descriptor<128x64xbf16> -> tensor<128x64xbf16>
// CHECK-NEXT: %tile = kernel.load_block %d[%row, %column] : !kernel.descriptor<128x64xbf16> -> tensor<128x64xbf16>
