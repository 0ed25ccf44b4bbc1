// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%c = kernel.constant 1.0 : f32 -> tensor<4xf16>
// CHECK: kernel.constant %c: value has type f32, expected f16

// -----
%c = kernel.constant 1.0 : f32 -> tensor<3xf32>
// CHECK: kernel.constant %c: result %c has shape (3,), expected powers of two

// -----
%c = kernel.constant 1.0 : f32 -> tensor<2048x1024xf32>
// CHECK: kernel.constant %c: result %c has 2097152 elements, expected at most 1048576

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.exp %n : tensor<4x8xi32> -> tensor<4x8xi32>
// CHECK: kernel.exp %e: operand %n has type tensor<4x8xi32>, expected elements f32

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.exp %h {source = "softmax"} : tensor<4x8xbf16> -> tensor<4x8xbf16>
// CHECK: kernel.exp %e (softmax): operand %h has type tensor<4x8xbf16>, expected elements f32; cast it first

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.exp %x : tensor<4x8xf32> -> tensor<4x4xf32>
// CHECK: kernel.exp %e: result has type tensor<4x4xf32>, expected tensor<4x8xf32>

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%t = kernel.add %x, %n : tensor<4x8xf32>, tensor<4x8xi32> -> tensor<4x8xf32>
// CHECK: kernel.add %t: lhs has elements f32, rhs i32, expected the same

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%t = kernel.add %x, %r : tensor<4x8xf32>, tensor<8xf32> -> tensor<4x8xf32>
// CHECK: kernel.add %t: shapes (4, 8) and (8,) do not broadcast, expected equal ranks and sizes that are equal or 1

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%t = kernel.add %x, %s : tensor<4x8xf32>, f32 -> tensor<4x4xf32>
// CHECK: kernel.add %t: result has type tensor<4x4xf32>, expected tensor<4x8xf32>

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%t = kernel.and %x, %x : tensor<4x8xf32>, tensor<4x8xf32> -> tensor<4x8xf32>
// CHECK: kernel.and %t: lhs %x has type tensor<4x8xf32>, expected elements i1 or i32 or i64

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%t = kernel.floordiv %s, %s : f32, f32 -> f32
// CHECK: kernel.floordiv %t: lhs %s has type f32, expected elements i32 or i64

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%t = kernel.lt %x, %s : tensor<4x8xf32>, f32 -> tensor<4x8xf32>
// CHECK: kernel.lt %t: result has type tensor<4x8xf32>, expected tensor<4x8xi1>

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%t = kernel.fma %x, %r, %s : tensor<4x8xf32>, tensor<8xf32>, f32 -> tensor<4x8xf32>
// CHECK: kernel.fma %t: shapes (4, 8) and (8,) and () do not broadcast, expected equal ranks and sizes that are equal or 1

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%t = kernel.where %n, %x, %s : tensor<4x8xi32>, tensor<4x8xf32>, f32 -> tensor<4x8xf32>
// CHECK: kernel.where %t: condition %n has type tensor<4x8xi32>, expected elements i1

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%t = kernel.where %m, %x, %n : tensor<4x8xi1>, tensor<4x8xf32>, tensor<4x8xi32> -> tensor<4x8xf32>
// CHECK: kernel.where %t: a has elements f32, b i32, expected the same

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%t = kernel.cast %x : tensor<4x8xf32> -> tensor<8x4xf16>
// CHECK: kernel.cast %t: result has type tensor<8x4xf16>, expected tensor<4x8xf16>

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%t = kernel.cast %i : i32 -> i1
// CHECK: kernel.cast %t: casts to i1, expected a number (compare with kernel.ne for i1)

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%t = kernel.bitcast %h : tensor<4x8xbf16> -> tensor<4x8xi32>
// CHECK: kernel.bitcast %t: bf16 to i32, expected f32 to i32 or i32 to f32

// -----
%x = "test.op"() : () -> tensor<8xbf16>
%t = kernel.cast %x : tensor<8xbf16> -> tensor<8xf8E4M3FN>
// CHECK: kernel.cast %t: casts bf16 to f8, expected f32, of numbers that f8 has
