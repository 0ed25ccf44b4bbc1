// RUN: lamella-opt %s -p propagate-layout --split-input-file | filecheck %s
// RUN: lamella-opt %s -p 'propagate-layout,propagate-layout' --split-input-file | filecheck %s --check-prefix=AGAIN

// Weights, biases, rotations and the cache change together; v does not.
// CHECK:      func.func @forward(
// CHECK-SAME: %c: !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>) -> (tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>)
// CHECK-SAME: lamella.layout = {choice = "paired", rotary_dim = 8 : i64}
// CHECK:      %0 = transformer.pair_rows %wq {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<16x4xf32>) -> tensor<16x4xf32>
// CHECK-NEXT: %1 = transformer.pair_rows %bq {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<16xf32>) -> tensor<16xf32>
// CHECK-NEXT: %q = transformer.linear %x, %0, %1 {loc = "layers.0.attn.q"}
// CHECK-NEXT: %2 = transformer.pair_rows %wk {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<8x4xf32>) -> tensor<8x4xf32>
// CHECK-NEXT: %k = transformer.linear %x, %2 {loc = "layers.0.attn.k"}
// CHECK-NEXT: %v = transformer.linear %x, %wv {loc = "layers.0.attn.v"}
// CHECK:      %q2 = transformer.rotate %q, %p, %table {loc = "layers.0.attn.rope_q", heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "paired"}
// CHECK-NEXT: %k2 = transformer.rotate %k, %p, %table {loc = "layers.0.attn.rope_k", heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "paired"}
// CHECK-NEXT: %d = transformer.cache_write
// CHECK-SAME: -> !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>
// CHECK:      func.return %o, %d : tensor<3x16xf32>, !transformer.kv_cache<1 x 8 x f32, block = 4, paired = 8>

// A second run finds nothing to do: rows are paired once.
// AGAIN:      lamella.layout = {choice = "paired already", rotary_dim = 8 : i64}
// AGAIN:      %0 = transformer.pair_rows %wq {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<16x4xf32>) -> tensor<16x4xf32>
// AGAIN-NEXT: %1 = transformer.pair_rows %bq {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<16xf32>) -> tensor<16xf32>
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
// CHECK-SAME: lamella.layout = {choice = "unchanged", reason = "transformer.rotate at layers.0.attn.rope_q: x comes from transformer.add at layers.0.attn.q_twice, expected a linear"}
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
