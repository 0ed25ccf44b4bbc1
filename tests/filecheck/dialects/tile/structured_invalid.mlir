// RUN: lamella-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: tile.constant: result has type tensor<1xf32>, expected tensor<f32>
%c = tile.constant 1.0 : f32 : tensor<1xf32>

// -----

// CHECK: tile.map at layers.0: operand 0 of add has element type bf16, expected f32, i32 or i1 (insert a tile.cast: rounding is explicit)
func.func @rounds(%x: tensor<3x8xbf16>) {
  %y = tile.map "add"(%x, %x) {loc = "layers.0"} : tensor<3x8xbf16>, tensor<3x8xbf16> -> tensor<3x8xbf16>
  func.return
}

// -----

// CHECK: tile.map: operands of mul have shapes [(3, 8), (3, 5)], which do not broadcast
func.func @shapes(%x: tensor<3x8xf32>, %y: tensor<3x5xf32>) {
  %z = tile.map "mul"(%x, %y) : tensor<3x8xf32>, tensor<3x5xf32> -> tensor<3x8xf32>
  func.return
}

// -----

// CHECK: tile.map: result of mul has shape (3, 1), expected (3, 8)
func.func @result(%x: tensor<3x8xf32>, %y: tensor<3x1xf32>) {
  %z = tile.map "mul"(%x, %y) : tensor<3x8xf32>, tensor<3x1xf32> -> tensor<3x1xf32>
  func.return
}

// -----

// CHECK: tile.cast: result has shape (8,), expected (4,), that of the operand
func.func @cast(%x: tensor<4xf32>) {
  %y = tile.cast %x : tensor<4xf32> -> tensor<8xbf16>
  func.return
}

// -----

// CHECK: tile.reduce: result of max has shape (3,), expected (3, 1)
func.func @axis(%x: tensor<3x8xf32>) {
  %y = tile.reduce "max" %x : tensor<3x8xf32> -> tensor<3xf32>
  func.return
}

// -----

// CHECK: tile.reduce: operand has element type bf16, expected f32 or i32
func.func @reduce(%x: tensor<3x8xbf16>) {
  %y = tile.reduce "sum" %x : tensor<3x8xbf16> -> tensor<3x1xbf16>
  func.return
}

// -----

// CHECK: tile.contract: weight has shape (5, 7), expected (_, 8), the last axis of x
func.func @contract(%x: tensor<3x8xf32>, %w: tensor<5x7xf32>) {
  %y = tile.contract %x, %w : tensor<3x8xf32>, tensor<5x7xf32> -> tensor<3x5xf32>
  func.return
}

// -----

// CHECK: tile.contract: result has shape (5, 3), expected (3, 5)
func.func @transposed(%x: tensor<3x8xf32>, %w: tensor<5x8xf32>) {
  %y = tile.contract %x, %w : tensor<3x8xf32>, tensor<5x8xf32> -> tensor<5x3xf32>
  func.return
}

// -----

// CHECK: tile.contract: weight has element type bf16, expected f32, that of x
func.func @mixed(%x: tensor<3x8xf32>, %w: tensor<5x8xbf16>) {
  %y = tile.contract %x, %w : tensor<3x8xf32>, tensor<5x8xbf16> -> tensor<3x5xf32>
  func.return
}

// -----

// CHECK: tile.contract_partial: 3 runs of 4 columns do not divide 8: each has some, and none is left
func.func @runs(%x: tensor<3x8xf32>, %w: tensor<5x8xf32>) {
  %y = tile.contract_partial %x, %w {splits = 3 : i64, chunk = 4 : i64} : tensor<3x8xf32>, tensor<5x8xf32> -> tensor<3x3x5xf32>
  func.return
}

// -----

// CHECK: tile.contract_partial: result has shape (3, 5), expected (2, 3, 5)
func.func @sums(%x: tensor<3x8xf32>, %w: tensor<5x8xf32>) {
  %y = tile.contract_partial %x, %w {splits = 2 : i64, chunk = 4 : i64} : tensor<3x8xf32>, tensor<5x8xf32> -> tensor<3x5xf32>
  func.return
}

// -----

// CHECK: tile.contract_merge: sums of shape (2, 3, 5) do not add up to (5, 3)
func.func @merged(%p: tensor<2x3x5xf32>) {
  %y = tile.contract_merge %p : tensor<2x3x5xf32> -> tensor<5x3xf32>
  func.return
}

// -----

// CHECK: tile.contract_merge: arrivals have type tensor<8xf32>, expected a vector of i32
func.func @counted(%p: tensor<2x3x5xf32>, %a: tensor<8xf32>) {
  %y = tile.contract_merge %p counted by %a : tensor<2x3x5xf32>, tensor<8xf32> -> tensor<3x5xf32>
  func.return
}

// -----

// CHECK: tile.contract at q: implementation is "cublas", expected "library" or "descriptors" or none
func.func @implementation(%x: tensor<3x8xbf16>, %w: tensor<5x8xbf16>) {
  %y = tile.contract %x, %w {loc = "q", implementation = "cublas"} : tensor<3x8xbf16>, tensor<5x8xbf16> -> tensor<3x5xf32>
  func.return
}

// -----

// CHECK: tile.add_columns at layers.0.norm: x has shape (3, 8), expected a matrix with a multiple of 3 columns
func.func @columns_left(%x: tensor<3x8xf32>) {
  %y = tile.add_columns %x by 3 : i64 {loc = "layers.0.norm"} : tensor<3x8xf32> -> tensor<3x2xf32>
  func.return
}

// -----

// CHECK: tile.add_columns: result has shape (3, 8), expected (3, 4)
func.func @columns_kept(%x: tensor<3x8xf32>) {
  %y = tile.add_columns %x by 2 : i64 : tensor<3x8xf32> -> tensor<3x8xf32>
  func.return
}
