// RUN: lamella-opt %s -p propagate-layout --split-input-file | filecheck %s
// RUN: lamella-opt %s -p 'propagate-layout,propagate-layout' --split-input-file | filecheck %s --check-prefix=AGAIN

// Weights, biases, rotations and the cache change together, and the types of all of them say so; v does not.
// CHECK:      func.func @forward(
// CHECK-SAME: %c: !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>)
// CHECK-SAME: lamella.layout = {choice = "paired", rotary_dim = 8 : i64}
// CHECK:      %0 = transformer.pair_rows %wq {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<16x4xf32>) -> tensor<16x4xf32, #transformer.layout<head = 8, paired = 8>>
// CHECK-NEXT: %1 = transformer.pair_rows %bq {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<16xf32>) -> tensor<16xf32, #transformer.layout<head = 8, paired = 8>>
// CHECK-NEXT: %q = transformer.linear %x, %0, %1 {loc = "layers.0.attn.q"} : (tensor<3x4xf32>, tensor<16x4xf32, #transformer.layout<head = 8, paired = 8>>, tensor<16xf32, #transformer.layout<head = 8, paired = 8>>) -> tensor<3x16xf32, #transformer.layout<head = 8, paired = 8>>
// CHECK-NEXT: %2 = transformer.pair_rows %wk {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<8x4xf32>) -> tensor<8x4xf32, #transformer.layout<head = 8, paired = 8>>
// CHECK-NEXT: %k = transformer.linear %x, %2 {loc = "layers.0.attn.k"}
// CHECK-NEXT: %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"}
// CHECK:      %q2 = transformer.rotate %q, %p, %table {loc = "layers.0.attn.rope_q", heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "paired"} : (tensor<3x16xf32, #transformer.layout<head = 8, paired = 8>>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x16xf32, #transformer.layout<head = 8, paired = 8>>
// CHECK-NEXT: %k2 = transformer.rotate %k, %p, %table {loc = "layers.0.attn.rope_k", heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "paired"}
// CHECK-NEXT: %d = transformer.cache_write
// CHECK-SAME: paired = 8>, tensor<3x8xf32, #transformer.layout<head = 8, paired = 8>>, tensor<3x8xf32>, tensor<3xi32>
// CHECK-SAME: -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>
// CHECK:      func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>

