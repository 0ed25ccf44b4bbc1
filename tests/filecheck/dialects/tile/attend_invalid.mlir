// RUN: lamella-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: tile.attend at layers.0: 4 heads cannot share 3 key/value heads evenly
func.func @groups(%q: tensor<3x16xf32>, %cache: tensor<?x2x3x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>) {
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len {loc = "layers.0", heads = 4 : i64, kv_heads = 3 : i64, head_dim = 4 : i64, scale = 0.5 : f64} : tensor<3x16xf32>, tensor<?x2x3x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x16xf32>
  func.return
}

// -----

// CHECK: tile.attend: q has shape (3, 12), expected (_, 16), heads times head_dim
func.func @q(%q: tensor<3x12xf32>, %cache: tensor<?x2x2x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>) {
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64} : tensor<3x12xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x12xf32>
  func.return
}

// -----

// CHECK: tile.attend: cache has type tensor<?x2x2x16x8xf32>, expected (blocks, 2, 2, slots, 4)
func.func @cache(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x8xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>) {
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x8xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x16xf32>
  func.return
}

// -----

// CHECK: tile.attend: block_table (1, 4) and query_start (3,) do not fit 1 sequences
func.func @sequences(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<3xi32>, %context_len: tensor<1xi32>) {
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<3xi32>, tensor<1xi32> -> tensor<3x16xf32>
  func.return
}

// -----

// CHECK: tile.attend: result has shape (3, 8), expected (3, 16), that of q
func.func @result(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>) {
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x8xf32>
  func.return
}

// -----

// CHECK: tile.attend_partial: max and sum have shapes (3, 4, 4) and (3, 4, 8), expected (3, 4, 8)
func.func @stats(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>) {
  %a, %m, %s = tile.attend_partial %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64, splits = 8 : i64, tile = 32 : i64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x4x8x4xf32>, tensor<3x4x4xf32>, tensor<3x4x8xf32>
  func.return
}

// -----

// CHECK: tile.attend_partial: acc has shape (3, 4, 8, 2), expected (3, 4, 8, 4)
func.func @acc(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>) {
  %a, %m, %s = tile.attend_partial %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64, splits = 8 : i64, tile = 32 : i64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x4x8x2xf32>, tensor<3x4x8xf32>, tensor<3x4x8xf32>
  func.return
}

// -----

// CHECK: tile.attend_merge: max (3, 4, 4) and sum (3, 4, 8) do not fit acc (3, 4, 8, 4)
func.func @merge(%acc: tensor<3x4x8x4xf32>, %max: tensor<3x4x4xf32>, %sum: tensor<3x4x8xf32>) {
  %y = tile.attend_merge %acc, %max, %sum : tensor<3x4x8x4xf32>, tensor<3x4x4xf32>, tensor<3x4x8xf32> -> tensor<3x16xf32>
  func.return
}

// -----

// CHECK: tile.attend_merge: result has shape (3, 4), expected (3, 16)
func.func @merged(%acc: tensor<3x4x8x4xf32>, %max: tensor<3x4x8xf32>, %sum: tensor<3x4x8xf32>) {
  %y = tile.attend_merge %acc, %max, %sum : tensor<3x4x8x4xf32>, tensor<3x4x8xf32>, tensor<3x4x8xf32> -> tensor<3x4xf32>
  func.return
}

// -----

// CHECK: tile.attend at layers.0: window is -2, expected a positive number of positions
func.func @window(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>) {
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len {loc = "layers.0", heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64, window = -2 : i64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x16xf32>
  func.return
}

// -----

// CHECK: tile.attend: score_cap is 0, expected a positive number
func.func @cap(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>) {
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64, score_cap = 0.0 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x16xf32>
  func.return
}

// -----

// CHECK: tile.attend: sinks have shape (2,), expected (4,), one a head
func.func @sinks(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>, %sinks: tensor<2xf32>) {
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len sinks %sinks {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32>, tensor<2xf32> -> tensor<3x16xf32>
  func.return
}

// -----

// CHECK: tile.attend: window looks back from the query, expected none where attention is bidirectional
func.func @both(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>) {
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64, window = 3 : i64, bidirectional = true} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x16xf32>
  func.return
}

// -----
// CHECK: tile.attend: a cache of f8 has no tensor of scales
func.func @no_scales(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf8E4M3FN>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>) {
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf8E4M3FN>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x16xf32>
  func.return
}

// -----
// CHECK: tile.attend: scales have type tensor<?x2x2x16x4xf32>, expected f32, one for each head of each slot of tensor<?x2x2x16x4xf8E4M3FN>
func.func @scales(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf8E4M3FN>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>, %scales: tensor<?x2x2x16x4xf32>) {
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len scales %scales {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf8E4M3FN>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> scales tensor<?x2x2x16x4xf32> -> tensor<3x16xf32>
  func.return
}
