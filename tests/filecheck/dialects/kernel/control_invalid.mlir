// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%lo, %x, %y, %c = "test.op"() : () -> (i32, f32, f16, i1)
%r = kernel.for %i = %lo to %lo step %lo iter_args(%p = %x) -> (f32) {
  kernel.yield %y : f16
}
// CHECK: kernel.for %r: yields (f16), expected (f32)

// -----
%lo, %x, %y, %c = "test.op"() : () -> (i32, f32, f16, i1)
%r = kernel.for %i = %lo to %lo step %lo iter_args(%p = %x) -> (f32) {
}
// CHECK: kernel.for %r: yields (), expected (f32)

// -----
%lo, %x, %y, %c = "test.op"() : () -> (i32, f32, f16, i1)
%r = "kernel.for"(%lo, %lo, %lo, %x) ({
^bb0(%i: i32):
  kernel.yield %x : f32
}) : (i32, i32, i32, f32) -> f32
// CHECK: kernel.for %r: block arguments (i32), expected i32 and (f32)

// -----
%lo, %x, %y, %c = "test.op"() : () -> (i32, f32, f16, i1)
%r = "kernel.for"(%lo, %lo, %lo, %x) ({
^bb0(%i: i32, %p: f32):
  kernel.yield %p : f32
}) : (i32, i32, i32, f32) -> f16
// CHECK: kernel.for %r: results (f16), expected (f32)

// -----
%lo, %x, %y, %c = "test.op"() : () -> (i32, f32, f16, i1)
kernel.for %i = %lo to %lo step %lo attributes {num_stages = 0 : i64} {
}
// CHECK: kernel.for: num_stages is 0, expected at least 1

// -----
%lo, %x, %y, %c = "test.op"() : () -> (i32, f32, f16, i1)
kernel.for %i = %lo to %lo step %lo attributes {unroll} {
}
// CHECK: kernel.for: unroll needs bounds made by kernel.constant

// -----
%lo, %x, %y, %c = "test.op"() : () -> (i32, f32, f16, i1)
kernel.for %i = %lo to %lo step %lo attributes {unroll, num_stages = 2 : i64} {
}
// CHECK: kernel.for: has num_stages and unroll, expected at most one of them

// -----
%lo, %x, %y, %c = "test.op"() : () -> (i32, f32, f16, i1)
kernel.if %c {
  kernel.yield %x : f32
}
// CHECK: kernel.if: a branch takes and yields values, expected none

// -----
%lo, %x, %y, %c = "test.op"() : () -> (i32, f32, f16, i1)
"kernel.if"(%x) ({
  kernel.yield
}) : (f32) -> ()
// CHECK: kernel.if: operand 'condition' at position 0 does not verify: Expected attribute i1 but got f32

// -----
%lo, %x, %y, %c = "test.op"() : () -> (i32, f32, f16, i1)
"kernel.for"(%lo, %lo, %lo) ({
^bb0(%i: i32):
  %t = kernel.add %x, %x : f32, f32 -> f32
}) : (i32, i32, i32) -> ()
// CHECK: kernel.add: Operation kernel.add terminates block in single-block region but is not a terminator
