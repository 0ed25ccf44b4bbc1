// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%cache, %k, %v, %positions, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x24xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>)
%0 = transformer.cache_write %cache, %k, %v, %positions, %query_start, %block_table {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x24xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>) -> !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>
// CHECK: transformer.cache_write at layers.0.attn.cache: k has shape (N, 24), expected (N, 32), the heads of the cache

// -----
%cache, %k, %v, %positions, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>)
%0 = transformer.cache_write %cache, %k, %v, %positions, %query_start, %block_table : (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>) -> !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>
// CHECK: transformer.cache_write: v has shape (R, 32), expected (N, 32), the heads of the cache

// -----
%cache, %k, %v, %positions, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xbf16, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>)
%0 = transformer.cache_write %cache, %k, %v, %positions, %query_start, %block_table : (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xbf16, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>) -> !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>
// CHECK: transformer.cache_write: v has element type bf16, expected f32, that of the cache

// -----
%cache, %k, %v, %positions, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>)
%0 = transformer.cache_write %cache, %k, %v, %positions, %query_start, %block_table : (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>) -> !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>
// CHECK: transformer.cache_write: positions has shape (B,), expected (N,), the rows of k

// -----
%cache, %k, %v, %positions, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>)
%0 = transformer.cache_write %cache, %k, %v, %positions, %query_start, %block_table : (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>, tensor<?x?xi32, #transformer.dims<"B", "M">>) -> !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>
// CHECK: transformer.cache_write: query_start has shape (B,), expected (B+1,), one more than the sequences of block_table

// -----
%cache, %k, %v, %positions, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>)
%0 = transformer.cache_write %cache, %k, %v, %positions, %query_start, %block_table : (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>) -> !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 16>
// CHECK: transformer.cache_write: result has type !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 16>, expected !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, that of the cache

