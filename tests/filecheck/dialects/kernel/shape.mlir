// RUN: lamella-opt %s | lamella-opt | filecheck %s

// CHECK: %x, %s = "test.op"() : () -> (tensor<4x8x2xf32>, f32)
%x, %s = "test.op"() : () -> (tensor<4x8x2xf32>, f32)
// CHECK-NEXT: %cols = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
%cols = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
// CHECK-NEXT: %column = kernel.expand_dims %cols {axis = 1 : i64} : tensor<64xi32> -> tensor<64x1xi32>
%column = kernel.expand_dims %cols {axis = 1 : i64} : tensor<64xi32> -> tensor<64x1xi32>
// CHECK-NEXT: %wide = kernel.broadcast_to %column : tensor<64x1xi32> -> tensor<64x8xi32>
%wide = kernel.broadcast_to %column : tensor<64x1xi32> -> tensor<64x8xi32>
// CHECK-NEXT: %all = kernel.broadcast_to %s : f32 -> tensor<16xf32>
%all = kernel.broadcast_to %s : f32 -> tensor<16xf32>
// CHECK-NEXT: %flat = kernel.reshape %wide : tensor<64x8xi32> -> tensor<512xi32>
%flat = kernel.reshape %wide : tensor<64x8xi32> -> tensor<512xi32>
// CHECK-NEXT: %turned = kernel.trans %x {order = array<i64: 2, 0, 1>} : tensor<4x8x2xf32> -> tensor<2x4x8xf32>
%turned = kernel.trans %x {order = array<i64: 2, 0, 1>} : tensor<4x8x2xf32> -> tensor<2x4x8xf32>
// CHECK-NEXT: %even, %odd = kernel.split %x : tensor<4x8x2xf32> -> tensor<4x8xf32>, tensor<4x8xf32>
%even, %odd = kernel.split %x : tensor<4x8x2xf32> -> tensor<4x8xf32>, tensor<4x8xf32>
// CHECK-NEXT: %both = kernel.join %even, %odd : tensor<4x8xf32>, tensor<4x8xf32> -> tensor<4x8x2xf32>
%both = kernel.join %even, %odd : tensor<4x8xf32>, tensor<4x8xf32> -> tensor<4x8x2xf32>
