// RUN: lamella-opt %s -p check-pipelines --split-input-file --verify-diagnostics | filecheck %s

// CHECK: kernel.func @squares: kernel.load is read by a product of a warp group and by kernel.cast, expected products alone: the next tile is written while they read (fewer than 4 warps, or less than 64 rows a program)
kernel.func @squares(%x_ptr: !kernel.ptr<bf16>, %w_ptr: !kernel.ptr<bf16>, %out_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 3 : i64} {
  %zero = kernel.constant 0 : i32 -> i32
  %end = kernel.constant 4096 : i32 -> i32
  %step = kernel.constant 64 : i32 -> i32
  %rows = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
  %columns = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
  %across = kernel.expand_dims %columns {axis = 0 : i64} : tensor<64xi32> -> tensor<1x64xi32>
  %down = kernel.expand_dims %rows {axis = 1 : i64} : tensor<64xi32> -> tensor<64x1xi32>
  %starts = kernel.mul %down, %end : tensor<64x1xi32>, i32 -> tensor<64x1xi32>
  %offsets = kernel.add %starts, %across : tensor<64x1xi32>, tensor<1x64xi32> -> tensor<64x64xi32>
  %none = kernel.constant 0.0 : f32 -> tensor<64x64xf32>
  %no_squares = kernel.constant 0.0 : f32 -> tensor<64x64xf32>
  %sums, %squared = kernel.for %i = %zero to %end step %step iter_args(%acc = %none, %squares = %no_squares) -> (tensor<64x64xf32>, tensor<64x64xf32>) attributes {num_stages = 3 : i64} {
    %at = kernel.add %offsets, %i : tensor<64x64xi32>, i32 -> tensor<64x64xi32>
    %x = kernel.load %x_ptr[%at] : !kernel.ptr<bf16>, tensor<64x64xi32> -> tensor<64x64xbf16>
    %w = kernel.load %w_ptr[%at] : !kernel.ptr<bf16>, tensor<64x64xi32> -> tensor<64x64xbf16>
    %turned = kernel.trans %x {order = array<i64: 1, 0>} : tensor<64x64xbf16> -> tensor<64x64xbf16>
    %next = kernel.dot %w, %turned, %acc : tensor<64x64xbf16>, tensor<64x64xbf16>, tensor<64x64xf32> -> tensor<64x64xf32>
    %wide = kernel.cast %x : tensor<64x64xbf16> -> tensor<64x64xf32>
    %square = kernel.mul %wide, %wide : tensor<64x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    %more = kernel.add %squares, %square : tensor<64x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    kernel.yield %next, %more : tensor<64x64xf32>, tensor<64x64xf32>
  }
  kernel.store %out_ptr[%offsets], %squared : !kernel.ptr<f32>, tensor<64x64xi32>, tensor<64x64xf32>
  kernel.return
}

// -----

// Tiles that a descriptor fetches are loads as others.
// CHECK: kernel.func @described: kernel.load_block is read by a product of a warp group and by kernel.cast
kernel.func @described(%x_desc: !kernel.descriptor<64x64xbf16>, %w_ptr: !kernel.ptr<bf16>, %out_ptr: !kernel.ptr<f32>) attributes {num_warps = 8 : i64, num_stages = 3 : i64} {
  %zero = kernel.constant 0 : i32 -> i32
  %end = kernel.constant 4096 : i32 -> i32
  %step = kernel.constant 64 : i32 -> i32
  %rows = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
  %columns = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
  %across = kernel.expand_dims %columns {axis = 0 : i64} : tensor<64xi32> -> tensor<1x64xi32>
  %down = kernel.expand_dims %rows {axis = 1 : i64} : tensor<64xi32> -> tensor<64x1xi32>
  %starts = kernel.mul %down, %end : tensor<64x1xi32>, i32 -> tensor<64x1xi32>
  %offsets = kernel.add %starts, %across : tensor<64x1xi32>, tensor<1x64xi32> -> tensor<64x64xi32>
  %none = kernel.constant 0.0 : f32 -> tensor<64x64xf32>
  %no_squares = kernel.constant 0.0 : f32 -> tensor<64x64xf32>
  %sums, %squared = kernel.for %i = %zero to %end step %step iter_args(%acc = %none, %squares = %no_squares) -> (tensor<64x64xf32>, tensor<64x64xf32>) attributes {num_stages = 3 : i64} {
    %at = kernel.add %offsets, %i : tensor<64x64xi32>, i32 -> tensor<64x64xi32>
    %x = kernel.load_block %x_desc[%zero, %i] : !kernel.descriptor<64x64xbf16> -> tensor<64x64xbf16>
    %w = kernel.load %w_ptr[%at] : !kernel.ptr<bf16>, tensor<64x64xi32> -> tensor<64x64xbf16>
    %turned = kernel.trans %x {order = array<i64: 1, 0>} : tensor<64x64xbf16> -> tensor<64x64xbf16>
    %next = kernel.dot %w, %turned, %acc : tensor<64x64xbf16>, tensor<64x64xbf16>, tensor<64x64xf32> -> tensor<64x64xf32>
    %wide = kernel.cast %x : tensor<64x64xbf16> -> tensor<64x64xf32>
    %square = kernel.mul %wide, %wide : tensor<64x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    %more = kernel.add %squares, %square : tensor<64x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    kernel.yield %next, %more : tensor<64x64xf32>, tensor<64x64xf32>
  }
  kernel.store %out_ptr[%offsets], %squared : !kernel.ptr<f32>, tensor<64x64xi32>, tensor<64x64xf32>
  kernel.return
}
