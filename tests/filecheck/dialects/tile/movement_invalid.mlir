// RUN: lamella-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: tile.gather_columns at layers.0.ffn.down: columns have type tensor<4xf32>, expected a vector of i32
func.func @columns(%x: tensor<3x8xf32>, %columns: tensor<4xf32>) {
  %y = tile.gather_columns %x[%columns] {loc = "layers.0.ffn.down"} : tensor<3x8xf32>, tensor<4xf32> -> tensor<3x4xf32>
  func.return
}

// -----

// CHECK: tile.gather_columns: x has type tensor<8xf32>, expected a matrix
func.func @column_of_vector(%x: tensor<8xf32>, %columns: tensor<4xi32>) {
  %y = tile.gather_columns %x[%columns] : tensor<8xf32>, tensor<4xi32> -> tensor<8x4xf32>
  func.return
}

// -----

// CHECK: tile.gather_columns: result has type tensor<3x8xf32>, expected tensor<3x4xf32>
func.func @too_many_columns(%x: tensor<3x8xf32>, %columns: tensor<4xi32>) {
  %y = tile.gather_columns %x[%columns] : tensor<3x8xf32>, tensor<4xi32> -> tensor<3x8xf32>
  func.return
}

// -----

// CHECK: tile.gather at embed: rows have type tensor<3xf32>, expected a vector of i32
func.func @gather(%table: tensor<32x4xf32>, %rows: tensor<3xf32>) {
  %y = tile.gather %table[%rows] {loc = "embed"} : tensor<32x4xf32>, tensor<3xf32> -> tensor<3x4xf32>
  func.return
}

// -----

// CHECK: tile.gather: result has shape (4, 3), expected (3, 4)
func.func @gathered(%table: tensor<32x4xf32>, %rows: tensor<3xi32>) {
  %y = tile.gather %table[%rows] : tensor<32x4xf32>, tensor<3xi32> -> tensor<4x3xf32>
  func.return
}

// -----

// CHECK: tile.slots: query_start has shape (3,), expected (2,), one more than the sequences of block_table
func.func @slots(%positions: tensor<3xi32>, %query_start: tensor<3xi32>, %block_table: tensor<1x4xi32>) {
  %y = tile.slots %positions, %query_start, %block_table block 16 : i64 : tensor<3xi32>, tensor<3xi32>, tensor<1x4xi32> -> tensor<3xi32>
  func.return
}

// -----

// CHECK: tile.scatter at layers.0: values have shape (3, 6), expected (3, 8)
func.func @scatter(%v: tensor<3x6xf32>, %cache: tensor<?x2x2x16x4xf32>, %slots: tensor<3xi32>) {
  %y = tile.scatter %v into %cache[%slots] part 0 : i64 {loc = "layers.0"} : tensor<3x6xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32> -> tensor<?x2x2x16x4xf32>
  func.return
}

// -----

// CHECK: tile.scatter: values have element type bf16, expected f32, that of the cache
func.func @rounds(%v: tensor<3x8xbf16>, %cache: tensor<?x2x2x16x4xf32>, %slots: tensor<3xi32>) {
  %y = tile.scatter %v into %cache[%slots] part 1 : i64 : tensor<3x8xbf16>, tensor<?x2x2x16x4xf32>, tensor<3xi32> -> tensor<?x2x2x16x4xf32>
  func.return
}

// -----

// CHECK: tile.rotate: style is "interleaved", expected "half" or "paired"
func.func @style(%x: tensor<3x8xf32>, %rows: tensor<3x4xf32>) {
  %y = tile.rotate "interleaved" %x by %rows heads 2 : i64 head_dim 4 : i64 rotary_dim 4 : i64 : tensor<3x8xf32>, tensor<3x4xf32> -> tensor<3x8xf32>
  func.return
}

// -----

// CHECK: tile.rotate: x has 8 columns, expected 12, heads times head_dim
func.func @heads(%x: tensor<3x8xf32>, %rows: tensor<3x4xf32>) {
  %y = tile.rotate "half" %x by %rows heads 3 : i64 head_dim 4 : i64 rotary_dim 4 : i64 : tensor<3x8xf32>, tensor<3x4xf32> -> tensor<3x8xf32>
  func.return
}

// -----

// CHECK: tile.rotate: rotary_dim is 6, expected an even number of at most head_dim = 4
func.func @rotary(%x: tensor<3x8xf32>, %rows: tensor<3x6xf32>) {
  %y = tile.rotate "half" %x by %rows heads 2 : i64 head_dim 4 : i64 rotary_dim 6 : i64 : tensor<3x8xf32>, tensor<3x6xf32> -> tensor<3x8xf32>
  func.return
}

// -----

// CHECK: tile.rotate: rows have shape (3, 8), expected (3, 4)
func.func @rows(%x: tensor<3x8xf32>, %rows: tensor<3x8xf32>) {
  %y = tile.rotate "half" %x by %rows heads 2 : i64 head_dim 4 : i64 rotary_dim 4 : i64 : tensor<3x8xf32>, tensor<3x8xf32> -> tensor<3x8xf32>
  func.return
}

// -----

// CHECK: tile.reshape at layers.0: input has shape (3, 8), 24 numbers, expected 20, those of (5, 4)
func.func @numbers(%x: tensor<3x8xf32>) {
  %y = tile.reshape %x to [5, 4] {loc = "layers.0"} : tensor<3x8xf32> -> tensor<5x4xf32>
  func.return
}

// -----

// CHECK: tile.reshape: result has type tensor<6x4xf32>, expected (4, 6) of f32
func.func @sizes(%x: tensor<3x8xf32>) {
  %y = tile.reshape %x to [4, 6] : tensor<3x8xf32> -> tensor<6x4xf32>
  func.return
}

// -----
// CHECK: tile.columns: x has type tensor<8xf32>, expected a matrix
func.func @numbers_of_a_vector(%x: tensor<8xf32>) {
  %n = tile.columns %x : tensor<8xf32> -> tensor<8xi32>
  func.return
}

// -----
// CHECK: tile.columns at factors: result has type tensor<3x8xf32>, expected tensor<3x8xi32>
func.func @numbers_in_floats(%x: tensor<3x8xf32>) {
  %n = tile.columns %x {loc = "factors"} : tensor<3x8xf32> -> tensor<3x8xf32>
  func.return
}

// -----

// CHECK: tile.swap_pairs at layers.0.ffn.down: x has type tensor<3x12xf32>, expected rows of multiples of 8 columns
func.func @half_of_four_pairs(%x: tensor<3x12xf32>) {
  %y = tile.swap_pairs %x {loc = "layers.0.ffn.down"} : tensor<3x12xf32> -> tensor<3x12xf32>
  func.return
}

// -----

// CHECK: tile.swap_pairs: result has type tensor<3x8xbf16>, expected tensor<3x8xf32>
func.func @swapped_type(%x: tensor<3x8xf32>) {
  %y = tile.swap_pairs %x : tensor<3x8xf32> -> tensor<3x8xbf16>
  func.return
}
