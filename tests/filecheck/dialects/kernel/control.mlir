// RUN: lamella-opt %s | lamella-opt | filecheck %s

// CHECK: %lo, %hi, %st, %c, %x, %y = "test.op"() : () -> (i32, i32, i32, i1, f32, tensor<4xf32>)
%lo, %hi, %st, %c, %x, %y = "test.op"() : () -> (i32, i32, i32, i1, f32, tensor<4xf32>)
// CHECK-NEXT: %a, %b = kernel.for %i = %lo to %hi step %st iter_args(%p = %x, %q = %y) -> (f32, tensor<4xf32>) attributes {num_stages = 3 : i64, source = "attention"} {
%a, %b = kernel.for %i = %lo to %hi step %st iter_args(%p = %x, %q = %y) -> (f32, tensor<4xf32>) attributes {num_stages = 3 : i64, source = "attention"} {
  // CHECK-NEXT: %r = kernel.add %p, %x : f32, f32 -> f32
  %r = kernel.add %p, %x : f32, f32 -> f32
  // CHECK-NEXT: kernel.yield %r, %q : f32, tensor<4xf32>
  kernel.yield %r, %q : f32, tensor<4xf32>
// CHECK-NEXT: }
}
// CHECK-NEXT: kernel.for %i_1 = %lo to %hi step %st {
kernel.for %i_1 = %lo to %hi step %st {
  // CHECK-NEXT: kernel.launch_dependents
  kernel.launch_dependents
// CHECK-NEXT: }
}
// CHECK-NEXT: kernel.if %c {
kernel.if %c {
  // CHECK-NEXT: kernel.wait_prerequisites
  kernel.wait_prerequisites
// CHECK-NEXT: } else {
} else {
  // CHECK-NEXT: kernel.if %c {
  kernel.if %c {
  // CHECK-NEXT: } attributes {source = "merge"}
  } attributes {source = "merge"}
// CHECK-NEXT: }
}
