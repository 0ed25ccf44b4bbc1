// RUN: lamella-opt %s -p dependent-launch | filecheck %s
// RUN: lamella-opt %s -p 'dependent-launch,dependent-launch' | filecheck %s
// RUN: lamella-opt %s -p 'dependent-launch{waits=false}' | filecheck %s --check-prefix=ALONE
// RUN: lamella-opt %s -p 'dependent-launch{pipelined=true}' | filecheck %s --check-prefix=ALL

// The IR of the pass's docstring: the weight (parameter 0) is read before the wait, what another launch may have written after it.
// CHECK-LABEL: kernel.func @gemv
// CHECK-NEXT:    kernel.launch_dependents
// CHECK:         = kernel.load %w_ptr
// CHECK-NEXT:    kernel.wait_prerequisites
// CHECK-NEXT:    = kernel.load %x_ptr
kernel.func @gemv(%w_ptr: !kernel.ptr<f32>, %x_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64, settled = array<i64: 0>} {
  %lane = kernel.arange {start = 0 : i64, end = 8 : i64} : tensor<8xi32>
  %w = kernel.load %w_ptr[%lane] : !kernel.ptr<f32>, tensor<8xi32> -> tensor<8xf32>
  %x = kernel.load %x_ptr[%lane] : !kernel.ptr<f32>, tensor<8xi32> -> tensor<8xf32>
  %y = kernel.mul %w, %x : tensor<8xf32>, tensor<8xf32> -> tensor<8xf32>
  kernel.store %y_ptr[%lane], %y : !kernel.ptr<f32>, tensor<8xi32>, tensor<8xf32>
  kernel.return
}

// The bytes of settled words are settled too; those of others are not.
// CHECK-LABEL: kernel.func @bytes
// CHECK-NEXT:    kernel.launch_dependents
// CHECK:         = kernel.load %w_bytes
// CHECK-NEXT:    kernel.wait_prerequisites
// CHECK-NEXT:    = kernel.load %x_bytes
kernel.func @bytes(%w_ptr: !kernel.ptr<i32>, %x_ptr: !kernel.ptr<i32>, %y_ptr: !kernel.ptr<i8>) attributes {num_warps = 1 : i64, num_stages = 1 : i64, settled = array<i64: 0>} {
  %lane = kernel.arange {start = 0 : i64, end = 8 : i64} : tensor<8xi32>
  %w_bytes = kernel.as_bytes %w_ptr : !kernel.ptr<i32> -> !kernel.ptr<i8>
  %x_bytes = kernel.as_bytes %x_ptr : !kernel.ptr<i32> -> !kernel.ptr<i8>
  %w = kernel.load %w_bytes[%lane] : !kernel.ptr<i8>, tensor<8xi32> -> tensor<8xi8>
  %x = kernel.load %x_bytes[%lane] : !kernel.ptr<i8>, tensor<8xi32> -> tensor<8xi8>
  kernel.store %y_ptr[%lane], %w : !kernel.ptr<i8>, tensor<8xi32>, tensor<8xi8>
  kernel.store %y_ptr[%lane], %x : !kernel.ptr<i8>, tensor<8xi32>, tensor<8xi8>
  kernel.return
}

// Never inside a loop: a pipelined loop may hoist a load past it.
// CHECK-LABEL: kernel.func @loop
// CHECK-NEXT:    kernel.launch_dependents
// CHECK:         = kernel.load %w_ptr
// CHECK-NEXT:    kernel.wait_prerequisites
// CHECK-NEXT:    kernel.for
// CHECK-NOT:     kernel.wait_prerequisites
kernel.func @loop(%w_ptr: !kernel.ptr<f32>, %x_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64, settled = array<i64: 0>} {
  %lane = kernel.arange {start = 0 : i64, end = 8 : i64} : tensor<8xi32>
  %zero = kernel.constant 0 : i32 -> i32
  %end = kernel.constant 64 : i32 -> i32
  %step = kernel.constant 8 : i32 -> i32
  %w = kernel.load %w_ptr[%lane] : !kernel.ptr<f32>, tensor<8xi32> -> tensor<8xf32>
  kernel.for %i = %zero to %end step %step {
    %at = kernel.add %lane, %i : tensor<8xi32>, i32 -> tensor<8xi32>
    %x = kernel.load %x_ptr[%at] : !kernel.ptr<f32>, tensor<8xi32> -> tensor<8xf32>
    %y = kernel.mul %w, %x : tensor<8xf32>, tensor<8xf32> -> tensor<8xf32>
    kernel.store %y_ptr[%at], %y : !kernel.ptr<f32>, tensor<8xi32>, tensor<8xf32>
  }
  kernel.return
}

