// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

"test.op"() : () -> !kernel.ptr<f64>
// CHECK: kernel.ptr: element type f64, expected one of bf16, f16, f32, f8, i1, i32, i64, i8

// -----
kernel.func @k(%p: !kernel.ptr<f32>) attributes {num_warps = 3 : i64, num_stages = 1 : i64} {
  kernel.return
}
// CHECK: kernel.func @k: num_warps is 3, expected a power of two up to 32

// -----
kernel.func @k(%p: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 0 : i64} {
  kernel.return
}
// CHECK: kernel.func @k: num_stages is 0, expected at least 1

// -----
kernel.func @"k-1"(%p: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  kernel.return
}
// CHECK: kernel.func @k-1: the name is not an identifier

// -----
kernel.func @k(%p: tensor<4xf32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  kernel.return
}
// CHECK: kernel.func @k: parameter %p has type tensor<4xf32>, expected a pointer, a descriptor or f16, f32, i32, i64

// -----
kernel.func @k(%p: bf16) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  kernel.return
}
// CHECK: kernel.func @k: parameter %p has type bf16, expected a pointer, a descriptor or f16, f32, i32, i64

// -----
"kernel.func"() <{sym_name = "k", function_type = (i32) -> ()}> ({
^bb0(%n: i64):
  kernel.return
}) {num_warps = 4 : i64, num_stages = 1 : i64} : () -> ()
// CHECK: kernel.func @k: has type (i32) -> (), expected that of its block arguments and no results

// -----
kernel.func @k(%p: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  %i = kernel.program_id 0 : i64 -> i32
}
// CHECK: kernel.program_id: Operation kernel.program_id terminates block in single-block region but is not a terminator

// -----
%i = kernel.program_id 3 : i64 -> i32
// CHECK: kernel.program_id %i: axis is 3, expected 0, 1 or 2

// -----
%i = kernel.num_programs -1 : i64 -> i32
// CHECK: kernel.num_programs %i: axis is -1, expected 0, 1 or 2

// -----
kernel.func @k(%p: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64, max_registers = 256 : i64} {
  kernel.return
}
// CHECK: kernel.func @k: max_registers is 256, expected 1 to 255
