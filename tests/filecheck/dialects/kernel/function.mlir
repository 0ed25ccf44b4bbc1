// RUN: lamella-opt %s | lamella-opt | filecheck %s

// CHECK: kernel.func @copy(%x_ptr: !kernel.ptr<bf16>, %n: i32, %scale: f32) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
kernel.func @copy(%x_ptr: !kernel.ptr<bf16>, %n: i32, %scale: f32) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  // CHECK-NEXT: %pid = kernel.program_id 1 : i64 -> i32
  %pid = kernel.program_id 1 : i64 -> i32
  // CHECK-NEXT: %programs = kernel.num_programs 0 : i64 {source = "grid"} -> i32
  %programs = kernel.num_programs 0 : i64 {source = "grid"} -> i32
  // CHECK-NEXT: kernel.return
  kernel.return
// CHECK-NEXT: }
}