// On every path once: each branch has its own.
// CHECK-LABEL: kernel.func @branches
// CHECK:         kernel.if
// CHECK-NEXT:      = kernel.load %w_ptr
// CHECK-NEXT:      kernel.wait_prerequisites
// CHECK-NEXT:      kernel.store
// CHECK-NEXT:    } else {
// CHECK-NEXT:      kernel.wait_prerequisites
// CHECK-NEXT:      = kernel.load %y_ptr
kernel.func @branches(%w_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64, settled = array<i64: 0>} {
  %p = kernel.program_id 0 : i64 -> i32
  %four = kernel.constant 4 : i32 -> i32
  %low = kernel.lt %p, %four : i32, i32 -> i1
  kernel.if %low {
    %w = kernel.load %w_ptr[%p] : !kernel.ptr<f32>, i32 -> f32
    kernel.store %y_ptr[%p], %w : !kernel.ptr<f32>, i32, f32
  } else {
    %y = kernel.load %y_ptr[%p] : !kernel.ptr<f32>, i32 -> f32
    kernel.store %y_ptr[%p], %y : !kernel.ptr<f32>, i32, f32
  }
  kernel.return
}

// A kernel that needs nothing waits too: its successor relies on that.
// CHECK-LABEL: kernel.func @nothing
// CHECK-NEXT:    kernel.launch_dependents
// CHECK-NEXT:    kernel.wait_prerequisites
// CHECK-NEXT:    kernel.return
kernel.func @nothing(%x_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  kernel.return
}

// A load whose mask leaves only what earlier steps wrote need not wait, though the launch before writes others behind the pointer.
// CHECK-LABEL: kernel.func @cache
// CHECK:         %old = kernel.load %cache_ptr
// CHECK-NEXT:    kernel.wait_prerequisites
// CHECK-NEXT:    %new = kernel.load %cache_ptr
kernel.func @cache(%cache_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  %t = kernel.arange {start = 0 : i64, end = 8 : i64} : tensor<8xi32>
  %last = kernel.constant 7 : i32 -> i32
  %zero = kernel.constant 0.0 : f32 -> f32
  %before = kernel.lt %t, %last : tensor<8xi32>, i32 -> tensor<8xi1>
  %old = kernel.load %cache_ptr[%t] mask %before : tensor<8xi1> other %zero : f32 {settled} : !kernel.ptr<f32>, tensor<8xi32> -> tensor<8xf32>
  %new = kernel.load %cache_ptr[%t] : !kernel.ptr<f32>, tensor<8xi32> -> tensor<8xf32>
  %y = kernel.where %before, %old, %new : tensor<8xi1>, tensor<8xf32>, tensor<8xf32> -> tensor<8xf32>
  kernel.store %y_ptr[%t], %y : !kernel.ptr<f32>, tensor<8xi32>, tensor<8xf32>
  kernel.return
}

// A kernel that keeps tiles in flight and reads nothing early waits, and lets nobody go before its end; or it is launched the ordinary way.
// CHECK-LABEL: kernel.func @pipelined
// CHECK-NOT:     kernel.launch_dependents
// CHECK:         kernel.wait_prerequisites
// CHECK-NEXT:    kernel.for
// CHECK-NOT:     kernel.launch_dependents
// CHECK:         kernel.return
// ALONE-LABEL: kernel.func @pipelined
// ALONE-NOT:     kernel.launch_dependents
// ALONE-NOT:     kernel.wait_prerequisites
// ALONE:         kernel.return
// ALL-LABEL: kernel.func @pipelined
// ALL-NEXT:      kernel.launch_dependents
// ALL:           kernel.wait_prerequisites
kernel.func @pipelined(%w_ptr: !kernel.ptr<f32>, %x_ptr: !kernel.ptr<f32>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 3 : i64, settled = array<i64: 0>} {
  %lane = kernel.arange {start = 0 : i64, end = 8 : i64} : tensor<8xi32>
  %zero = kernel.constant 0 : i32 -> i32
  %end = kernel.constant 64 : i32 -> i32
  %step = kernel.constant 8 : i32 -> i32
  kernel.for %i = %zero to %end step %step attributes {num_stages = 3 : i64} {
    %at = kernel.add %lane, %i : tensor<8xi32>, i32 -> tensor<8xi32>
    %w = kernel.load %w_ptr[%at] : !kernel.ptr<f32>, tensor<8xi32> -> tensor<8xf32>
    %x = kernel.load %x_ptr[%at] : !kernel.ptr<f32>, tensor<8xi32> -> tensor<8xf32>
    %y = kernel.mul %w, %x : tensor<8xf32>, tensor<8xf32> -> tensor<8xf32>
    kernel.store %y_ptr[%at], %y : !kernel.ptr<f32>, tensor<8xi32>, tensor<8xf32>
  }
  kernel.return
}

