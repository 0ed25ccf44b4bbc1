// RUN: lamella-opt %s -p fold-constants --split-input-file | filecheck %s
// RUN: lamella-opt %s -p 'fold-constants{max-growth=0.5}' --split-input-file | filecheck %s --check-prefix=SMALL

// Expressions become weights, equal ones become one; what no step reads any more is dropped, with the weight that nothing ever read.
// CHECK:      func.func @forward(%x: tensor<3x4xf32>) -> (tensor<3x8xf32, #transformer.layout<head = 4, paired = 4>>, tensor<3x8xf32, #transformer.layout<head = 4, paired = 4>>) attributes {lamella.folds = [
// CHECK-SAME: {kind = "constant", reason = "pair_rows(scale_columns(q_proj, norm))", verdict = "folded", what = "q_proj.scaled.paired"}
// CHECK-SAME: {kind = "weight", reason = "only @transform_weights reads it", verdict = "dropped", what = "q_proj"}
// CHECK-SAME: {kind = "weight", reason = "only @transform_weights reads it", verdict = "dropped", what = "norm"}
// CHECK-SAME: {kind = "weight", reason = "nothing reads it", verdict = "dropped", what = "inv_freq"}]} {
// CHECK-NEXT: %q_proj.scaled.paired = transformer.weight "q_proj.scaled.paired" : tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>
// CHECK-NEXT: %a = transformer.linear %x, %q_proj.scaled.paired {loc = "a"}
// CHECK-NEXT: %b = transformer.linear %x, %q_proj.scaled.paired {loc = "b"}
// CHECK-NEXT: func.return %a, %b
// CHECK:      func.func @transform_weights() -> tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>> attributes {lamella.outputs = ["q_proj.scaled.paired"]} {
// CHECK-NEXT: %w = transformer.weight "q_proj" : tensor<8x4xf32>
// CHECK-NEXT: %g = transformer.weight "norm" : tensor<4xf32>
// CHECK-NEXT: %s = transformer.scale_columns %w, %g : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
// CHECK-NEXT: %p = transformer.pair_rows %s {head_dim = 4 : i64, rotary_dim = 4 : i64} : (tensor<8x4xf32>) -> tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>
// CHECK-NEXT: func.return %p : tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>
// The guard refuses the whole and then its part, which is as large.
// SMALL:      func.func @forward(
// SMALL-SAME: {kind = "constant", reason = "128 bytes of 144, more than max-growth = 0.5 allows", verdict = "not_folded", what = "transformer.scale_columns"}
// SMALL-SAME: {kind = "constant", reason = "128 bytes of 144, more than max-growth = 0.5 allows", verdict = "not_folded", what = "transformer.pair_rows"}
// SMALL-NOT:  func.func @transform_weights
func.func @forward(%x : tensor<3x4xf32>) -> (tensor<3x8xf32, #transformer.layout<head = 4, paired = 4>>, tensor<3x8xf32, #transformer.layout<head = 4, paired = 4>>) {
  %w = transformer.weight "q_proj" : tensor<8x4xf32>
  %g = transformer.weight "norm" : tensor<4xf32>
  %d = transformer.weight "inv_freq" : tensor<2xf32>
  %s = transformer.scale_columns %w, %g : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %p = transformer.pair_rows %s {head_dim = 4 : i64, rotary_dim = 4 : i64} : (tensor<8x4xf32>) -> tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>
  %a = transformer.linear %x, %p {loc = "a"} : (tensor<3x4xf32>, tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>) -> tensor<3x8xf32, #transformer.layout<head = 4, paired = 4>>
  %w2 = transformer.weight "q_proj" : tensor<8x4xf32>
  %s2 = transformer.scale_columns %w2, %g : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %p2 = transformer.pair_rows %s2 {head_dim = 4 : i64, rotary_dim = 4 : i64} : (tensor<8x4xf32>) -> tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>
  %b = transformer.linear %x, %p2 {loc = "b"} : (tensor<3x4xf32>, tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>) -> tensor<3x8xf32, #transformer.layout<head = 4, paired = 4>>
  func.return %a, %b : tensor<3x8xf32, #transformer.layout<head = 4, paired = 4>>, tensor<3x8xf32, #transformer.layout<head = 4, paired = 4>>
}
// -----
// Any pure op on weights and tables counts. Names that are taken get a number, and what a step reads besides stays alive.
// CHECK:      func.func @others(
// SMALL:      func.func @others(
// CHECK-SAME: {kind = "constant", reason = "concat_rows(w, v)", verdict = "folded", what = "w.joined_1"}
// CHECK-SAME: {kind = "constant", reason = "silu(w)", verdict = "folded", what = "w.silu"}
// CHECK-SAME: {kind = "constant", reason = "add(rope_table, rope_table)", verdict = "folded", what = "rope_table.add"}
// CHECK-SAME: {kind = "weight", reason = "only @transform_weights reads it", verdict = "dropped", what = "v"}]}
// CHECK:      %w = transformer.weight "w" : tensor<4x4xf32>
// CHECK-NEXT: %taken = transformer.weight "w.joined" : tensor<4x4xf32>
// CHECK-NEXT: %{{.*}} = transformer.rope_table
// CHECK-NEXT: %w.joined = transformer.weight "w.joined_1" : tensor<6x4xf32>
// CHECK-NEXT: %w.silu = transformer.weight "w.silu" : tensor<4x4xf32>
// CHECK-NEXT: %rope_table.add = transformer.weight "rope_table.add" : tensor<4x4xf32>
// CHECK-NEXT: func.return %w, %taken, %w.joined, %w.silu, %rope_table.add
// CHECK:      func.func @transform_weights()
// CHECK-SAME: lamella.outputs = ["w.joined_1", "w.silu", "rope_table.add"]
func.func @others() -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<6x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %w = transformer.weight "w" : tensor<4x4xf32>
  %taken = transformer.weight "w.joined" : tensor<4x4xf32>
  %v = transformer.weight "v" : tensor<2x4xf32>
  %t = transformer.rope_table {length = 4 : i64, rotary_dim = 4 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<4x4xf32>
  %j = transformer.concat_rows %w, %v : (tensor<4x4xf32>, tensor<2x4xf32>) -> tensor<6x4xf32>
  %s = transformer.silu %w {loc = "s"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %a = transformer.add %t, %t {loc = "a"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %w, %taken, %j, %s, %a : tensor<4x4xf32>, tensor<4x4xf32>, tensor<6x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}
// -----
// A result larger than its weights stays with the steps; the part of it that is not is folded.
// CHECK:      func.func @outer(
// CHECK-SAME: {kind = "constant", reason = "4096 bytes of 512, more than max-growth = 1 allows", verdict = "not_folded", what = "transformer.linear at outer"}
// CHECK-SAME: {kind = "constant", reason = "silu(a)", verdict = "folded", what = "a.silu"}
// CHECK-SAME: {kind = "weight", reason = "only @transform_weights reads it", verdict = "dropped", what = "a"}]}
// CHECK-NEXT: %b = transformer.weight "b" : tensor<32x2xf32>
// CHECK-NEXT: %a.silu = transformer.weight "a.silu" : tensor<32x2xf32>
// CHECK-NEXT: %y = transformer.linear %a.silu, %b {loc = "outer"}
// CHECK:      func.func @transform_weights() -> tensor<32x2xf32>
func.func @outer() -> tensor<32x32xf32> {
  %a = transformer.weight "a" : tensor<32x2xf32>
  %b = transformer.weight "b" : tensor<32x2xf32>
  %s = transformer.silu %a : (tensor<32x2xf32>) -> tensor<32x2xf32>
  %y = transformer.linear %s, %b {loc = "outer"} : (tensor<32x2xf32>, tensor<32x2xf32>) -> tensor<32x32xf32>
  func.return %y : tensor<32x32xf32>
}
// -----
// Nothing to fold: the nearest miss is named. A rotation depends on positions, so it never goes into a weight.
// CHECK:      func.func @rope(
// CHECK-SAME: {kind = "constant", reason = "no op reads weights alone: transformer.linear at q reads an argument too", verdict = "not_folded", what = "@rope"}
// CHECK-SAME: {kind = "rope", reason = "a rotated weight is valid for one position only, and positions come with each step", verdict = "not_folded", what = "transformer.rotate at rope_q"}]}
// CHECK-NOT:  func.func @transform_weights
func.func @rope(%x : tensor<3x4xf32>, %p : tensor<3xi32>) -> tensor<3x8xf32> {
  %t = transformer.rope_table {length = 32 : i64, rotary_dim = 4 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x4xf32>
  %w = transformer.weight "q" : tensor<8x4xf32>
  %q = transformer.linear %x, %w {loc = "q"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %r = transformer.rotate %q, %p, %t {heads = 2 : i64, head_dim = 4 : i64, rotary_dim = 4 : i64, style = "half", loc = "rope_q"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<32x4xf32>) -> tensor<3x8xf32>
  func.return %r : tensor<3x8xf32>
}
// -----
// CHECK:      func.func @weightless(
// CHECK-SAME: reason = "no op reads a weight", verdict = "not_folded", what = "@weightless"
func.func @weightless(%x : tensor<3x4xf32>) -> tensor<3x4xf32> {
  %y = transformer.silu %x : (tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}
// -----
// Expressions on weights that an earlier run made join its function; a result that no step reads any more leaves it.
// CHECK:      func.func @second(
// CHECK:      %q.paired.scaled = transformer.weight "q.paired.scaled" : tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>
// CHECK:      func.func @transform_weights() -> (tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>, tensor<4x8xf32>) attributes {lamella.outputs = ["q.paired.scaled", "k.transposed"]} {
// CHECK-NEXT: %w = transformer.weight "q" : tensor<8x4xf32>
// CHECK-NEXT: %0 = transformer.pair_rows %w
// CHECK-NEXT: %g = transformer.weight "norm" : tensor<4xf32>
// CHECK-NEXT: %s = transformer.scale_columns %0, %g
// CHECK-NEXT: %v = transformer.weight "k" : tensor<8x4xf32>
// CHECK-NEXT: %u = transformer.transpose %v
// CHECK-NEXT: func.return %s, %u
func.func @second(%x : tensor<3x4xf32>) -> (tensor<3x8xf32, #transformer.layout<head = 4, paired = 4>>, tensor<4x8xf32>) {
  %w = transformer.weight "q.paired" : tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>
  %g = transformer.weight "norm" : tensor<4xf32>
  %s = transformer.scale_columns %w, %g : (tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>, tensor<4xf32>) -> tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>
  %q = transformer.linear %x, %s {loc = "q"} : (tensor<3x4xf32>, tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>) -> tensor<3x8xf32, #transformer.layout<head = 4, paired = 4>>
  %v = transformer.weight "k" : tensor<8x4xf32>
  %u = transformer.transpose %v : (tensor<8x4xf32>) -> tensor<4x8xf32>
  func.return %q, %u : tensor<3x8xf32, #transformer.layout<head = 4, paired = 4>>, tensor<4x8xf32>
}
func.func @transform_weights() -> (tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>, tensor<4xf32>) attributes {lamella.outputs = ["q.paired", "unread.silu"]} {
  %w = transformer.weight "q" : tensor<8x4xf32>
  %0 = transformer.pair_rows %w {head_dim = 4 : i64, rotary_dim = 4 : i64} : (tensor<8x4xf32>) -> tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>
  %1 = transformer.weight "unread" : tensor<4xf32>
  %2 = transformer.silu %1 : (tensor<4xf32>) -> tensor<4xf32>
  func.return %0, %2 : tensor<8x4xf32, #transformer.layout<head = 4, paired = 4>>, tensor<4xf32>
}
