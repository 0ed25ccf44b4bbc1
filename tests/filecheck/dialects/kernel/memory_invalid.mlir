// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%p, %o, %m, %x, %z, %i, %c = "test.op"() : () -> (!kernel.ptr<f32>, tensor<64xi32>, tensor<64xi1>, tensor<64xf32>, f32, i32, tensor<4x8xf32>)
%v = kernel.load %p[%o] : !kernel.ptr<f32>, tensor<64xi32> -> tensor<32xf32>
// CHECK: kernel.load %v: result has type tensor<32xf32>, expected tensor<64xf32>

// -----
%p, %o, %m, %x, %z, %i, %c = "test.op"() : () -> (!kernel.ptr<f32>, tensor<64xi32>, tensor<64xi1>, tensor<64xf32>, f32, i32, tensor<4x8xf32>)
%v = kernel.load %p[%x] : !kernel.ptr<f32>, tensor<64xf32> -> tensor<64xf32>
// CHECK: kernel.load %v: offsets %x has type tensor<64xf32>, expected elements i32 or i64

// -----
%p, %o, %m, %x, %z, %i, %c = "test.op"() : () -> (!kernel.ptr<f32>, tensor<64xi32>, tensor<64xi1>, tensor<64xf32>, f32, i32, tensor<4x8xf32>)
%v = kernel.load %p[%o] mask %m : tensor<64xi1> : !kernel.ptr<f32>, tensor<64xi32> -> tensor<64xf32>
// CHECK: kernel.load %v: has a mask or an other value alone, expected both or neither

// -----
%p, %o, %m, %x, %z, %i, %c = "test.op"() : () -> (!kernel.ptr<f32>, tensor<64xi32>, tensor<64xi1>, tensor<64xf32>, f32, i32, tensor<4x8xf32>)
%v = kernel.load %p[%i] mask %m : tensor<64xi1> other %z : f32 : !kernel.ptr<f32>, i32 -> f32
// CHECK: kernel.load %v: mask has shape (64,), expected one that broadcasts to ()

// -----
%p, %o, %m, %x, %z, %i, %c = "test.op"() : () -> (!kernel.ptr<f32>, tensor<64xi32>, tensor<64xi1>, tensor<64xf32>, f32, i32, tensor<4x8xf32>)
%v = kernel.load %p[%o] mask %m : tensor<64xi1> other %i : i32 : !kernel.ptr<f32>, tensor<64xi32> -> tensor<64xf32>
// CHECK: kernel.load %v: other has type i32, expected elements f32

// -----
%p, %o, %m, %x, %z, %i, %c = "test.op"() : () -> (!kernel.ptr<f32>, tensor<64xi32>, tensor<64xi1>, tensor<64xf32>, f32, i32, tensor<4x8xf32>)
%v = kernel.load %p[%o] {eviction = "middle"} : !kernel.ptr<f32>, tensor<64xi32> -> tensor<64xf32>
// CHECK: kernel.load %v: eviction is 'middle', expected one of first, last

// -----
%p, %o, %m, %x, %z, %i, %c = "test.op"() : () -> (!kernel.ptr<f32>, tensor<64xi32>, tensor<64xi1>, tensor<64xf32>, f32, i32, tensor<4x8xf32>)
%v = kernel.load %p[%o] {cache = "wt"} : !kernel.ptr<f32>, tensor<64xi32> -> tensor<64xf32>
// CHECK: kernel.load %v: cache is 'wt', expected one of ca, cg, cv

// -----
%p, %o, %m, %x, %z, %i, %c = "test.op"() : () -> (!kernel.ptr<f32>, tensor<64xi32>, tensor<64xi1>, tensor<64xf32>, f32, i32, tensor<4x8xf32>)
kernel.store %p[%o], %x {eviction = "first", cache = "cs"} : !kernel.ptr<f32>, tensor<64xi32>, tensor<64xf32>
// CHECK: kernel.store: has eviction and cache, expected at most one of them (PTX cannot combine them)

// -----
%p, %o, %m, %x, %z, %i, %c = "test.op"() : () -> (!kernel.ptr<f32>, tensor<64xi32>, tensor<64xi1>, tensor<64xf32>, f32, i32, tensor<4x8xf32>)
kernel.store %p[%i], %x : !kernel.ptr<f32>, i32, tensor<64xf32>
// CHECK: kernel.store: value has shape (64,), expected one that broadcasts to ()

