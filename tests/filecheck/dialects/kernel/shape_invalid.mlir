// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%a = kernel.arange {start = 0 : i64, end = 48 : i64} : tensor<48xi32>
// CHECK: kernel.arange %a: from 0 to 48 are 48 numbers, expected a power of two

// -----
%a = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<32xi32>
// CHECK: kernel.arange %a: result has type tensor<32xi32>, expected tensor<64xi32>

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.expand_dims %s {axis = 0 : i64} : f32 -> tensor<1xf32>
// CHECK: kernel.expand_dims %e: operand is a scalar, expected a block

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.expand_dims %x {axis = 3 : i64} : tensor<4x8xf32> -> tensor<4x8x1xf32>
// CHECK: kernel.expand_dims %e: axis is 3, expected 0 to 2

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.expand_dims %x {axis = 0 : i64} : tensor<4x8xf32> -> tensor<4x1x8xf32>
// CHECK: kernel.expand_dims %e: result has type tensor<4x1x8xf32>, expected tensor<1x4x8xf32>

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.broadcast_to %x : tensor<4x8xf32> -> tensor<8x8xf32>
// CHECK: kernel.broadcast_to %e: shape (4, 8) does not broadcast to (8, 8)

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.broadcast_to %s : f32 -> f32
// CHECK: kernel.broadcast_to %e: result is a scalar, expected a block

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.reshape %x : tensor<4x8xf32> -> tensor<4x4xf32>
// CHECK: kernel.reshape %e: shape (4, 8) has other elements than (4, 4)

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.trans %x {order = array<i64: 0, 0>} : tensor<4x8xf32> -> tensor<8x4xf32>
// CHECK: kernel.trans %e: order is (0, 0), expected a permutation of the axes of (4, 8)

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.trans %x {order = array<i64: 1, 0>} : tensor<4x8xf32> -> tensor<4x8xf32>
// CHECK: kernel.trans %e: result has type tensor<4x8xf32>, expected tensor<8x4xf32>

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e, %f = kernel.split %x : tensor<4x8xf32> -> tensor<4xf32>, tensor<4xf32>
// CHECK: kernel.split %e: operand has shape (4, 8), expected two axes or more, the last of size 2

// -----
%x, %r, %s, %n, %i, %c, %h, %m = "test.op"() : () -> (tensor<4x8xf32>, tensor<8xf32>, f32, tensor<4x8xi32>, i32, i1, tensor<4x8xbf16>, tensor<4x8xi1>)
%e = kernel.join %x, %r : tensor<4x8xf32>, tensor<8xf32> -> tensor<4x8x2xf32>
// CHECK: kernel.join %e: tensor<4x8xf32> and tensor<8xf32>, expected two blocks of one type
