// RUN: lamella-opt %s -p check-coalescing | filecheck %s

// Rows of a row-major matrix are whole, its columns are not; one column in each of 64 rows wastes all but an element of a line.
// CHECK-LABEL: kernel.func @matrix
// CHECK-SAME: {bytes = 4096 : i64, op = "load", pointer = "x_ptr", source = "norm: load", stride = 1 : i64, value = "row", verdict = "whole", waste = 0 : i64, width_bytes = 4096 : i64}
// CHECK-SAME: {bytes = 128 : i64, op = "load", pointer = "x_ptr", source = "", stride = 2048 : i64, value = "few", verdict = "small", waste = 99 : i64, width_bytes = 2 : i64}
// CHECK-SAME: {bytes = 256 : i64, op = "store", pointer = "y_ptr", source = "", stride = 2048 : i64, value = "wide", verdict = "strided", waste = 97 : i64, width_bytes = 4 : i64}
kernel.func @matrix(%x_ptr: !kernel.ptr<bf16>, %y_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  %width = kernel.constant 2048 : i32 -> i32
  %cols = kernel.arange {start = 0 : i64, end = 2048 : i64} : tensor<2048xi32>
  %row = kernel.load %x_ptr[%cols] {source = "norm: load"} : !kernel.ptr<bf16>, tensor<2048xi32> -> tensor<2048xbf16>
  %n = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
  %starts = kernel.mul %n, %width : tensor<64xi32>, i32 -> tensor<64xi32>
  %few = kernel.load %x_ptr[%starts] : !kernel.ptr<bf16>, tensor<64xi32> -> tensor<64xbf16>
  %wide = kernel.cast %few : tensor<64xbf16> -> tensor<64xf32>
  kernel.store %y_ptr[%starts], %wide : !kernel.ptr<f32>, tensor<64xi32>, tensor<64xf32>
  kernel.return
}

// A program takes 4 rows of a weight. Stored [out, in] they are whole; transposed, 4 neighbours out of every 2,048 are of use.
// CHECK-LABEL: kernel.func @weights
// CHECK-SAME: stride = 1 : i64, value = "w", verdict = "whole", waste = 0 : i64, width_bytes = 16384 : i64}
// CHECK-SAME: stride = 1 : i64, value = "wt", verdict = "strided", waste = 94 : i64, width_bytes = 8 : i64}
kernel.func @weights(%w_ptr: !kernel.ptr<bf16>) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  %program = kernel.program_id 0 : i64 -> i32
  %four = kernel.constant 4 : i32 -> i32
  %size = kernel.constant 2048 : i32 -> i32
  %start = kernel.mul %program, %four : i32, i32 -> i32
  %range = kernel.arange {start = 0 : i64, end = 4 : i64} : tensor<4xi32>
  %n = kernel.add %start, %range : i32, tensor<4xi32> -> tensor<4xi32>
  %k = kernel.arange {start = 0 : i64, end = 2048 : i64} : tensor<2048xi32>
  %rows = kernel.expand_dims %n {axis = 1 : i64} : tensor<4xi32> -> tensor<4x1xi32>
  %cols = kernel.expand_dims %k {axis = 0 : i64} : tensor<2048xi32> -> tensor<1x2048xi32>
  %row_start = kernel.mul %rows, %size : tensor<4x1xi32>, i32 -> tensor<4x1xi32>
  %offsets = kernel.add %row_start, %cols : tensor<4x1xi32>, tensor<1x2048xi32> -> tensor<4x2048xi32>
  %w = kernel.load %w_ptr[%offsets] : !kernel.ptr<bf16>, tensor<4x2048xi32> -> tensor<4x2048xbf16>
  %col_start = kernel.mul %cols, %size : tensor<1x2048xi32>, i32 -> tensor<1x2048xi32>
  %across = kernel.add %col_start, %rows : tensor<1x2048xi32>, tensor<4x1xi32> -> tensor<4x2048xi32>
  %wt = kernel.load %w_ptr[%across] : !kernel.ptr<bf16>, tensor<4x2048xi32> -> tensor<4x2048xbf16>
  kernel.return
}

