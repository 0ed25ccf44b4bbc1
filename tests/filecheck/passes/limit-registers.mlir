// RUN: lamella-opt %s -p limit-registers | filecheck %s
// RUN: lamella-opt %s -p 'limit-registers{arch=sm_90}' | lamella-opt | filecheck %s

// 2,048 programs of a warp: four for each scheduler of 132 multiprocessors, 128 registers a thread.
// CHECK-LABEL: kernel.func @held
// CHECK-SAME:    max_registers = 128 : i64
kernel.func @held(%w_ptr: !kernel.ptr<i8>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 1 : i64, num_stages = 1 : i64} {
  %row = kernel.arange {start = 0 : i64, end = 16 : i64} : tensor<16xi32>
  %down = kernel.expand_dims %row {axis = 1 : i64} : tensor<16xi32> -> tensor<16x1xi32>
  %across = kernel.expand_dims %row {axis = 0 : i64} : tensor<16xi32> -> tensor<1x16xi32>
  %at = kernel.add %down, %across : tensor<16x1xi32>, tensor<1x16xi32> -> tensor<16x16xi32>
  %bytes = kernel.load %w_ptr[%at] : !kernel.ptr<i8>, tensor<16x16xi32> -> tensor<16x16xi8>
  %w = kernel.widen "lower" %bytes : tensor<16x16xi8> -> tensor<16x16xbf16>
  %y = kernel.dot %w, %w : tensor<16x16xbf16>, tensor<16x16xbf16> -> tensor<16x16xf32>
  kernel.store %y_ptr[%at], %y : !kernel.ptr<f32>, tensor<16x16xi32>, tensor<16x16xf32>
  kernel.return
}

// Fewer programs leave each as many registers as it likes; more would leave it too few; four warps are no program of one.
// CHECK-NOT: max_registers
kernel.func @few(%w_ptr: !kernel.ptr<i8>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 1 : i64, num_stages = 1 : i64} {
  %row = kernel.arange {start = 0 : i64, end = 16 : i64} : tensor<16xi32>
  %down = kernel.expand_dims %row {axis = 1 : i64} : tensor<16xi32> -> tensor<16x1xi32>
  %across = kernel.expand_dims %row {axis = 0 : i64} : tensor<16xi32> -> tensor<1x16xi32>
  %at = kernel.add %down, %across : tensor<16x1xi32>, tensor<1x16xi32> -> tensor<16x16xi32>
  %bytes = kernel.load %w_ptr[%at] : !kernel.ptr<i8>, tensor<16x16xi32> -> tensor<16x16xi8>
  %w = kernel.widen "lower" %bytes : tensor<16x16xi8> -> tensor<16x16xbf16>
  %y = kernel.dot %w, %w : tensor<16x16xbf16>, tensor<16x16xbf16> -> tensor<16x16xf32>
  kernel.store %y_ptr[%at], %y : !kernel.ptr<f32>, tensor<16x16xi32>, tensor<16x16xf32>
  kernel.return
}
kernel.func @many(%w_ptr: !kernel.ptr<i8>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 1 : i64, num_stages = 1 : i64} {
  %row = kernel.arange {start = 0 : i64, end = 16 : i64} : tensor<16xi32>
  %down = kernel.expand_dims %row {axis = 1 : i64} : tensor<16xi32> -> tensor<16x1xi32>
  %across = kernel.expand_dims %row {axis = 0 : i64} : tensor<16xi32> -> tensor<1x16xi32>
  %at = kernel.add %down, %across : tensor<16x1xi32>, tensor<1x16xi32> -> tensor<16x16xi32>
  %bytes = kernel.load %w_ptr[%at] : !kernel.ptr<i8>, tensor<16x16xi32> -> tensor<16x16xi8>
  %w = kernel.widen "lower" %bytes : tensor<16x16xi8> -> tensor<16x16xbf16>
  %y = kernel.dot %w, %w : tensor<16x16xbf16>, tensor<16x16xbf16> -> tensor<16x16xf32>
  kernel.store %y_ptr[%at], %y : !kernel.ptr<f32>, tensor<16x16xi32>, tensor<16x16xf32>
  kernel.return
}
kernel.func @four_warps(%w_ptr: !kernel.ptr<i8>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  %row = kernel.arange {start = 0 : i64, end = 16 : i64} : tensor<16xi32>
  %down = kernel.expand_dims %row {axis = 1 : i64} : tensor<16xi32> -> tensor<16x1xi32>
  %across = kernel.expand_dims %row {axis = 0 : i64} : tensor<16xi32> -> tensor<1x16xi32>
  %at = kernel.add %down, %across : tensor<16x1xi32>, tensor<1x16xi32> -> tensor<16x16xi32>
  %bytes = kernel.load %w_ptr[%at] : !kernel.ptr<i8>, tensor<16x16xi32> -> tensor<16x16xi8>
  %w = kernel.widen "lower" %bytes : tensor<16x16xi8> -> tensor<16x16xbf16>
  %y = kernel.dot %w, %w : tensor<16x16xbf16>, tensor<16x16xbf16> -> tensor<16x16xf32>
  kernel.store %y_ptr[%at], %y : !kernel.ptr<f32>, tensor<16x16xi32>, tensor<16x16xf32>
  kernel.return
}

