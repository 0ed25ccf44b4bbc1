// RUN: lamella-opt %s -p 'specialize{tokens=8 sequences=2 longest-query=5 logit-rows=3 blocks=4}' | filecheck %s
// RUN: lamella-opt %s -p 'specialize{tokens=3 sequences=3 longest-query=1 logit-rows=3 blocks=4 advance=true}' | filecheck %s --check-prefix=NEXT
// RUN: lamella-opt %s -p 'specialize{tokens=8 sequences=2 longest-query=5 logit-rows=3 blocks=4 advance=true}' --verify-diagnostics | filecheck %s --check-prefix=UNEVEN
// RUN: lamella-opt %s -p 'specialize{tokens=4 longest-query=5}' --verify-diagnostics | filecheck %s --check-prefix=LONG
// RUN: lamella-opt %s -p 'specialize{tokens=4 blocks=0}' --verify-diagnostics | filecheck %s --check-prefix=ZERO
// RUN: lamella-opt %s -p 'specialize{tokens=4},specialize{tokens=4}' --verify-diagnostics | filecheck %s --check-prefix=TWICE

// CHECK:      func.func @forward(%tokens: tensor<8xi32>, %positions: tensor<8xi32>, %query_start: tensor<3xi32>, %context_len: tensor<2xi32>, %block_table: tensor<2x4xi32>, %logit_rows: tensor<3xi32>, %cache.0: !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>)
// CHECK-SAME: -> (tensor<3x8xf32>, tensor<3xi32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>)
// CHECK-SAME: lamella.outputs = ["logits", "next", "cache.0"], lamella.tied = array<i64: -1, -1, 6>, lamella.bucket = {advance = false, blocks = 4 : i64, logit_rows = 3 : i64, longest_query = 5 : i64, sequences = 2 : i64, tokens = 8 : i64}
// CHECK:      %x = transformer.embedding %tokens, %embed : (tensor<8xi32>, tensor<16x8xf32>) -> tensor<8x8xf32>
// CHECK-NEXT: %cache = transformer.cache_write %cache.0, %x, %x, %positions, %query_start, %block_table : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8xi32>, tensor<3xi32>, tensor<2x4xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
// CHECK-NEXT: %rows = transformer.gather_rows %x, %logit_rows : (tensor<8x8xf32>, tensor<3xi32>) -> tensor<3x8xf32>
// CHECK-NEXT: %next = transformer.gather_rows %tokens, %logit_rows : (tensor<8xi32>, tensor<3xi32>) -> tensor<3xi32>
// CHECK-NEXT: func.return %rows, %next, %cache : tensor<3x8xf32>, tensor<3xi32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
// CHECK-NOT:  transformer.dims
// The function that makes weights, and the records of that, belong to no bucket.
// CHECK-NOT:  transform_weights

// NEXT:      -> (tensor<3x8xf32>, tensor<3xi32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<3xi32>, tensor<3xi32>)
// NEXT-SAME: lamella.outputs = ["logits", "next", "cache.0", "positions", "context_len"], lamella.tied = array<i64: -1, 0, 6, 1, 3>
// NEXT-SAME: lamella.bucket = {advance = true,
// NEXT:      %positions_1 = transformer.advance %positions {loc = "positions"} : (tensor<3xi32>) -> tensor<3xi32>
// NEXT-NEXT: %context_len_1 = transformer.advance %context_len {loc = "context_len"} : (tensor<3xi32>) -> tensor<3xi32>
// NEXT-NEXT: func.return %rows, %next, %cache, %positions_1, %context_len_1

// UNEVEN: pass 'specialize': advance expects tokens = sequences = logit-rows and longest-query = 1, got 8, 2, 3 and 5
// LONG: pass 'specialize': longest-query is 5, expected at most tokens = 4
// ZERO: pass 'specialize': blocks is 0, expected at least 1
// TWICE: pass 'specialize': @forward is specialized already:

func.func @forward(%tokens : tensor<?xi32, #transformer.dims<"N">>, %positions : tensor<?xi32, #transformer.dims<"N">>, %query_start : tensor<?xi32, #transformer.dims<"B+1">>, %context_len : tensor<?xi32, #transformer.dims<"B">>, %block_table : tensor<?x?xi32, #transformer.dims<"B", "M">>, %logit_rows : tensor<?xi32, #transformer.dims<"R">>, %cache.0 : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) -> (tensor<?x8xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) attributes {lamella.inputs = ["tokens", "positions", "query_start", "context_len", "block_table", "logit_rows", "cache.0"], lamella.outputs = ["logits", "next", "cache.0"], lamella.tied = array<i64: -1, -1, 6>, lamella.folds = [{verdict = "folded", kind = "constant", what = "embed", reason = "silu(table)"}]} {
  %embed = transformer.weight "embed" : tensor<16x8xf32>
  %x = transformer.embedding %tokens, %embed : (tensor<?xi32, #transformer.dims<"N">>, tensor<16x8xf32>) -> tensor<?x8xf32, #transformer.dims<"N">>
  %cache = transformer.cache_write %cache.0, %x, %x, %positions, %query_start, %block_table : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<?x8xf32, #transformer.dims<"N">>, tensor<?x8xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"B+1">>, tensor<?x?xi32, #transformer.dims<"B", "M">>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
  %rows = transformer.gather_rows %x, %logit_rows : (tensor<?x8xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"R">>) -> tensor<?x8xf32, #transformer.dims<"R">>
  %next = transformer.gather_rows %tokens, %logit_rows : (tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"R">>) -> tensor<?xi32, #transformer.dims<"R">>
  func.return %rows, %next, %cache : tensor<?x8xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
}
func.func @transform_weights() -> tensor<16x8xf32> attributes {lamella.outputs = ["embed"]} {
  %table = transformer.weight "table" : tensor<16x8xf32>
  %embed = transformer.silu %table : (tensor<16x8xf32>) -> tensor<16x8xf32>
  func.return %embed : tensor<16x8xf32>
}
// The order of features outlives the names of dimensions.
// CHECK:      func.func @ordered(%q: tensor<8x64xf32, #transformer.layout<head = 16, paired = 8>>) -> tensor<8x64xf32, #transformer.layout<head = 16, paired = 8>>
func.func @ordered(%q : tensor<?x64xf32, #transformer.layout<dims = ["N"], head = 16, paired = 8>>) -> tensor<?x64xf32, #transformer.layout<dims = ["N"], head = 16, paired = 8>> {
  func.return %q : tensor<?x64xf32, #transformer.layout<dims = ["N"], head = 16, paired = 8>>
}