// Blocks of 16 slots of 64 numbers at addresses from a table: 2,048 bytes in one piece. Slots of 16 numbers out of a row of 256: 32.
// CHECK-LABEL: kernel.func @paged
// CHECK-SAME: {bytes = 8 : i64, op = "load", pointer = "table_ptr", source = "", stride = 0 : i64, value = "number", verdict = "small", waste = 97 : i64, width_bytes = 4 : i64}
// CHECK-SAME: bytes = 4096 : i64, op = "load", pointer = "cache_ptr", source = "", stride = 1 : i64, value = "keys", verdict = "whole", waste = 0 : i64, width_bytes = 2048 : i64}
// CHECK-SAME: bytes = 1024 : i64, op = "load", pointer = "cache_ptr", source = "", stride = 1 : i64, value = "gathered", verdict = "gathered", waste = 75 : i64, width_bytes = 32 : i64}
kernel.func @paged(%cache_ptr: !kernel.ptr<bf16>, %table_ptr: !kernel.ptr<i32>, %ids_ptr: !kernel.ptr<i32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  %block = kernel.constant 16 : i32 -> i32
  %dim = kernel.constant 64 : i32 -> i32
  %width = kernel.constant 256 : i32 -> i32
  %t = kernel.arange {start = 0 : i64, end = 32 : i64} : tensor<32xi32>
  %entry = kernel.floordiv %t, %block : tensor<32xi32>, i32 -> tensor<32xi32>
  %number = kernel.load %table_ptr[%entry] : !kernel.ptr<i32>, tensor<32xi32> -> tensor<32xi32>
  %slot = kernel.mod %t, %block : tensor<32xi32>, i32 -> tensor<32xi32>
  %base = kernel.mul %number, %block : tensor<32xi32>, i32 -> tensor<32xi32>
  %cell = kernel.add %base, %slot : tensor<32xi32>, tensor<32xi32> -> tensor<32xi32>
  %address = kernel.mul %cell, %dim : tensor<32xi32>, i32 -> tensor<32xi32>
  %rows = kernel.expand_dims %address {axis = 1 : i64} : tensor<32xi32> -> tensor<32x1xi32>
  %d = kernel.arange {start = 0 : i64, end = 64 : i64} : tensor<64xi32>
  %cols = kernel.expand_dims %d {axis = 0 : i64} : tensor<64xi32> -> tensor<1x64xi32>
  %offsets = kernel.add %rows, %cols : tensor<32x1xi32>, tensor<1x64xi32> -> tensor<32x64xi32>
  %keys = kernel.load %cache_ptr[%offsets] : !kernel.ptr<bf16>, tensor<32x64xi32> -> tensor<32x64xbf16>
  %ids = kernel.load %ids_ptr[%t] : !kernel.ptr<i32>, tensor<32xi32> -> tensor<32xi32>
  %picked = kernel.mul %ids, %width : tensor<32xi32>, i32 -> tensor<32xi32>
  %down = kernel.expand_dims %picked {axis = 1 : i64} : tensor<32xi32> -> tensor<32x1xi32>
  %part = kernel.arange {start = 0 : i64, end = 16 : i64} : tensor<16xi32>
  %along = kernel.expand_dims %part {axis = 0 : i64} : tensor<16xi32> -> tensor<1x16xi32>
  %places = kernel.add %down, %along : tensor<32x1xi32>, tensor<1x16xi32> -> tensor<32x16xi32>
  %gathered = kernel.load %cache_ptr[%places] : !kernel.ptr<bf16>, tensor<32x16xi32> -> tensor<32x16xbf16>
  kernel.return
}

// Pairs of columns read for one angle: the analysis sees runs of two that may continue each other, and says that it does not know.
// CHECK-LABEL: kernel.func @pairs
// CHECK-SAME: value = "angles", verdict = "unknown"
kernel.func @pairs(%x_ptr: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  %two = kernel.constant 2 : i32 -> i32
  %d = kernel.arange {start = 0 : i64, end = 128 : i64} : tensor<128xi32>
  %angle = kernel.floordiv %d, %two : tensor<128xi32>, i32 -> tensor<128xi32>
  %angles = kernel.load %x_ptr[%angle] : !kernel.ptr<f32>, tensor<128xi32> -> tensor<128xf32>
  kernel.return
}

// A block that the hardware fetches by a descriptor: whole lines, or half of each.
// CHECK-LABEL: kernel.func @described
// CHECK-SAME: {bytes = 16384 : i64, op = "load_block", pointer = "x_desc", source = "", stride = 1 : i64, value = "x", verdict = "whole", waste = 0 : i64, width_bytes = 128 : i64}
// CHECK-SAME: {bytes = 4096 : i64, op = "load_block", pointer = "w_desc", source = "", stride = 1 : i64, value = "w", verdict = "strided", waste = 50 : i64, width_bytes = 64 : i64}
kernel.func @described(%x_desc: !kernel.descriptor<128x64xbf16>, %w_desc: !kernel.descriptor<64x32xbf16>) attributes {num_warps = 4 : i64, num_stages = 1 : i64} {
  %zero = kernel.constant 0 : i32 -> i32
  %x = kernel.load_block %x_desc[%zero, %zero] : !kernel.descriptor<128x64xbf16> -> tensor<128x64xbf16>
  %w = kernel.load_block %w_desc[%zero, %zero] : !kernel.descriptor<64x32xbf16> -> tensor<64x32xbf16>
  kernel.return
}