// Whole bytes take less.
kernel.func @whole(%w_ptr: !kernel.ptr<i8>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 1 : i64, num_stages = 1 : i64} {
  %row = kernel.arange {start = 0 : i64, end = 16 : i64} : tensor<16xi32>
  %down = kernel.expand_dims %row {axis = 1 : i64} : tensor<16xi32> -> tensor<16x1xi32>
  %across = kernel.expand_dims %row {axis = 0 : i64} : tensor<16xi32> -> tensor<1x16xi32>
  %at = kernel.add %down, %across : tensor<16x1xi32>, tensor<1x16xi32> -> tensor<16x16xi32>
  %bytes = kernel.load %w_ptr[%at] : !kernel.ptr<i8>, tensor<16x16xi32> -> tensor<16x16xi8>
  %w = kernel.widen "whole" %bytes : tensor<16x16xi8> -> tensor<16x16xbf16>
  %y = kernel.dot %w, %w : tensor<16x16xbf16>, tensor<16x16xbf16> -> tensor<16x16xf32>
  kernel.store %y_ptr[%at], %y : !kernel.ptr<f32>, tensor<16x16xi32>, tensor<16x16xf32>
  kernel.return
}

// What multiplies nothing needs few.
kernel.func @sum(%w_ptr: !kernel.ptr<i8>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 1 : i64, num_stages = 1 : i64} {
  %row = kernel.arange {start = 0 : i64, end = 16 : i64} : tensor<16xi32>
  %w = kernel.load %w_ptr[%row] : !kernel.ptr<i8>, tensor<16xi32> -> tensor<16xi8>
  %f = kernel.cast %w : tensor<16xi8> -> tensor<16xf32>
  kernel.store %y_ptr[%row], %f : !kernel.ptr<f32>, tensor<16xi32>, tensor<16xf32>
  kernel.return
}

// A program that loads 18 KiB at once, 144 registers of each thread and more, would leave room for two on a scheduler: three of 168.
// CHECK-LABEL: kernel.func @hungry
// CHECK-SAME:    max_registers = 168 : i64
kernel.func @hungry(%w_ptr: !kernel.ptr<i8>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 1 : i64, num_stages = 1 : i64} {
  %row = kernel.arange {start = 0 : i64, end = 16 : i64} : tensor<16xi32>
  %down = kernel.expand_dims %row {axis = 1 : i64} : tensor<16xi32> -> tensor<16x1xi32>
  %across = kernel.expand_dims %row {axis = 0 : i64} : tensor<16xi32> -> tensor<1x16xi32>
  %at = kernel.add %down, %across : tensor<16x1xi32>, tensor<1x16xi32> -> tensor<16x16xi32>
  %bytes = kernel.load %w_ptr[%at] : !kernel.ptr<i8>, tensor<16x16xi32> -> tensor<16x16xi8>
  %w = kernel.widen "lower" %bytes : tensor<16x16xi8> -> tensor<16x16xbf16>
  %y = kernel.dot %w, %w : tensor<16x16xbf16>, tensor<16x16xbf16> -> tensor<16x16xf32>
  kernel.store %y_ptr[%at], %y : !kernel.ptr<f32>, tensor<16x16xi32>, tensor<16x16xf32>
  %lane = kernel.arange {start = 0 : i64, end = 16384 : i64} : tensor<16384xi32>
  %first = kernel.load %w_ptr[%lane] : !kernel.ptr<i8>, tensor<16384xi32> -> tensor<16384xi8>
  %second = kernel.load %w_ptr[%lane] : !kernel.ptr<i8>, tensor<16384xi32> -> tensor<16384xi8>
  kernel.return
}

func.func @launches(%w: memref<256xi8>, %y: memref<256xf32>) {
  host.launch @held grid [512, 1, 1] ins(%w : memref<256xi8>) outs(%y : memref<256xf32>)
  host.launch @held grid [1024, 2, 1] ins(%w : memref<256xi8>) outs(%y : memref<256xf32>)
  host.launch @whole grid [2048, 1, 1] ins(%w : memref<256xi8>) outs(%y : memref<256xf32>)
  host.launch @few grid [1584, 1, 1] ins(%w : memref<256xi8>) outs(%y : memref<256xf32>)
  host.launch @many grid [2113, 1, 1] ins(%w : memref<256xi8>) outs(%y : memref<256xf32>)
  host.launch @four_warps grid [2048, 1, 1] ins(%w : memref<256xi8>) outs(%y : memref<256xf32>)
  host.launch @sum grid [2048, 1, 1] ins(%w : memref<256xi8>) outs(%y : memref<256xf32>)
  host.launch @hungry grid [7168, 1, 1] ins(%w : memref<256xi8>) outs(%y : memref<256xf32>)
  func.return
}
