// RUN: lamella-opt %s -p hoist-loads | filecheck %s
// RUN: lamella-opt %s -p 'hoist-loads,hoist-loads' | filecheck %s
// RUN: lamella-opt %s -p 'hoist-loads,dependent-launch' | filecheck %s --check-prefix=WAITS

// A norm: its weight (parameter 1) is asked for before the row is waited for, not behind the sum.
// CHECK-LABEL: kernel.func @norm
// CHECK:         %weight = kernel.load %weight_ptr
// CHECK-NEXT:    %x = kernel.load %x_ptr
// CHECK:         kernel.reduce
// WAITS-LABEL: kernel.func @norm
// WAITS:         %weight = kernel.load %weight_ptr
// WAITS-NEXT:    kernel.wait_prerequisites
// WAITS-NEXT:    %x = kernel.load %x_ptr
kernel.func @norm(%x_ptr: !kernel.ptr<f32>, %weight_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 1 : i64, num_stages = 1 : i64, settled = array<i64: 1>} {
  %lane = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
  %x = kernel.load %x_ptr[%lane] : !kernel.ptr<f32>, tensor<64xi32> -> tensor<64xf32>
  %sum = kernel.reduce "sum" %x {axis = 0 : i64} : tensor<64xf32> -> f32
  %weight = kernel.load %weight_ptr[%lane] : !kernel.ptr<f32>, tensor<64xi32> -> tensor<64xf32>
  %scaled = kernel.mul %weight, %sum : tensor<64xf32>, f32 -> tensor<64xf32>
  kernel.store %y_ptr[%lane], %scaled : !kernel.ptr<f32>, tensor<64xi32>, tensor<64xf32>
  kernel.return
}

// What an epilogue reads of another launch has to wait, but not for the sum; its address moves with it.
// CHECK-LABEL: kernel.func @residual
// CHECK:         %w = kernel.load %w_ptr
// CHECK-NEXT:    %x = kernel.load %x_ptr
// CHECK:         %row = kernel.add %p
// CHECK-NEXT:    %old = kernel.load %y_ptr[%row]
// CHECK-NEXT:    kernel.reduce
kernel.func @residual(%x_ptr: !kernel.ptr<f32>, %w_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 1 : i64, num_stages = 1 : i64, settled = array<i64: 1>} {
  %p = kernel.program_id 0 : i64 -> i32
  %one = kernel.constant 1 : i32 -> i32
  %lane = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
  %w = kernel.load %w_ptr[%lane] : !kernel.ptr<f32>, tensor<64xi32> -> tensor<64xf32>
  %x = kernel.load %x_ptr[%lane] : !kernel.ptr<f32>, tensor<64xi32> -> tensor<64xf32>
  %products = kernel.mul %w, %x : tensor<64xf32>, tensor<64xf32> -> tensor<64xf32>
  %sum = kernel.reduce "sum" %products {axis = 0 : i64} : tensor<64xf32> -> f32
  %row = kernel.add %p, %one : i32, i32 -> i32
  %old = kernel.load %y_ptr[%row] : !kernel.ptr<f32>, i32 -> f32
  %new = kernel.add %old, %sum : f32, f32 -> f32
  kernel.store %y_ptr[%row], %new : !kernel.ptr<f32>, i32, f32
  kernel.return
}

// Nothing of other launches crosses a store, an atomic addition or a barrier: another program may have written it. What nobody writes does.
// CHECK-LABEL: kernel.func @merge
// CHECK:         %weight = kernel.load %w_ptr
// CHECK-NEXT:    kernel.store %parts_ptr
// CHECK:         kernel.barrier
// CHECK:         %parts = kernel.load %parts_ptr
// CHECK-NEXT:    kernel.reduce
kernel.func @merge(%parts_ptr: !kernel.ptr<f32>, %w_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 1 : i64, num_stages = 1 : i64, settled = array<i64: 1>} {
  %p = kernel.program_id 0 : i64 -> i32
  %lane = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
  %half = kernel.constant 5.0e-01 : f32 -> f32
  kernel.store %parts_ptr[%p], %half : !kernel.ptr<f32>, i32, f32
  kernel.barrier
  %parts = kernel.load %parts_ptr[%lane] : !kernel.ptr<f32>, tensor<64xi32> -> tensor<64xf32>
  %sum = kernel.reduce "sum" %parts {axis = 0 : i64} : tensor<64xf32> -> f32
  %weight = kernel.load %w_ptr[%p] : !kernel.ptr<f32>, i32 -> f32
  %y = kernel.mul %sum, %weight : f32, f32 -> f32
  kernel.store %y_ptr[%p], %y : !kernel.ptr<f32>, i32, f32
  kernel.return
}

