// RUN: lamella-opt %s -p dependent-launch --split-input-file --verify-diagnostics | filecheck %s

// Kernels that hold the ops already are only checked.
// CHECK: kernel.func @k: kernel.load before the wait: another launch may still write what this one touches
kernel.func @k(%w_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64, settled = array<i64: 0>} {
  kernel.launch_dependents
  %zero = kernel.constant 0 : i32 -> i32
  %y = kernel.load %y_ptr[%zero] : !kernel.ptr<f32>, i32 -> f32
  kernel.wait_prerequisites
  kernel.return
}

// -----

// CHECK: kernel.func @k: a path ends without a wait: another launch may still write what this one touches
kernel.func @k(%w_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64, settled = array<i64: 0>} {
  kernel.launch_dependents
  %zero = kernel.constant 0 : i32 -> i32
  %w = kernel.load %w_ptr[%zero] : !kernel.ptr<f32>, i32 -> f32
  kernel.return
}

// -----

// CHECK: kernel.func @k: a second wait: another launch may still write what this one touches
kernel.func @k(%w_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64, settled = array<i64: 0>} {
  kernel.launch_dependents
  %zero = kernel.constant 0 : i32 -> i32
  kernel.wait_prerequisites
  kernel.wait_prerequisites
  kernel.return
}

// -----

// CHECK: kernel.func @k: one branch waits and the other does not: another launch may still write what this one touches
kernel.func @k(%w_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64, settled = array<i64: 0>} {
  kernel.launch_dependents
  %zero = kernel.constant 0 : i32 -> i32
  %p = kernel.program_id 0 : i64 -> i32
  %low = kernel.lt %p, %zero : i32, i32 -> i1
  kernel.if %low {
    kernel.wait_prerequisites
  }
  kernel.return
}

// -----

// CHECK: kernel.func @k: a wait inside a loop: another launch may still write what this one touches
kernel.func @k(%w_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64, settled = array<i64: 0>} {
  kernel.launch_dependents
  %zero = kernel.constant 0 : i32 -> i32
  %four = kernel.constant 4 : i32 -> i32
  kernel.for %i = %zero to %four step %four {
    kernel.wait_prerequisites
  }
  kernel.return
}