// -----
%p, %o, %m, %x, %z, %i, %c = "test.op"() : () -> (!kernel.ptr<f32>, tensor<64xi32>, tensor<64xi1>, tensor<64xf32>, f32, i32, tensor<4x8xf32>)
kernel.store %p[%o], %i : !kernel.ptr<f32>, tensor<64xi32>, i32
// CHECK: kernel.store: value has type i32, expected elements f32

// -----
%p, %o, %v = "test.op"() : () -> (!kernel.ptr<bf16>, i32, bf16)
%b = kernel.atomic_add %p[%o], %v : !kernel.ptr<bf16>, i32, bf16 -> bf16
// CHECK: kernel.atomic_add %b: value %v has type bf16, expected elements f32 or i32 or i64; cast it first

// -----
%p, %o, %m, %x, %z, %i, %c = "test.op"() : () -> (i64, tensor<64xi32>, tensor<64xi1>, tensor<64xf32>, f32, i32, tensor<4x8xf32>)
%v = "kernel.load"(%p, %o) <{operandSegmentSizes = array<i32: 1, 1, 0, 0>}> : (i64, tensor<64xi32>) -> tensor<64xf32>
// CHECK: kernel.load: operand 'pointer' at position 0 does not verify: i64 should be of base attribute kernel.ptr

// -----
%p = "test.op"() : () -> !kernel.ptr<f32>
%b = kernel.as_bytes %p : !kernel.ptr<f32> -> !kernel.ptr<i8>
// CHECK: kernel.as_bytes %b: pointer has type !kernel.ptr<f32>, expected !kernel.ptr<i32>

// -----
%w = "test.op"() : () -> tensor<64xi32>
%h = kernel.lower_half %w : tensor<64xi32> -> tensor<64xi32>
// CHECK: kernel.lower_half %h: operand %w has type tensor<64xi32>, expected elements i8

// -----
%w = "test.op"() : () -> tensor<64xi8>
%h = kernel.widen "upper" %w : tensor<64xi8> -> tensor<64xf32>
// CHECK: kernel.widen %h: upper becomes f32, expected bf16 or f16

// -----

%w = "test.op"() : () -> tensor<64xi8>
%h = kernel.widen "whole" raised %w : tensor<64xi8> -> tensor<64xbf16>
// CHECK: kernel.widen %h: whole is raised, expected no more bits than a mantissa of bf16 has

// -----
%w = "test.op"() : () -> tensor<64xi8>
%h = kernel.widen "middle" %w : tensor<64xi8> -> tensor<64xf16>
// CHECK: kernel.widen %h: part is "middle", expected lower, upper, whole

// -----
%d, %r = "test.op"() : () -> (!kernel.descriptor<128x64xbf16>, i32)
%x = kernel.load_block %d[%r, %r] : !kernel.descriptor<128x64xbf16> -> tensor<64x128xbf16>
// CHECK: kernel.load_block %x: result has type tensor<64x128xbf16>, expected tensor<128x64xbf16>

// -----
%d, %r = "test.op"() : () -> (!kernel.descriptor<128x64xbf16>, i32)
%c = kernel.constant 12 : i32 -> i32
%x = kernel.load_block %d[%r, %c] : !kernel.descriptor<128x64xbf16> -> tensor<128x64xbf16>
// CHECK: kernel.load_block %x: column is 12, expected a multiple of 8

// -----
%p, %r = "test.op"() : () -> (!kernel.ptr<bf16>, i32)
%x = "kernel.load_block"(%p, %r, %r) : (!kernel.ptr<bf16>, i32, i32) -> tensor<128x64xbf16>
// CHECK: kernel.load_block: operand 'descriptor' at position 0 does not verify: !kernel.ptr<bf16> should be of base attribute kernel.descriptor

// -----
%d = "test.op"() : () -> !kernel.descriptor<128x128xbf16>
// CHECK: kernel.descriptor: blocks of (128, 128), expected powers of two: at most 256 rows of 8 to 64 columns

// -----
%d = "test.op"() : () -> !kernel.descriptor<128x64xf32>
// CHECK: kernel.descriptor: element type f32, expected one of bf16, f16

// -----
%d = "test.op"() : () -> !kernel.descriptor<128x256xi8>
// CHECK: kernel.descriptor: blocks of (128, 256), expected powers of two: at most 256 rows of 16 to 128 columns
