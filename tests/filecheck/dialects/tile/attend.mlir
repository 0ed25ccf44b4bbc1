// RUN: lamella-opt %s | lamella-opt | filecheck %s
// RUN: lamella-opt %s --print-op-generic | lamella-opt | filecheck %s

func.func @attend(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>) -> (tensor<3x16xf32>, tensor<3x16xf32>) {
  // CHECK: %whole = tile.attend %q, %cache, %block_table, %query_start, %context_len {loc = "layers.0.attention", heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 5.000000e-01 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x16xf32>
  %whole = tile.attend %q, %cache, %block_table, %query_start, %context_len {loc = "layers.0.attention", heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x16xf32>
  // CHECK-NEXT: %acc, %max, %sum = tile.attend_partial %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 5.000000e-01 : f64, splits = 8 : i64, tile = 32 : i64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x4x8x4xf32>, tensor<3x4x8xf32>, tensor<3x4x8xf32>
  %acc, %max, %sum = tile.attend_partial %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64, splits = 8 : i64, tile = 32 : i64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x4x8x4xf32>, tensor<3x4x8xf32>, tensor<3x4x8xf32>
  // CHECK-NEXT: %merged = tile.attend_merge %acc, %max, %sum {loc = "layers.0.attention"} : tensor<3x4x8x4xf32>, tensor<3x4x8xf32>, tensor<3x4x8xf32> -> tensor<3x16xf32>
  %merged = tile.attend_merge %acc, %max, %sum {loc = "layers.0.attention"} : tensor<3x4x8x4xf32>, tensor<3x4x8xf32>, tensor<3x4x8xf32> -> tensor<3x16xf32>
  // CHECK-NEXT: %arrivals = tile.arrivals 8 : i64 : tensor<8xi32>
  %arrivals = tile.arrivals 8 : i64 : tensor<8xi32>
  // CHECK-NEXT: %last = tile.attend_merge %acc, %max, %sum counted by %arrivals : tensor<3x4x8x4xf32>, tensor<3x4x8xf32>, tensor<3x4x8xf32>, tensor<8xi32> -> tensor<3x16xf32>
  %last = tile.attend_merge %acc, %max, %sum counted by %arrivals : tensor<3x4x8x4xf32>, tensor<3x4x8xf32>, tensor<3x4x8xf32>, tensor<8xi32> -> tensor<3x16xf32>
  func.return %whole, %merged : tensor<3x16xf32>, tensor<3x16xf32>
}

// CHECK-LABEL: func.func @kinds
func.func @kinds(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>) -> tensor<3x16xf32> {
  // CHECK-NEXT: %y = tile.attend %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 5.000000e-01 : f64, window = 7 : i64, score_cap = 5.000000e+01 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x16xf32>
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64, window = 7 : i64, score_cap = 50.0 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x16xf32>
  func.return %y : tensor<3x16xf32>
}

// CHECK-LABEL: func.func @sinks
func.func @sinks(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>, %sinks: tensor<4xbf16>) -> (tensor<3x16xf32>, tensor<3x16xf32>) {
  // CHECK-NEXT: %y = tile.attend %q, %cache, %block_table, %query_start, %context_len sinks %sinks {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 5.000000e-01 : f64, alibi = 8.000000e+00 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32>, tensor<4xbf16> -> tensor<3x16xf32>
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len sinks %sinks {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64, alibi = 8.0 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32>, tensor<4xbf16> -> tensor<3x16xf32>
  // CHECK-NEXT: %acc, %max, %sum = tile.attend_partial %q, %cache, %block_table, %query_start, %context_len sinks %sinks {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 5.000000e-01 : f64, splits = 8 : i64, tile = 32 : i64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32>, tensor<4xbf16> -> tensor<3x4x8x4xf32>, tensor<3x4x8xf32>, tensor<3x4x8xf32>
  %acc, %max, %sum = tile.attend_partial %q, %cache, %block_table, %query_start, %context_len sinks %sinks {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64, splits = 8 : i64, tile = 32 : i64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32>, tensor<4xbf16> -> tensor<3x4x8x4xf32>, tensor<3x4x8xf32>, tensor<3x4x8xf32>
  // CHECK-NEXT: %both = tile.attend %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 5.000000e-01 : f64, bidirectional = true}
  %both = tile.attend %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64, bidirectional = true} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x16xf32>
  func.return %y, %both : tensor<3x16xf32>, tensor<3x16xf32>
}

// A cache of float8 comes with scales, which stand before sinks.
// CHECK-LABEL: func.func @scales
func.func @scales(%q: tensor<3x16xbf16>, %cache: tensor<?x2x2x16x4xf8E4M3FN>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>, %scales: tensor<?x2x2x16x1xf32>, %sinks: tensor<4xbf16>) -> (tensor<3x16xf32>, tensor<3x16xf32>) {
  // CHECK-NEXT: %y = tile.attend %q, %cache, %block_table, %query_start, %context_len scales %scales {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 5.000000e-01 : f64} : tensor<3x16xbf16>, tensor<?x2x2x16x4xf8E4M3FN>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> scales tensor<?x2x2x16x1xf32> -> tensor<3x16xf32>
  %y = tile.attend %q, %cache, %block_table, %query_start, %context_len scales %scales {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64} : tensor<3x16xbf16>, tensor<?x2x2x16x4xf8E4M3FN>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> scales tensor<?x2x2x16x1xf32> -> tensor<3x16xf32>
  // CHECK-NEXT: %z = tile.attend %q, %cache, %block_table, %query_start, %context_len scales %scales sinks %sinks {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 5.000000e-01 : f64} : tensor<3x16xbf16>, tensor<?x2x2x16x4xf8E4M3FN>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> scales tensor<?x2x2x16x1xf32>, tensor<4xbf16> -> tensor<3x16xf32>
  %z = tile.attend %q, %cache, %block_table, %query_start, %context_len scales %scales sinks %sinks {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64} : tensor<3x16xbf16>, tensor<?x2x2x16x4xf8E4M3FN>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> scales tensor<?x2x2x16x1xf32>, tensor<4xbf16> -> tensor<3x16xf32>
  func.return %y, %z : tensor<3x16xf32>, tensor<3x16xf32>
}