// -----
%cache, %k, %v, %positions, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>)
%0 = transformer.attention %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 1 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64, loc = "layers.0.attn.attention"} : (tensor<?x64xf32, #transformer.dims<"N">>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?xi32, #transformer.dims<"B">>) -> tensor<?x64xf32, #transformer.dims<"N">>
// CHECK: transformer.attention at layers.0.attn.attention: cache has 2 heads of 16, expected 1 of 16, kv_heads and head_dim

// -----
%cache, %k, %v, %positions, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>)
%0 = transformer.attention %q, %cache, %block_table, %query_start, %context_len {heads = 3 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64} : (tensor<?x64xf32, #transformer.dims<"N">>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?xi32, #transformer.dims<"B">>) -> tensor<?x64xf32, #transformer.dims<"N">>
// CHECK: transformer.attention: heads is 3, expected a multiple of kv_heads = 2

// -----
%cache, %k, %v, %positions, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>)
%0 = transformer.attention %q, %cache, %block_table, %query_start, %context_len {heads = 6 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64} : (tensor<?x64xf32, #transformer.dims<"N">>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?xi32, #transformer.dims<"B">>) -> tensor<?x64xf32, #transformer.dims<"N">>
// CHECK: transformer.attention: q has shape (N, 64), expected (N, 96), heads times head_dim

// -----
%cache, %k, %v, %positions, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>)
%0 = transformer.attention %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64} : (tensor<?x64xf32, #transformer.dims<"N">>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?xi32, #transformer.dims<"B+1">>) -> tensor<?x64xf32, #transformer.dims<"N">>
// CHECK: transformer.attention: context_len has shape (B+1,), expected (B,), the sequences of block_table

// -----
%cache, %k, %v, %positions, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>)
%0 = transformer.attention %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64} : (tensor<?x64xf32, #transformer.dims<"N">>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>) -> tensor<?x64xf32, #transformer.dims<"N">>
// CHECK: transformer.attention: query_start has shape (N,), expected (B+1,), one more than the sequences of block_table

// -----
%cache, %k, %v, %positions, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?x32xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>)
%0 = transformer.attention %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64} : (tensor<?x64xf32, #transformer.dims<"N">>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?xi32, #transformer.dims<"B">>) -> tensor<?x63xf32, #transformer.dims<"N">>
// CHECK: transformer.attention: result has shape (N, 63), expected (N, 64), the shape of q

// -----
%cache, %k, %v, %p, %s, %t = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<2x32xf32, #transformer.layout<head = 16, paired = 8>>, tensor<2x32xf32>, tensor<2xi32>, tensor<3xi32>, tensor<2x4xi32>)
%0 = transformer.cache_write %cache, %k, %v, %p, %s, %t : (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<2x32xf32, #transformer.layout<head = 16, paired = 8>>, tensor<2x32xf32>, tensor<2xi32>, tensor<3xi32>, tensor<2x4xi32>) -> !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>
// CHECK: transformer.cache_write: k lies in pairs of 8 in heads of 16, expected plain order, that of the cache's keys

// -----
%cache, %k, %v, %p, %s, %t = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 8>, tensor<2x32xf32, #transformer.layout<head = 16, paired = 8>>, tensor<2x32xf32, #transformer.layout<head = 16, paired = 8>>, tensor<2xi32>, tensor<3xi32>, tensor<2x4xi32>)
%0 = transformer.cache_write %cache, %k, %v, %p, %s, %t : (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 8>, tensor<2x32xf32, #transformer.layout<head = 16, paired = 8>>, tensor<2x32xf32, #transformer.layout<head = 16, paired = 8>>, tensor<2xi32>, tensor<3xi32>, tensor<2x4xi32>) -> !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 8>
// CHECK: transformer.cache_write: v lies in pairs of 8 in heads of 16, expected plain order, that of the cache's values

// -----
%q, %cache, %t, %s, %l = "test.op"() : () -> (tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32>)
%0 = transformer.attention %q, %cache, %t, %s, %l {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64} : (tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<2x64xf32>
// CHECK: transformer.attention: q lies in pairs of 8 in heads of 16, expected plain order, that of the cache's keys

// -----
%q, %cache, %t, %s, %l = "test.op"() : () -> (tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 8>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32>)
%0 = transformer.attention %q, %cache, %t, %s, %l {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64} : (tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 8>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<2x64xf32, #transformer.layout<head = 16, paired = 8>>
// CHECK: transformer.attention: result lies in pairs of 8 in heads of 16, expected plain order, that of the cache's values

// -----
%cache, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>)
%0 = transformer.attention %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64, window = 0 : i64, loc = "layers.0.attn.attention"} : (tensor<?x64xf32, #transformer.dims<"N">>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?xi32, #transformer.dims<"B">>) -> tensor<?x64xf32, #transformer.dims<"N">>
// CHECK: transformer.attention at layers.0.attn.attention: window is 0, expected a positive number of positions

// -----
%cache, %query_start, %block_table, %q, %context_len = "test.op"() : () -> (!transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?x64xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B">>)
%0 = transformer.attention %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64, score_cap = -1.0 : f64} : (tensor<?x64xf32, #transformer.dims<"N">>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<?x?xi32, #transformer.dims<"B", "M">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?xi32, #transformer.dims<"B">>) -> tensor<?x64xf32, #transformer.dims<"N">>
// CHECK: transformer.attention: score_cap is -1, expected a positive number

// -----
%q, %cache, %t, %s, %l, %sinks = "test.op"() : () -> (tensor<2x64xf32>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32>, tensor<2xf32>)
%0 = transformer.attention %q, %cache, %t, %s, %l, %sinks {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64} : (tensor<2x64xf32>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32>, tensor<2xf32>) -> tensor<2x64xf32>
// CHECK: transformer.attention: sinks has shape (2,), expected (4,), one a head

// -----
%q, %cache, %t, %s, %l = "test.op"() : () -> (tensor<2x64xf32>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32>)
%0 = transformer.attention %q, %cache, %t, %s, %l {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64, alibi = -8.0 : f64} : (tensor<2x64xf32>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<2x64xf32>
// CHECK: transformer.attention: alibi is -8, expected a positive number

// -----
%q, %cache, %t, %s, %l = "test.op"() : () -> (tensor<2x64xf32>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32>)
%0 = transformer.attention %q, %cache, %t, %s, %l {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64, bidirectional = true, window = 3 : i64} : (tensor<2x64xf32>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<2x64xf32>
// CHECK: transformer.attention: window looks back from the query, expected none where attention is bidirectional

// -----
%q, %cache, %t, %s, %l = "test.op"() : () -> (tensor<2x64xf32>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32>)
%0 = transformer.attention %q, %cache, %t, %s, %l {heads = 4 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64, bidirectional = true, alibi = 8.0 : f64} : (tensor<2x64xf32>, !transformer.kv_cache<2 x 16 x f32, block = 4, paired = 0>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<2x64xf32>
// CHECK: transformer.attention: alibi looks back from the query, expected none where attention is bidirectional