// Each branch by itself, since each has its own wait; an address made of a sum stays behind it; so does what 64 bytes a thread do not hold,
// and streamed weights, whose place a schedule has chosen.
// CHECK-LABEL: kernel.func @branches
// CHECK:         kernel.if
// CHECK-NEXT:      %b = kernel.load %b_ptr[%p]
// CHECK-NEXT:      %x = kernel.load %x_ptr
// CHECK:         } else {
// CHECK-NEXT:      %x_1 = kernel.load %x_ptr
// CHECK-NEXT:      %sum_1 = kernel.reduce
// CHECK:           %far = kernel.load %b_ptr[%at]
// CHECK:           %large = kernel.load %b_ptr[%lanes]
// CHECK:           %streamed = kernel.load %b_ptr[%p] {eviction = "first"}
kernel.func @branches(%x_ptr: !kernel.ptr<f32>, %b_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 1 : i64, num_stages = 1 : i64, settled = array<i64: 1>} {
  %p = kernel.program_id 0 : i64 -> i32
  %four = kernel.constant 4 : i32 -> i32
  %lane = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
  %lanes = kernel.arange {start = 0 : i64, end = 1024 : i64} : tensor<1024xi32>
  %low = kernel.lt %p, %four : i32, i32 -> i1
  kernel.if %low {
    %x = kernel.load %x_ptr[%lane] : !kernel.ptr<f32>, tensor<64xi32> -> tensor<64xf32>
    %sum = kernel.reduce "sum" %x {axis = 0 : i64} : tensor<64xf32> -> f32
    %b = kernel.load %b_ptr[%p] : !kernel.ptr<f32>, i32 -> f32
    %y = kernel.add %sum, %b : f32, f32 -> f32
    kernel.store %y_ptr[%p], %y : !kernel.ptr<f32>, i32, f32
  } else {
    %x_1 = kernel.load %x_ptr[%lane] : !kernel.ptr<f32>, tensor<64xi32> -> tensor<64xf32>
    %sum_1 = kernel.reduce "sum" %x_1 {axis = 0 : i64} : tensor<64xf32> -> f32
    %at = kernel.cast %sum_1 : f32 -> i32
    %far = kernel.load %b_ptr[%at] : !kernel.ptr<f32>, i32 -> f32
    %large = kernel.load %b_ptr[%lanes] : !kernel.ptr<f32>, tensor<1024xi32> -> tensor<1024xf32>
    %streamed = kernel.load %b_ptr[%p] {eviction = "first"} : !kernel.ptr<f32>, i32 -> f32
    %most = kernel.reduce "max" %large {axis = 0 : i64} : tensor<1024xf32> -> f32
    %y_1 = kernel.add %far, %most : f32, f32 -> f32
    %y_2 = kernel.add %y_1, %streamed : f32, f32 -> f32
    kernel.store %y_ptr[%p], %y_2 : !kernel.ptr<f32>, i32, f32
  }
  kernel.return
}

// A loop that keeps tiles in flight, before which nothing is read early, must not start early: the kernel stays as it is.
// CHECK-LABEL: kernel.func @pipelined
// CHECK:         kernel.for
// CHECK:         %bias = kernel.load %w_ptr
kernel.func @pipelined(%x_ptr: !kernel.ptr<f32>, %w_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 1 : i64, num_stages = 3 : i64, settled = array<i64: 1>} {
  %lane = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
  %zero = kernel.constant 0 : i32 -> i32
  %end = kernel.constant 256 : i32 -> i32
  %step = kernel.constant 64 : i32 -> i32
  %none = kernel.constant 0.0 : f32 -> tensor<64xf32>
  %sums = kernel.for %i = %zero to %end step %step iter_args(%acc = %none) -> (tensor<64xf32>) attributes {num_stages = 3 : i64} {
    %at = kernel.add %lane, %i : tensor<64xi32>, i32 -> tensor<64xi32>
    %x = kernel.load %x_ptr[%at] : !kernel.ptr<f32>, tensor<64xi32> -> tensor<64xf32>
    %next = kernel.add %acc, %x : tensor<64xf32>, tensor<64xf32> -> tensor<64xf32>
    kernel.yield %next : tensor<64xf32>
  }
  %bias = kernel.load %w_ptr[%lane] : !kernel.ptr<f32>, tensor<64xi32> -> tensor<64xf32>
  %y = kernel.add %sums, %bias : tensor<64xf32>, tensor<64xf32> -> tensor<64xf32>
  kernel.store %y_ptr[%lane], %y : !kernel.ptr<f32>, tensor<64xi32>, tensor<64xf32>
  kernel.return
}
