// RUN: lamella-opt %s -t triton | filecheck %s --strict-whitespace --match-full-lines

// One op is one line; scalar constants stand where they are used; the carried value keeps its variable through the loop.

kernel.func @rms_norm(%x_ptr: !kernel.ptr<bf16>, %out_ptr: !kernel.ptr<bf16>, %n: i32) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  kernel.launch_dependents
  kernel.wait_prerequisites
  %row = kernel.program_id 0 : i64 -> i32
  %width = kernel.constant 576 : i32 -> i32
  %start = kernel.mul %row, %width : i32, i32 -> i32
  %lane = kernel.arange {start = 0 : i64, end = 256 : i64} : tensor<256xi32>
  %none = kernel.constant 0.0 : f32 -> tensor<256xf32>
  %lo = kernel.constant 0 : i32 -> i32
  %step = kernel.constant 256 : i32 -> i32
  %pad = kernel.constant 0.0 : bf16 -> bf16
  %squares = kernel.for %i = %lo to %n step %step iter_args(%acc = %none) -> (tensor<256xf32>) {
    %cols = kernel.add %lane, %i : tensor<256xi32>, i32 -> tensor<256xi32>
    %mask = kernel.lt %cols, %n : tensor<256xi32>, i32 -> tensor<256xi1>
    %at = kernel.add %start, %cols : i32, tensor<256xi32> -> tensor<256xi32>
    %raw = kernel.load %x_ptr[%at] mask %mask : tensor<256xi1> other %pad : bf16 {eviction = "first", source = "rms_norm"} : !kernel.ptr<bf16>, tensor<256xi32> -> tensor<256xbf16>
    %x = kernel.cast %raw : tensor<256xbf16> -> tensor<256xf32>
    %next = kernel.fma %x, %x, %acc {source = "rms_norm"} : tensor<256xf32>, tensor<256xf32>, tensor<256xf32> -> tensor<256xf32>
    kernel.yield %next : tensor<256xf32>
  }
  %total = kernel.reduce "sum" %squares {axis = 0 : i64} : tensor<256xf32> -> f32
  %scale = kernel.constant 0.1 : f32 -> f32
  %mean = kernel.mul %total, %scale : f32, f32 -> f32
  %low = kernel.cast %mean : f32 -> bf16
  %first = kernel.eq %row, %lo : i32, i32 -> i1
  %second = kernel.lt %row, %n : i32, i32 -> i1
  kernel.if %first {
    kernel.store %out_ptr[%row], %low : !kernel.ptr<bf16>, i32, bf16
  } else {
    kernel.if %second {
      kernel.store %out_ptr[%row], %pad : !kernel.ptr<bf16>, i32, bf16
    }
  }
  kernel.return
}

kernel.func @product(%x_ptr: !kernel.ptr<f32>) attributes {num_warps = 1 : i64, num_stages = 2 : i64} {
  %lane = kernel.arange {start = 0 : i64, end = 16 : i64} : tensor<16xi32>
  %x = kernel.load %x_ptr[%lane] : !kernel.ptr<f32>, tensor<16xi32> -> tensor<16xf32>
  %all = kernel.reduce "custom" %x {axis = 0 : i64, identity = 1.0 : f32} : tensor<16xf32> -> f32 {
  ^bb0(%a: f32, %b: f32):
    %ab = kernel.mul %a, %b : f32, f32 -> f32
    kernel.yield %ab : f32
  }
  %zero = kernel.constant 0 : i32 -> i32
  kernel.store %x_ptr[%zero], %all : !kernel.ptr<f32>, i32, f32
  kernel.return
}

//      CHECK:"""Kernel rms_norm, printed by Lamella: 4 warps, 1 stage."""
// CHECK-EMPTY:
// CHECK-NEXT:import triton
// CHECK-NEXT:import triton.language as tl
// CHECK-EMPTY:
// CHECK-NEXT:SIGNATURE = {"x_ptr": "*bf16", "out_ptr": "*bf16", "n": "i32"}
// CHECK-NEXT:NUM_WARPS = 4
// CHECK-NEXT:NUM_STAGES = 1
// CHECK-EMPTY:
// CHECK-EMPTY:
// CHECK-NEXT:@triton.jit
// CHECK-NEXT:def rms_norm(x_ptr, out_ptr, n, PDL: tl.constexpr = False):
// CHECK-NEXT:    if PDL:
// CHECK-NEXT:        tl.extra.cuda.gdc_launch_dependents()
// CHECK-NEXT:    if PDL:
// CHECK-NEXT:        tl.extra.cuda.gdc_wait()
// CHECK-NEXT:    row = tl.program_id(0)
// CHECK-NEXT:    start = row * 576
// CHECK-NEXT:    lane = tl.arange(0, 256)
// CHECK-NEXT:    acc = tl.full((256,), 0.0, tl.float32)
// CHECK-NEXT:    for i in range(0, n, 256):
// CHECK-NEXT:        cols = lane + i
// CHECK-NEXT:        mask = cols < n
// CHECK-NEXT:        at = start + cols
// CHECK-NEXT:        raw = tl.load(x_ptr + at, mask=mask, other=0.0, eviction_policy="evict_first")  # rms_norm
// CHECK-NEXT:        x = raw.to(tl.float32)
// CHECK-NEXT:        acc = tl.fma(x, x, acc)  # rms_norm
// CHECK-NEXT:    total = tl.sum(acc, axis=0)
// CHECK-NEXT:    mean = total * 0.1
// CHECK-NEXT:    low = tl.cast(mean, tl.bfloat16)
// CHECK-NEXT:    first = row == 0
// CHECK-NEXT:    second = row < n
// CHECK-NEXT:    if first:
// CHECK-NEXT:        tl.store(out_ptr + row, low)
// CHECK-NEXT:    elif second:
// CHECK-NEXT:        tl.store(out_ptr + row, 0.0)
// CHECK-EMPTY:
// CHECK-EMPTY:
// CHECK-NEXT:"""Kernel product, printed by Lamella: 1 warp, 2 stages."""
// CHECK-EMPTY:
// CHECK-NEXT:import triton
// CHECK-NEXT:import triton.language as tl
// CHECK-EMPTY:
// CHECK-NEXT:SIGNATURE = {"x_ptr": "*fp32"}
// CHECK-NEXT:NUM_WARPS = 1
// CHECK-NEXT:NUM_STAGES = 2
// CHECK-EMPTY:
// CHECK-EMPTY:
// CHECK-NEXT:@triton.jit
// CHECK-NEXT:def combine(a, b):
// CHECK-NEXT:    ab = a * b
// CHECK-NEXT:    return ab
// CHECK-EMPTY:
// CHECK-EMPTY:
// CHECK-NEXT:@triton.jit
// CHECK-NEXT:def product(x_ptr):
// CHECK-NEXT:    lane = tl.arange(0, 16)
// CHECK-NEXT:    x = tl.load(x_ptr + lane)
// CHECK-NEXT:    all = tl.reduce(x, axis=0, combine_fn=combine)
// CHECK-NEXT:    tl.store(x_ptr + 0, all)
