// RUN: lamella-opt %s | lamella-opt | filecheck %s
// RUN: lamella-opt %s --print-op-generic | lamella-opt | filecheck %s

func.func @movement(%table: tensor<32x4xf32>, %positions: tensor<3xi32>, %query_start: tensor<2xi32>, %block_table: tensor<1x4xi32>, %cache: tensor<?x2x2x16x4xf32>, %k: tensor<3x8xf32>) -> tensor<?x2x2x16x4xf32> {
  // CHECK: %rows = tile.gather %table[%positions] {loc = "rope"} : tensor<32x4xf32>, tensor<3xi32> -> tensor<3x4xf32>
  %rows = tile.gather %table[%positions] {loc = "rope"} : tensor<32x4xf32>, tensor<3xi32> -> tensor<3x4xf32>
  // CHECK-NEXT: %slots = tile.slots %positions, %query_start, %block_table block 16 : i64 : tensor<3xi32>, tensor<2xi32>, tensor<1x4xi32> -> tensor<3xi32>
  %slots = tile.slots %positions, %query_start, %block_table block 16 : i64 : tensor<3xi32>, tensor<2xi32>, tensor<1x4xi32> -> tensor<3xi32>
  // CHECK-NEXT: %turned = tile.rotate "paired" %k by %rows heads 2 : i64 head_dim 4 : i64 rotary_dim 4 : i64 {loc = "layers.0.rope_k"} : tensor<3x8xf32>, tensor<3x4xf32> -> tensor<3x8xf32>
  %turned = tile.rotate "paired" %k by %rows heads 2 : i64 head_dim 4 : i64 rotary_dim 4 : i64 {loc = "layers.0.rope_k"} : tensor<3x8xf32>, tensor<3x4xf32> -> tensor<3x8xf32>
  // CHECK-NEXT: %keyed = tile.scatter %turned into %cache[%slots] part 0 : i64 {loc = "layers.0.cache"} : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32> -> tensor<?x2x2x16x4xf32>
  %keyed = tile.scatter %turned into %cache[%slots] part 0 : i64 {loc = "layers.0.cache"} : tensor<3x8xf32>, tensor<?x2x2x16x4xf32>, tensor<3xi32> -> tensor<?x2x2x16x4xf32>
  func.return %keyed : tensor<?x2x2x16x4xf32>
}

// CHECK-LABEL: func.func @reshape
func.func @reshape(%x: tensor<3x8xf32>) -> tensor<6x4xf32> {
  // CHECK-NEXT: %heads = tile.reshape %x to [6, 4] {loc = "layers.0.attn.q_norm"} : tensor<3x8xf32> -> tensor<6x4xf32>
  %heads = tile.reshape %x to [6, 4] {loc = "layers.0.attn.q_norm"} : tensor<3x8xf32> -> tensor<6x4xf32>
  func.return %heads : tensor<6x4xf32>
}

func.func @columns(%x: tensor<3x8xbf16>, %columns: tensor<5xi32>) -> tensor<3x5xbf16> {
  // CHECK: %y = tile.gather_columns %x[%columns] {loc = "layers.0.attn.o"} : tensor<3x8xbf16>, tensor<5xi32> -> tensor<3x5xbf16>
  %y = tile.gather_columns %x[%columns] {loc = "layers.0.attn.o"} : tensor<3x8xbf16>, tensor<5xi32> -> tensor<3x5xbf16>
  func.return %y : tensor<3x5xbf16>
}

func.func @swap_pairs(%x: tensor<3x8xbf16>) -> tensor<3x8xbf16> {
  // CHECK: %y = tile.swap_pairs %x {loc = "layers.0.attn.o"} : tensor<3x8xbf16> -> tensor<3x8xbf16>
  %y = tile.swap_pairs %x {loc = "layers.0.attn.o"} : tensor<3x8xbf16> -> tensor<3x8xbf16>
  func.return %y : tensor<3x8xbf16>
}

func.func @numbers(%x: tensor<3x8xbf16>) -> tensor<3x8xi32> {
  // CHECK: %n = tile.columns %x {loc = "factors"} : tensor<3x8xbf16> -> tensor<3x8xi32>
  %n = tile.columns %x {loc = "factors"} : tensor<3x8xbf16> -> tensor<3x8xi32>
  func.return %n : tensor<3x8xi32>
}

// Heads may be rows of their own: here a scale for each.
// CHECK-LABEL: func.func @scatter_heads
func.func @scatter_heads(%values: tensor<6x1xf32>, %cache: tensor<?x2x2x16x1xf32>, %slots: tensor<3xi32>) -> tensor<?x2x2x16x1xf32> {
  // CHECK-NEXT: %c = tile.scatter %values into %cache[%slots] part 1 : i64 : tensor<6x1xf32>, tensor<?x2x2x16x1xf32>, tensor<3xi32>  -> tensor<?x2x2x16x1xf32>
  %c = tile.scatter %values into %cache[%slots] part 1 : i64 : tensor<6x1xf32>, tensor<?x2x2x16x1xf32>, tensor<3xi32> -> tensor<?x2x2x16x1xf32>
  func.return %c : tensor<?x2x2x16x1xf32>
}
