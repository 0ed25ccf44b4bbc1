// RUN: lamella-opt %s -p check-pipelines | filecheck %s

// Products of a warp group alone read x.
// CHECK-LABEL: kernel.func @products
kernel.func @products(%x_ptr: !kernel.ptr<bf16>, %w_ptr: !kernel.ptr<bf16>, %out_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 3 : i64} {
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
    %zeros = kernel.constant 1.0 : f32 -> tensor<64x64xf32>
    %square = kernel.mul %zeros, %zeros : tensor<64x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    %more = kernel.add %squares, %square : tensor<64x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    kernel.yield %next, %more : tensor<64x64xf32>, tensor<64x64xf32>
  }
  kernel.store %out_ptr[%offsets], %squared : !kernel.ptr<f32>, tensor<64x64xi32>, tensor<64x64xf32>
  kernel.return
}

// Two warps are no group: a product is done when the loop goes on.
// CHECK-LABEL: kernel.func @two_warps
kernel.func @two_warps(%x_ptr: !kernel.ptr<bf16>, %w_ptr: !kernel.ptr<bf16>, %out_ptr: !kernel.ptr<f32>) attributes {num_warps = 2 : i64, num_stages = 3 : i64} {
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

// Nor do four warps multiply fewer than 64 rows together.
// CHECK-LABEL: kernel.func @few_rows
kernel.func @few_rows(%x_ptr: !kernel.ptr<bf16>, %w_ptr: !kernel.ptr<bf16>, %out_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 3 : i64} {
  %zero = kernel.constant 0 : i32 -> i32
  %end = kernel.constant 4096 : i32 -> i32
  %step = kernel.constant 64 : i32 -> i32
  %rows = kernel.arange {start = 0 : i64, end = 32 : i64} : tensor<32xi32>
  %columns = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
  %across = kernel.expand_dims %columns {axis = 0 : i64} : tensor<64xi32> -> tensor<1x64xi32>
  %down = kernel.expand_dims %rows {axis = 1 : i64} : tensor<32xi32> -> tensor<32x1xi32>
  %starts = kernel.mul %down, %end : tensor<32x1xi32>, i32 -> tensor<32x1xi32>
  %offsets = kernel.add %starts, %across : tensor<32x1xi32>, tensor<1x64xi32> -> tensor<32x64xi32>
  %none = kernel.constant 0.0 : f32 -> tensor<32x32xf32>
  %no_squares = kernel.constant 0.0 : f32 -> tensor<32x64xf32>
  %sums, %squared = kernel.for %i = %zero to %end step %step iter_args(%acc = %none, %squares = %no_squares) -> (tensor<32x32xf32>, tensor<32x64xf32>) attributes {num_stages = 3 : i64} {
    %at = kernel.add %offsets, %i : tensor<32x64xi32>, i32 -> tensor<32x64xi32>
    %x = kernel.load %x_ptr[%at] : !kernel.ptr<bf16>, tensor<32x64xi32> -> tensor<32x64xbf16>
    %w = kernel.load %w_ptr[%at] : !kernel.ptr<bf16>, tensor<32x64xi32> -> tensor<32x64xbf16>
    %turned = kernel.trans %x {order = array<i64: 1, 0>} : tensor<32x64xbf16> -> tensor<64x32xbf16>
    %next = kernel.dot %w, %turned, %acc : tensor<32x64xbf16>, tensor<64x32xbf16>, tensor<32x32xf32> -> tensor<32x32xf32>
    %wide = kernel.cast %x : tensor<32x64xbf16> -> tensor<32x64xf32>
    %square = kernel.mul %wide, %wide : tensor<32x64xf32>, tensor<32x64xf32> -> tensor<32x64xf32>
    %more = kernel.add %squares, %square : tensor<32x64xf32>, tensor<32x64xf32> -> tensor<32x64xf32>
    kernel.yield %next, %more : tensor<32x32xf32>, tensor<32x64xf32>
  }
  kernel.store %out_ptr[%offsets], %squared : !kernel.ptr<f32>, tensor<32x64xi32>, tensor<32x64xf32>
  kernel.return
}

// Columns that the loop computes lie in shared memory that the next trip writes: their product is waited for.
// CHECK-LABEL: kernel.func @computed
kernel.func @computed(%x_ptr: !kernel.ptr<bf16>, %w_ptr: !kernel.ptr<bf16>, %out_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 3 : i64} {
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
    %as_float = kernel.cast %x : tensor<64x64xbf16> -> tensor<64x64xf32>
    %double = kernel.cast %as_float : tensor<64x64xf32> -> tensor<64x64xbf16>
    %turned = kernel.trans %double {order = array<i64: 1, 0>} : tensor<64x64xbf16> -> tensor<64x64xbf16>
    %next = kernel.dot %w, %turned, %acc : tensor<64x64xbf16>, tensor<64x64xbf16>, tensor<64x64xf32> -> tensor<64x64xf32>
    %wide = kernel.cast %x : tensor<64x64xbf16> -> tensor<64x64xf32>
    %square = kernel.mul %wide, %wide : tensor<64x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    %more = kernel.add %squares, %square : tensor<64x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    kernel.yield %next, %more : tensor<64x64xf32>, tensor<64x64xf32>
  }
  kernel.store %out_ptr[%offsets], %squared : !kernel.ptr<f32>, tensor<64x64xi32>, tensor<64x64xf32>
  kernel.return
}