// A launch after a call of a library starts when that has ended: its kernel is the same, and elsewhere may start early.
// CHECK-LABEL: func.func @library
// CHECK:         host.launch @gemv grid [1, 1, 1] ins(%w, %x : {{.*}}) outs(%y : memref<8xf32>)
// CHECK-NOT:     ordered
// CHECK-NEXT:    host.library_matmul
// CHECK-NEXT:    host.library_matmul
// CHECK-NEXT:    host.launch @gemv {{.*}} {ordered}
// CHECK-NEXT:    host.launch @gemv grid [1, 1, 1] ins(%w, %x : {{.*}}) outs(%y : memref<8xf32>)
// CHECK-NOT:     ordered
// CHECK-NEXT:    func.return
func.func @library(%w: memref<8xf32>, %x: memref<8xf32>, %y: memref<8xf32>, %a: memref<5x8xbf16>, %b: memref<3x8xbf16>, %c: memref<5x3xbf16>) {
  host.launch @gemv grid [1, 1, 1] ins(%w, %x : memref<8xf32>, memref<8xf32>) outs(%y : memref<8xf32>)
  host.library_matmul "t5_library_0" %a by %b into %c : memref<5x8xbf16>, memref<3x8xbf16> into memref<5x3xbf16>
  host.library_matmul "t5_library_0" %a by %b into %c : memref<5x8xbf16>, memref<3x8xbf16> into memref<5x3xbf16>
  host.launch @gemv grid [1, 1, 1] ins(%w, %x : memref<8xf32>, memref<8xf32>) outs(%y : memref<8xf32>)
  host.launch @gemv grid [1, 1, 1] ins(%w, %x : memref<8xf32>, memref<8xf32>) outs(%y : memref<8xf32>)
  func.return
}

// Blocks of a settled matrix are read before the wait, those of another one after it.
// CHECK-LABEL: kernel.func @described
// CHECK-NEXT:    kernel.launch_dependents
// CHECK-NEXT:    %zero = kernel.constant
// CHECK-NEXT:    %w = kernel.load_block %w_desc
// CHECK-NEXT:    kernel.wait_prerequisites
// CHECK-NEXT:    %x = kernel.load_block %x_desc
kernel.func @described(%x_desc: !kernel.descriptor<128x64xbf16>, %w_desc: !kernel.descriptor<64x64xbf16>) attributes {num_warps = 4 : i64, num_stages = 1 : i64, settled = array<i64: 1>} {
  %zero = kernel.constant 0 : i32 -> i32
  %w = kernel.load_block %w_desc[%zero, %zero] : !kernel.descriptor<64x64xbf16> -> tensor<64x64xbf16>
  %x = kernel.load_block %x_desc[%zero, %zero] : !kernel.descriptor<128x64xbf16> -> tensor<128x64xbf16>
  kernel.return
}

// What comes before such a kernel lets it go behind its own wait, if it has few programs; with many it does not.
// CHECK-LABEL: kernel.func @few
// CHECK-NEXT:    kernel.wait_prerequisites
// CHECK-NEXT:    kernel.launch_dependents
// CHECK-NEXT:    kernel.return
// ALONE-LABEL: kernel.func @few
// ALONE-NEXT:    kernel.launch_dependents
// ALONE-NEXT:    kernel.wait_prerequisites
kernel.func @few(%x_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  kernel.return
}

// CHECK-LABEL: kernel.func @many
// CHECK-NEXT:    kernel.wait_prerequisites
// CHECK-NEXT:    kernel.return
kernel.func @many(%x_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  kernel.return
}

func.func @step(%w: memref<8xf32>, %x: memref<8xf32>, %y: memref<8xf32>) {
  host.launch @few grid [64, 1, 1] outs(%x : memref<8xf32>)
  host.launch @pipelined grid [8, 1, 1] ins(%w, %x : memref<8xf32>, memref<8xf32>) outs(%y : memref<8xf32>)
  host.launch @many grid [64, 2, 1] outs(%x : memref<8xf32>)
  host.launch @pipelined grid [8, 1, 1] ins(%w, %x : memref<8xf32>, memref<8xf32>) outs(%y : memref<8xf32>)
  func.return
}