// A second run finds nothing to do: rows are paired once.
// AGAIN:      lamella.layout = {choice = "paired already", rotary_dim = 8 : i64}
// AGAIN:      %0 = transformer.pair_rows %wq {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<16x4xf32>) -> tensor<16x4xf32, #transformer.layout<head = 8, paired = 8>>
// AGAIN-NEXT: %1 = transformer.pair_rows %bq {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<16xf32>) -> tensor<16xf32, #transformer.layout<head = 8, paired = 8>>
// AGAIN-NEXT: %q = transformer.linear %x, %0, %1
func.func @forward(%x : tensor<3x4xf32>, %p : tensor<3xi32>, %s : tensor<3xi32>, %t : tensor<2x5xi32>, %l : tensor<2xi32>, %c : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) {
  %table = transformer.rope_table {length = 32 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x8xf32>
  %small = transformer.rope_table {length = 32 : i64, rotary_dim = 4 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x4xf32>
  %wq = transformer.weight "layers.0.attn.q_proj" : tensor<16x4xf32>
  %bq = transformer.weight "layers.0.attn.q_proj.bias" : tensor<16xf32>
  %wk = transformer.weight "layers.0.attn.k_proj" : tensor<8x4xf32>
  %wv = transformer.weight "layers.0.attn.v_proj" : tensor<8x4xf32>
  %q = transformer.linear %x, %wq, %bq {loc = "layers.0.attn.q"} : (tensor<3x4xf32>, tensor<16x4xf32>, tensor<16xf32>) -> tensor<3x16xf32>
  %k = transformer.linear %x, %wk {loc = "layers.0.attn.k"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %q2 = transformer.rotate %q, %p, %table {heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_q"} : (tensor<3x16xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x16xf32>
  %k2 = transformer.rotate %k, %p, %table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_k"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x8xf32>
  %d = transformer.cache_write %c, %k2, %v, %p, %s, %t {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
  %o = transformer.attention %q2, %d, %t, %s, %l {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x16xf32>
  func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
}
// -----
// CHECK:      func.func @forward(
// CHECK-SAME: paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>)
// CHECK-SAME: lamella.layout = {choice = "unchanged", reason = "transformer.attention at layers.0.attn.attention: q comes from transformer.silu at layers.0.attn.q_act, expected a rotation"}
// CHECK-NOT:  transformer.pair_rows
func.func @forward(%x : tensor<3x4xf32>, %p : tensor<3xi32>, %s : tensor<3xi32>, %t : tensor<2x5xi32>, %l : tensor<2xi32>, %c : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) {
  %table = transformer.rope_table {length = 32 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x8xf32>
  %small = transformer.rope_table {length = 32 : i64, rotary_dim = 4 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x4xf32>
  %wq = transformer.weight "layers.0.attn.q_proj" : tensor<16x4xf32>
  %bq = transformer.weight "layers.0.attn.q_proj.bias" : tensor<16xf32>
  %wk = transformer.weight "layers.0.attn.k_proj" : tensor<8x4xf32>
  %wv = transformer.weight "layers.0.attn.v_proj" : tensor<8x4xf32>
  %q = transformer.linear %x, %wq, %bq {loc = "layers.0.attn.q"} : (tensor<3x4xf32>, tensor<16x4xf32>, tensor<16xf32>) -> tensor<3x16xf32>
  %k = transformer.linear %x, %wk {loc = "layers.0.attn.k"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %q2 = transformer.silu %q {loc = "layers.0.attn.q_act"} : (tensor<3x16xf32>) -> tensor<3x16xf32>
  %k2 = transformer.rotate %k, %p, %table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_k"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x8xf32>
  %d = transformer.cache_write %c, %k2, %v, %p, %s, %t {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
  %o = transformer.attention %q2, %d, %t, %s, %l {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x16xf32>
  func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
}
// -----
// CHECK:      func.func @forward(
// CHECK-SAME: paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>)
// CHECK-SAME: lamella.layout = {choice = "unchanged", reason = "transformer.rotate at layers.0.attn.rope_q: x comes from transformer.add at layers.0.attn.q_twice, expected a linear, or a norm of one"}
// CHECK-NOT:  transformer.pair_rows
func.func @forward(%x : tensor<3x4xf32>, %p : tensor<3xi32>, %s : tensor<3xi32>, %t : tensor<2x5xi32>, %l : tensor<2xi32>, %c : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) {
  %table = transformer.rope_table {length = 32 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x8xf32>
  %small = transformer.rope_table {length = 32 : i64, rotary_dim = 4 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x4xf32>
  %wq = transformer.weight "layers.0.attn.q_proj" : tensor<16x4xf32>
  %bq = transformer.weight "layers.0.attn.q_proj.bias" : tensor<16xf32>
  %wk = transformer.weight "layers.0.attn.k_proj" : tensor<8x4xf32>
  %wv = transformer.weight "layers.0.attn.v_proj" : tensor<8x4xf32>
  %q = transformer.linear %x, %wq, %bq {loc = "layers.0.attn.q"} : (tensor<3x4xf32>, tensor<16x4xf32>, tensor<16xf32>) -> tensor<3x16xf32>
  %k = transformer.linear %x, %wk {loc = "layers.0.attn.k"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %q1 = transformer.add %q, %q {loc = "layers.0.attn.q_twice"} : (tensor<3x16xf32>, tensor<3x16xf32>) -> tensor<3x16xf32>
  %q2 = transformer.rotate %q1, %p, %table {heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_q"} : (tensor<3x16xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x16xf32>
  %k2 = transformer.rotate %k, %p, %table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_k"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x8xf32>
  %d = transformer.cache_write %c, %k2, %v, %p, %s, %t {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
  %o = transformer.attention %q2, %d, %t, %s, %l {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x16xf32>
  func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
}
// -----
// CHECK:      func.func @forward(
// CHECK-SAME: paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>)
// CHECK-SAME: lamella.layout = {choice = "unchanged", reason = "transformer.linear at layers.0.attn.q: its result has uses besides the rotation at layers.0.attn.rope_q"}
// CHECK-NOT:  transformer.pair_rows
func.func @forward(%x : tensor<3x4xf32>, %p : tensor<3xi32>, %s : tensor<3xi32>, %t : tensor<2x5xi32>, %l : tensor<2xi32>, %c : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) {
  %table = transformer.rope_table {length = 32 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x8xf32>
  %small = transformer.rope_table {length = 32 : i64, rotary_dim = 4 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x4xf32>
  %wq = transformer.weight "layers.0.attn.q_proj" : tensor<16x4xf32>
  %bq = transformer.weight "layers.0.attn.q_proj.bias" : tensor<16xf32>
  %wk = transformer.weight "layers.0.attn.k_proj" : tensor<8x4xf32>
  %wv = transformer.weight "layers.0.attn.v_proj" : tensor<8x4xf32>
  %q = transformer.linear %x, %wq, %bq {loc = "layers.0.attn.q"} : (tensor<3x4xf32>, tensor<16x4xf32>, tensor<16xf32>) -> tensor<3x16xf32>
  %k = transformer.linear %x, %wk {loc = "layers.0.attn.k"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %q2 = transformer.rotate %q, %p, %table {heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_q"} : (tensor<3x16xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x16xf32>
  %k2 = transformer.rotate %k, %p, %table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_k"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x8xf32>
  %d = transformer.cache_write %c, %k2, %v, %p, %s, %t {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
  %o = transformer.attention %q2, %d, %t, %s, %l {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x16xf32>
  %e = transformer.silu %q : (tensor<3x16xf32>) -> tensor<3x16xf32>
  func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
}
// -----
// CHECK:      func.func @forward(
// CHECK-SAME: paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>)
// CHECK-SAME: lamella.layout = {choice = "unchanged", reason = "transformer.rotate at layers.0.attn.rope_k: its result has uses besides the cache's keys and attention's queries"}
// CHECK-NOT:  transformer.pair_rows
func.func @forward(%x : tensor<3x4xf32>, %p : tensor<3xi32>, %s : tensor<3xi32>, %t : tensor<2x5xi32>, %l : tensor<2xi32>, %c : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) {
  %table = transformer.rope_table {length = 32 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x8xf32>
  %small = transformer.rope_table {length = 32 : i64, rotary_dim = 4 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x4xf32>
  %wq = transformer.weight "layers.0.attn.q_proj" : tensor<16x4xf32>
  %bq = transformer.weight "layers.0.attn.q_proj.bias" : tensor<16xf32>
  %wk = transformer.weight "layers.0.attn.k_proj" : tensor<8x4xf32>
  %wv = transformer.weight "layers.0.attn.v_proj" : tensor<8x4xf32>
  %q = transformer.linear %x, %wq, %bq {loc = "layers.0.attn.q"} : (tensor<3x4xf32>, tensor<16x4xf32>, tensor<16xf32>) -> tensor<3x16xf32>
  %k = transformer.linear %x, %wk {loc = "layers.0.attn.k"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %q2 = transformer.rotate %q, %p, %table {heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_q"} : (tensor<3x16xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x16xf32>
  %k2 = transformer.rotate %k, %p, %table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_k"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x8xf32>
  %d = transformer.cache_write %c, %k2, %v, %p, %s, %t {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
  %o = transformer.attention %q2, %d, %t, %s, %l {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x16xf32>
  %e = transformer.silu %k2 : (tensor<3x8xf32>) -> tensor<3x8xf32>
  func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
}
// -----
// CHECK:      func.func @forward(
// CHECK-SAME: paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>)
// CHECK-SAME: lamella.layout = {choice = "unchanged", reason = "weight layers.0.attn.v_proj is also used by transformer.linear at layers.0.attn.v, where its rows keep their order"}
// CHECK-NOT:  transformer.pair_rows
func.func @forward(%x : tensor<3x4xf32>, %p : tensor<3xi32>, %s : tensor<3xi32>, %t : tensor<2x5xi32>, %l : tensor<2xi32>, %c : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) {
  %table = transformer.rope_table {length = 32 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x8xf32>
  %small = transformer.rope_table {length = 32 : i64, rotary_dim = 4 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x4xf32>
  %wq = transformer.weight "layers.0.attn.q_proj" : tensor<16x4xf32>
  %bq = transformer.weight "layers.0.attn.q_proj.bias" : tensor<16xf32>
  %wk = transformer.weight "layers.0.attn.v_proj" : tensor<8x4xf32>
  %wv = transformer.weight "layers.0.attn.v_proj" : tensor<8x4xf32>
  %q = transformer.linear %x, %wq, %bq {loc = "layers.0.attn.q"} : (tensor<3x4xf32>, tensor<16x4xf32>, tensor<16xf32>) -> tensor<3x16xf32>
  %k = transformer.linear %x, %wk {loc = "layers.0.attn.k"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %q2 = transformer.rotate %q, %p, %table {heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_q"} : (tensor<3x16xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x16xf32>
  %k2 = transformer.rotate %k, %p, %table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_k"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x8xf32>
  %d = transformer.cache_write %c, %k2, %v, %p, %s, %t {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
  %o = transformer.attention %q2, %d, %t, %s, %l {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x16xf32>
  func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
}
// -----
// CHECK:      func.func @forward(
// CHECK-SAME: paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>)
// CHECK-SAME: lamella.layout = {choice = "unchanged", reason = "half-split and paired rotations meet in one module"}
// CHECK-NOT:  transformer.pair_rows
func.func @forward(%x : tensor<3x4xf32>, %p : tensor<3xi32>, %s : tensor<3xi32>, %t : tensor<2x5xi32>, %l : tensor<2xi32>, %c : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) {
  %table = transformer.rope_table {length = 32 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x8xf32>
  %small = transformer.rope_table {length = 32 : i64, rotary_dim = 4 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x4xf32>
  %wq = transformer.weight "layers.0.attn.q_proj" : tensor<16x4xf32>
  %bq = transformer.weight "layers.0.attn.q_proj.bias" : tensor<16xf32>
  %wk = transformer.weight "layers.0.attn.k_proj" : tensor<8x4xf32>
  %wv = transformer.weight "layers.0.attn.v_proj" : tensor<8x4xf32>
  %q = transformer.linear %x, %wq, %bq {loc = "layers.0.attn.q"} : (tensor<3x4xf32>, tensor<16x4xf32>, tensor<16xf32>) -> tensor<3x16xf32>
  %k = transformer.linear %x, %wk {loc = "layers.0.attn.k"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %q2 = transformer.rotate %q, %p, %table {heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_q"} : (tensor<3x16xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x16xf32>
  %k2 = transformer.rotate %k, %p, %table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "paired", loc = "layers.0.attn.rope_k"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x8xf32>
  %d = transformer.cache_write %c, %k2, %v, %p, %s, %t {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
  %o = transformer.attention %q2, %d, %t, %s, %l {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x16xf32>
  func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
}
// -----
// CHECK:      func.func @forward(
// CHECK-SAME: paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>)
// CHECK-SAME: lamella.layout = {choice = "unchanged", reason = "rotations of 4, 8 dimensions meet in one module"}
// CHECK-NOT:  transformer.pair_rows
func.func @forward(%x : tensor<3x4xf32>, %p : tensor<3xi32>, %s : tensor<3xi32>, %t : tensor<2x5xi32>, %l : tensor<2xi32>, %c : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) {
  %table = transformer.rope_table {length = 32 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x8xf32>
  %small = transformer.rope_table {length = 32 : i64, rotary_dim = 4 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x4xf32>
  %wq = transformer.weight "layers.0.attn.q_proj" : tensor<16x4xf32>
  %bq = transformer.weight "layers.0.attn.q_proj.bias" : tensor<16xf32>
  %wk = transformer.weight "layers.0.attn.k_proj" : tensor<8x4xf32>
  %wv = transformer.weight "layers.0.attn.v_proj" : tensor<8x4xf32>
  %q = transformer.linear %x, %wq, %bq {loc = "layers.0.attn.q"} : (tensor<3x4xf32>, tensor<16x4xf32>, tensor<16xf32>) -> tensor<3x16xf32>
  %k = transformer.linear %x, %wk {loc = "layers.0.attn.k"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %q2 = transformer.rotate %q, %p, %table {heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_q"} : (tensor<3x16xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x16xf32>
  %k2 = transformer.rotate %k, %p, %small {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 4 : i64, style = "half", loc = "layers.0.attn.rope_k"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<32x4xf32>) -> tensor<3x8xf32>
  %d = transformer.cache_write %c, %k2, %v, %p, %s, %t {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
  %o = transformer.attention %q2, %d, %t, %s, %l {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x16xf32>
  func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
}
// -----
// A checkpoint that interleaves already.
// CHECK:      lamella.layout = {choice = "paired already", rotary_dim = 8 : i64}
// CHECK-NOT:  transformer.pair_rows
func.func @forward(%x : tensor<3x4xf32>, %p : tensor<3xi32>, %s : tensor<3xi32>, %t : tensor<2x5xi32>, %l : tensor<2xi32>, %c : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>) {
  %table = transformer.rope_table {length = 32 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x8xf32>
  %small = transformer.rope_table {length = 32 : i64, rotary_dim = 4 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x4xf32>
  %wq = transformer.weight "layers.0.attn.q_proj" : tensor<16x4xf32>
  %bq = transformer.weight "layers.0.attn.q_proj.bias" : tensor<16xf32>
  %wk = transformer.weight "layers.0.attn.k_proj" : tensor<8x4xf32>
  %wv = transformer.weight "layers.0.attn.v_proj" : tensor<8x4xf32>
  %q = transformer.linear %x, %wq, %bq {loc = "layers.0.attn.q"} : (tensor<3x4xf32>, tensor<16x4xf32>, tensor<16xf32>) -> tensor<3x16xf32>
  %k = transformer.linear %x, %wk {loc = "layers.0.attn.k"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %q2 = transformer.rotate %q, %p, %table {heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "paired"} : (tensor<3x16xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x16xf32>
  %k2 = transformer.rotate %k, %p, %table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "paired", loc = "layers.0.attn.rope_k"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x8xf32>
  %d = transformer.cache_write %c, %k2, %v, %p, %s, %t {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>
  %o = transformer.attention %q2, %d, %t, %s, %l {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x16xf32>
  func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>
}
// -----
// Nothing to lay out.
// CHECK: func.func @none(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
func.func @none(%x : tensor<3x4xf32>) -> tensor<3x4xf32> {
  func.return %x : tensor<3x4xf32>
}
// -----
// A weight that takes a norm's scale is paired after it; the scale itself, which the v projection reads too, keeps its order.
// CHECK:      func.func @scaled(
// CHECK-SAME: lamella.layout = {choice = "paired", rotary_dim = 8 : i64}
// CHECK:      %sq = transformer.scale_columns %wq, %g
// CHECK-NEXT: %sk = transformer.scale_columns %wk, %g
// CHECK-NEXT: %sv = transformer.scale_columns %wv, %g
// CHECK-NEXT: %0 = transformer.pair_rows %sq {head_dim = 8 : i64, rotary_dim = 8 : i64}
// CHECK-NEXT: %q = transformer.linear %x, %0
// CHECK-NEXT: %1 = transformer.pair_rows %sk {head_dim = 8 : i64, rotary_dim = 8 : i64}
// CHECK-NEXT: %k = transformer.linear %x, %1
// CHECK-NEXT: %v = transformer.linear %x, %sv
func.func @scaled(%x : tensor<3x4xf32>, %p : tensor<3xi32>, %s : tensor<3xi32>, %t : tensor<2x5xi32>, %l : tensor<2xi32>, %c : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) {
  %table = transformer.rope_table {length = 32 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<32x8xf32>
  %g = transformer.weight "layers.0.attn_norm" : tensor<4xf32>
  %wq = transformer.weight "layers.0.attn.q_proj" : tensor<16x4xf32>
  %wk = transformer.weight "layers.0.attn.k_proj" : tensor<8x4xf32>
  %wv = transformer.weight "layers.0.attn.v_proj" : tensor<8x4xf32>
  %sq = transformer.scale_columns %wq, %g : (tensor<16x4xf32>, tensor<4xf32>) -> tensor<16x4xf32>
  %sk = transformer.scale_columns %wk, %g : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %sv = transformer.scale_columns %wv, %g : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %q = transformer.linear %x, %sq {loc = "layers.0.attn.q"} : (tensor<3x4xf32>, tensor<16x4xf32>) -> tensor<3x16xf32>
  %k = transformer.linear %x, %sk {loc = "layers.0.attn.k"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %v = transformer.linear %x, %sv {loc = "layers.0.attn.v"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %q2 = transformer.rotate %q, %p, %table {heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_q"} : (tensor<3x16xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x16xf32>
  %k2 = transformer.rotate %k, %p, %table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_k"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<32x8xf32>) -> tensor<3x8xf32>
  %d = transformer.cache_write %c, %k2, %v, %p, %s, %t {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
  %o = transformer.attention %q2, %d, %t, %s, %l {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x16xf32>
  func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
}
// -----
// A checkpoint that stores [inputs, outputs]: a transpose before each linear, which depends on a weight alone and so runs once, at load time
// (fold-constants moves it). Two that undo each other, or that nothing reads, are gone.
// CHECK:      func.func @conv1d(
// CHECK-SAME: lamella.folds = [{kind = "transpose", reason = "5 in a step before, 0 after: 2 of weights at load time, 3 gone, which undid another or were not read", verdict = "layout", what = "transposes"}]
// CHECK:      %up = transformer.transpose %wu : (tensor<4x6xf32>) -> tensor<6x4xf32>
// CHECK-NEXT: %scaled = transformer.scale_columns %up, %g
// CHECK-NEXT: %h = transformer.linear %x, %scaled
// CHECK-NEXT: %down = transformer.transpose %wd : (tensor<6x4xf32>) -> tensor<4x6xf32>
// CHECK-NEXT: %y = transformer.linear %h, %down
// CHECK-NEXT: %z = transformer.linear %y, %wz
func.func @conv1d(%x : tensor<3x4xf32>) -> tensor<3x4xf32> {
  %g = transformer.weight "norm" : tensor<4xf32>
  %wu = transformer.weight "up" : tensor<4x6xf32>
  %wd = transformer.weight "down" : tensor<6x4xf32>
  %wz = transformer.weight "back" : tensor<4x4xf32>
  %up = transformer.transpose %wu : (tensor<4x6xf32>) -> tensor<6x4xf32>
  %scaled = transformer.scale_columns %up, %g : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  %h = transformer.linear %x, %scaled : (tensor<3x4xf32>, tensor<6x4xf32>) -> tensor<3x6xf32>
  %down = transformer.transpose %wd : (tensor<6x4xf32>) -> tensor<4x6xf32>
  %unread = transformer.transpose %down : (tensor<4x6xf32>) -> tensor<6x4xf32>
  %y = transformer.linear %h, %down : (tensor<3x6xf32>, tensor<4x6xf32>) -> tensor<3x4xf32>
  %there = transformer.transpose %wz : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %back = transformer.transpose %there : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %z = transformer.linear %y, %back : (tensor<3x4xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
  func.return %z : tensor<3x4xf32>
}
// -----
// A transpose of what a step computes cannot move.
// CHECK:      func.func @activation(
// CHECK-SAME: reason = "2 in a step before, 1 after: 1 of weights at load time; transformer.transpose at scores reads transformer.linear at layers.0.attn.k"
func.func @activation(%x : tensor<3x4xf32>) -> tensor<4x3xf32> {
  %w = transformer.weight "k" : tensor<4x4xf32>
  %r = transformer.transpose %w : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %k = transformer.linear %x, %r {loc = "layers.0.attn.k"} : (tensor<3x4xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
  %t = transformer.transpose %k {loc = "scores"} : (tensor<3x4xf32>) -> tensor<4x3xf32>
  func.return %t : tensor<4x3xf32>
}
// -----
// A norm between projection and rotation: its mean does not ask for the order, its weight (of one head, or of all) is paired alike.
// CHECK:      func.func @norms(
// CHECK-SAME: lamella.layout = {choice = "paired", rotary_dim = 8 : i64}
// CHECK:      %[[WQ:.*]] = transformer.pair_rows %wq {head_dim = 8 : i64, rotary_dim = 8 : i64}
// CHECK-NEXT: %q = transformer.linear %x, %[[WQ]]
// CHECK-NEXT: %[[GQ:.*]] = transformer.pair_rows %gq {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<8xf32>) -> tensor<8xf32, #transformer.layout<head = 8, paired = 8>>
// CHECK-NEXT: %nq = transformer.rms_norm %q, %[[GQ]] {{.*}} -> tensor<3x16xf32, #transformer.layout<head = 8, paired = 8>>
// CHECK:      %[[GK:.*]] = transformer.pair_rows %gk {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<8xf32>) -> tensor<8xf32, #transformer.layout<head = 8, paired = 8>>
// CHECK-NEXT: %nk = transformer.rms_norm %k, %[[GK]]
func.func @norms(%x : tensor<3x4xf32>, %p : tensor<3xi32>, %s : tensor<3xi32>, %t : tensor<2x5xi32>, %l : tensor<2xi32>, %c : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) {
  %wq = transformer.weight "layers.0.attn.q_proj" : tensor<16x4xf32>
  %wk = transformer.weight "layers.0.attn.k_proj" : tensor<8x4xf32>
  %wv = transformer.weight "layers.0.attn.v_proj" : tensor<8x4xf32>
  %gq = transformer.weight "layers.0.attn.q_norm" : tensor<8xf32>
  %gk = transformer.weight "layers.0.attn.k_norm" : tensor<8xf32>
  %table = transformer.rope_table {length = 20 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<20x8xf32>
  %q = transformer.linear %x, %wq {loc = "layers.0.attn.q"} : (tensor<3x4xf32>, tensor<16x4xf32>) -> tensor<3x16xf32>
  %nq = transformer.rms_norm %q, %gq {eps = 1.0e-05 : f64, heads = 2 : i64, loc = "layers.0.attn.q_norm"} : (tensor<3x16xf32>, tensor<8xf32>) -> tensor<3x16xf32>
  %k = transformer.linear %x, %wk {loc = "layers.0.attn.k"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %nk = transformer.rms_norm %k, %gk {eps = 1.0e-05 : f64, loc = "layers.0.attn.k_norm"} : (tensor<3x8xf32>, tensor<8xf32>) -> tensor<3x8xf32>
  %qr = transformer.rotate %nq, %p, %table {heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_q"} : (tensor<3x16xf32>, tensor<3xi32>, tensor<20x8xf32>) -> tensor<3x16xf32>
  %kr = transformer.rotate %nk, %p, %table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_k"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<20x8xf32>) -> tensor<3x8xf32>
  %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %d = transformer.cache_write %c, %kr, %v, %p, %s, %t {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
  %o = transformer.attention %qr, %d, %t, %s, %l {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x16xf32>
  func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
}
// -----
// The rows of a packed weight are those of its words, scales and least values.
// CHECK:      func.func @packed(
// CHECK-SAME: lamella.layout = {choice = "paired", rotary_dim = 8 : i64}
func.func @packed(%x : tensor<3x32xf32>, %p : tensor<3xi32>, %s : tensor<3xi32>, %t : tensor<2x5xi32>, %l : tensor<2xi32>, %c : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) -> (tensor<3x8xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) {
  %wq = transformer.weight "layers.0.attn.q_proj.packed" : tensor<8x4xi32>
  %sq = transformer.weight "layers.0.attn.q_proj.scales" : tensor<8x1xf16>
  %mq = transformer.weight "layers.0.attn.q_proj.mins" : tensor<8x1xf32>
  %wk = transformer.weight "layers.0.attn.k_proj" : tensor<8x32xf32>
  %wv = transformer.weight "layers.0.attn.v_proj" : tensor<8x32xf32>
  %table = transformer.rope_table {length = 20 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<20x8xf32>
  %dq = transformer.dequantize %wq, %sq, %mq {packing = #transformer.packing<int4, group = 32>} : (tensor<8x4xi32>, tensor<8x1xf16>, tensor<8x1xf32>) -> tensor<8x32xf32>
  // CHECK:      %0 = transformer.pair_rows %wq {{.*}} -> tensor<8x4xi32, #transformer.layout<head = 8, paired = 8>>
  // CHECK-NEXT: %1 = transformer.pair_rows %sq {{.*}} -> tensor<8x1xf16, #transformer.layout<head = 8, paired = 8>>
  // CHECK-NEXT: %2 = transformer.pair_rows %mq {{.*}} -> tensor<8x1xf32, #transformer.layout<head = 8, paired = 8>>
  // CHECK-NEXT: %3 = transformer.dequantize %0, %1, %2 {packing = #transformer.packing<int4, group = 32>} : {{.*}} -> tensor<8x32xf32, #transformer.layout<head = 8, paired = 8>>
  // CHECK-NEXT: %q = transformer.linear %x, %3
  %q = transformer.linear %x, %dq {loc = "layers.0.attn.q"} : (tensor<3x32xf32>, tensor<8x32xf32>) -> tensor<3x8xf32>
  %k = transformer.linear %x, %wk {loc = "layers.0.attn.k"} : (tensor<3x32xf32>, tensor<8x32xf32>) -> tensor<3x8xf32>
  %qr = transformer.rotate %q, %p, %table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_q"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<20x8xf32>) -> tensor<3x8xf32>
  %kr = transformer.rotate %k, %p, %table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_k"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<20x8xf32>) -> tensor<3x8xf32>
  %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"} : (tensor<3x32xf32>, tensor<8x32xf32>) -> tensor<3x8xf32>
  %d = transformer.cache_write %c, %kr, %v, %p, %s, %t {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
  %o = transformer.attention %qr, %d, %t, %s, %l {heads = 1 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x8xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x8xf32>
  func.return %o, %d : tensor<3x8xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
}
// -----
// Parts of a row that are no heads would be other numbers after the pairing.
// CHECK:      func.func @parts(
// CHECK-SAME: lamella.layout = {choice = "unchanged", reason = "transformer.rms_norm at layers.0.attn.q_norm: it normalizes 4 parts of a row, expected its 2 heads"}
func.func @parts(%x : tensor<3x4xf32>, %p : tensor<3xi32>, %s : tensor<3xi32>, %t : tensor<2x5xi32>, %l : tensor<2xi32>, %c : !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>) {
  %wq = transformer.weight "layers.0.attn.q_proj" : tensor<16x4xf32>
  %wk = transformer.weight "layers.0.attn.k_proj" : tensor<8x4xf32>
  %wv = transformer.weight "layers.0.attn.v_proj" : tensor<8x4xf32>
  %gq = transformer.weight "layers.0.attn.q_norm" : tensor<4xf32>
  %gk = transformer.weight "layers.0.attn.k_norm" : tensor<8xf32>
  %table = transformer.rope_table {length = 20 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<20x8xf32>
  %q = transformer.linear %x, %wq {loc = "layers.0.attn.q"} : (tensor<3x4xf32>, tensor<16x4xf32>) -> tensor<3x16xf32>
  %nq = transformer.rms_norm %q, %gq {eps = 1.0e-05 : f64, heads = 4 : i64, loc = "layers.0.attn.q_norm"} : (tensor<3x16xf32>, tensor<4xf32>) -> tensor<3x16xf32>
  %k = transformer.linear %x, %wk {loc = "layers.0.attn.k"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %nk = transformer.rms_norm %k, %gk {eps = 1.0e-05 : f64, loc = "layers.0.attn.k_norm"} : (tensor<3x8xf32>, tensor<8xf32>) -> tensor<3x8xf32>
  %qr = transformer.rotate %nq, %p, %table {heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_q"} : (tensor<3x16xf32>, tensor<3xi32>, tensor<20x8xf32>) -> tensor<3x16xf32>
  %kr = transformer.rotate %nk, %p, %table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", loc = "layers.0.attn.rope_k"} : (tensor<3x8xf32>, tensor<3xi32>, tensor<20x8xf32>) -> tensor<3x8xf32>
  %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"} : (tensor<3x4xf32>, tensor<8x4xf32>) -> tensor<3x8xf32>
  %d = transformer.cache_write %c, %kr, %v, %p, %s, %t {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
  %o = transformer.attention %qr, %d, %t, %s, %l {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x16xf32>
  func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 0>
}
