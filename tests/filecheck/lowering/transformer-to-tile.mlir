// RUN: lamella-opt %s -p transformer-to-tile | filecheck %s

// The IR of the pass's docstring. Rounding is explicit: values widen before a map and are rounded after it, once an op.
// CHECK-LABEL: func.func @elementwise
// CHECK-NEXT:    %[[WIDE:.*]] = tile.cast %x {loc = "layers.0.ffn.activation"} : tensor<3x8xbf16> -> tensor<3x8xf32>
// CHECK-NEXT:    %[[SILU:.*]] = tile.map "silu"(%[[WIDE]]) {loc = "layers.0.ffn.activation"} : tensor<3x8xf32> -> tensor<3x8xf32>
// CHECK-NEXT:    %a = tile.cast %[[SILU]] {loc = "layers.0.ffn.activation"} : tensor<3x8xf32> -> tensor<3x8xbf16>
// CHECK-NEXT:    %[[A:.*]] = tile.cast %a {loc = "layers.0.ffn.gated"}
// CHECK-NEXT:    %[[Y:.*]] = tile.cast %y {loc = "layers.0.ffn.gated"}
// CHECK-NEXT:    %[[MUL:.*]] = tile.map "mul"(%[[A]], %[[Y]]) {loc = "layers.0.ffn.gated"}
// CHECK-NEXT:    %b = tile.cast %[[MUL]] {loc = "layers.0.ffn.gated"} : tensor<3x8xf32> -> tensor<3x8xbf16>
// CHECK-NEXT:    func.return %b
func.func @elementwise(%x: tensor<3x8xbf16>, %y: tensor<3x8xbf16>) -> tensor<3x8xbf16> {
  %a = transformer.silu %x {loc = "layers.0.ffn.activation"} : (tensor<3x8xbf16>) -> tensor<3x8xbf16>
  %b = transformer.mul %a, %y {loc = "layers.0.ffn.gated"} : (tensor<3x8xbf16>, tensor<3x8xbf16>) -> tensor<3x8xbf16>
  func.return %b : tensor<3x8xbf16>
}

// Float32 needs no casts, and indices stay indices.
// CHECK-LABEL: func.func @exact
// CHECK-NEXT:    %y = tile.map "exp"(%x) : tensor<3x8xf32> -> tensor<3x8xf32>
// CHECK-NEXT:    %[[ONE:.*]] = tile.constant 1 : i32 : tensor<i32>
// CHECK-NEXT:    %q = tile.map "add"(%p, %[[ONE]]) : tensor<3xi32>, tensor<i32> -> tensor<3xi32>
// CHECK-NEXT:    func.return
func.func @exact(%x: tensor<3x8xf32>, %p: tensor<3xi32>) -> (tensor<3x8xf32>, tensor<3xi32>) {
  %y = transformer.exp %x : (tensor<3x8xf32>) -> tensor<3x8xf32>
  %q = transformer.advance %p : (tensor<3xi32>) -> tensor<3xi32>
  func.return %y, %q : tensor<3x8xf32>, tensor<3xi32>
}

// The normalized row is rounded before it meets its weight, as in the model's own code.
// CHECK-LABEL: func.func @norm
// CHECK-NEXT:    %[[X:.*]] = tile.cast %x
// CHECK-NEXT:    %[[SQUARE:.*]] = tile.map "square"(%[[X]])
// CHECK-NEXT:    %[[SUM:.*]] = tile.reduce "sum" %[[SQUARE]] {loc = "final_norm"} : tensor<3x8xf32> -> tensor<3x1xf32>
// CHECK-NEXT:    %[[EIGHTH:.*]] = tile.constant 1.250000e-01 : f32 : tensor<f32>
// CHECK-NEXT:    %[[MEAN:.*]] = tile.map "mul"(%[[SUM]], %[[EIGHTH]])
// CHECK-NEXT:    %[[EPS:.*]] = tile.constant 1.000000e-05 : f32 : tensor<f32>
// CHECK-NEXT:    %[[SAFE:.*]] = tile.map "add"(%[[MEAN]], %[[EPS]])
// CHECK-NEXT:    %inverse = tile.map "rsqrt"(%[[SAFE]])
// CHECK-NEXT:    %[[NORMED:.*]] = tile.map "mul"(%[[X]], %inverse) {loc = "final_norm"} : tensor<3x8xf32>, tensor<3x1xf32> -> tensor<3x8xf32>
// CHECK-NEXT:    %[[ROUNDED:.*]] = tile.cast %[[NORMED]] {loc = "final_norm"} : tensor<3x8xf32> -> tensor<3x8xbf16>
// CHECK-NEXT:    %[[AGAIN:.*]] = tile.cast %[[ROUNDED]]
// CHECK-NEXT:    %[[W:.*]] = tile.cast %w
// CHECK-NEXT:    %[[SCALED:.*]] = tile.map "mul"(%[[AGAIN]], %[[W]]) {loc = "final_norm"} : tensor<3x8xf32>, tensor<8xf32> -> tensor<3x8xf32>
// CHECK-NEXT:    %y = tile.cast %[[SCALED]]
func.func @norm(%x: tensor<3x8xbf16>, %w: tensor<8xbf16>) -> tensor<3x8xbf16> {
  %y = transformer.rms_norm %x, %w {eps = 1.0e-05 : f64, loc = "final_norm"} : (tensor<3x8xbf16>, tensor<8xbf16>) -> tensor<3x8xbf16>
  func.return %y : tensor<3x8xbf16>
}

// A norm whose weight went into the next linears is rounded once.
// CHECK-LABEL: func.func @bare_norm
// CHECK:         %inverse = tile.map "rsqrt"
// CHECK-NEXT:    %[[NORMED:.*]] = tile.map "mul"(%{{.*}}, %inverse)
// CHECK-NEXT:    %y = tile.cast %[[NORMED]] {loc = "final_norm"} : tensor<3x8xf32> -> tensor<3x8xbf16>
// CHECK-NEXT:    func.return %y
func.func @bare_norm(%x: tensor<3x8xbf16>) -> tensor<3x8xbf16> {
  %y = transformer.rms_norm %x {eps = 1.0e-05 : f64, loc = "final_norm"} : (tensor<3x8xbf16>) -> tensor<3x8xbf16>
  func.return %y : tensor<3x8xbf16>
}

// Gemma's 1 + w: the product with the weight is not rounded before.
// CHECK-LABEL: func.func @gemma_norm
// CHECK:         %[[NORMED:.*]] = tile.map "mul"(%{{.*}}, %inverse) : tensor<3x8xf32>, tensor<3x1xf32> -> tensor<3x8xf32>
// CHECK-NEXT:    %[[W:.*]] = tile.cast %w
// CHECK-NEXT:    %[[ONE:.*]] = tile.constant 1.000000e+00 : f32 : tensor<f32>
// CHECK-NEXT:    %[[SCALE:.*]] = tile.map "add"(%[[W]], %[[ONE]]) : tensor<8xf32>, tensor<f32> -> tensor<8xf32>
// CHECK-NEXT:    %[[SCALED:.*]] = tile.map "mul"(%[[NORMED]], %[[SCALE]])
// CHECK-NEXT:    %y = tile.cast %[[SCALED]]
func.func @gemma_norm(%x: tensor<3x8xbf16>, %w: tensor<8xbf16>) -> tensor<3x8xbf16> {
  %y = transformer.rms_norm %x, %w {eps = 1.0e-06 : f64, offset = 1.0 : f64} : (tensor<3x8xbf16>, tensor<8xbf16>) -> tensor<3x8xbf16>
  func.return %y : tensor<3x8xbf16>
}

// A layer norm centres first, and rounds once at the end.
// CHECK-LABEL: func.func @layer_norm
// CHECK-NEXT:    %[[X:.*]] = tile.cast %x
// CHECK-NEXT:    %[[SUM:.*]] = tile.reduce "sum" %[[X]]
// CHECK-NEXT:    %[[EIGHTH:.*]] = tile.constant 1.250000e-01
// CHECK-NEXT:    %[[MEAN:.*]] = tile.map "mul"(%[[SUM]], %[[EIGHTH]])
// CHECK-NEXT:    %[[CENTRED:.*]] = tile.map "sub"(%[[X]], %[[MEAN]]) : tensor<3x8xf32>, tensor<3x1xf32> -> tensor<3x8xf32>
// CHECK-NEXT:    %[[SQUARE:.*]] = tile.map "square"(%[[CENTRED]])
// CHECK:         %[[NORMED:.*]] = tile.map "mul"(%[[CENTRED]], %inverse)
// CHECK-NEXT:    %[[W:.*]] = tile.cast %w
// CHECK-NEXT:    %[[SCALED:.*]] = tile.map "mul"(%[[NORMED]], %[[W]])
// CHECK-NEXT:    %[[B:.*]] = tile.cast %b
// CHECK-NEXT:    %[[SHIFTED:.*]] = tile.map "add"(%[[SCALED]], %[[B]])
// CHECK-NEXT:    %y = tile.cast %[[SHIFTED]]
func.func @layer_norm(%x: tensor<3x8xbf16>, %w: tensor<8xbf16>, %b: tensor<8xbf16>) -> tensor<3x8xbf16> {
  %y = transformer.layer_norm %x, %w, %b {eps = 1.0e-05 : f64} : (tensor<3x8xbf16>, tensor<8xbf16>, tensor<8xbf16>) -> tensor<3x8xbf16>
  func.return %y : tensor<3x8xbf16>
}

// Weights stay handles; look-ups are gathers; a bias is added before the one rounding.
// CHECK-LABEL: func.func @linear
// CHECK-NEXT:    %table = transformer.weight "embed" : tensor<32x8xbf16>
// CHECK-NEXT:    %w = transformer.weight "head" : tensor<4x8xbf16>
// CHECK-NEXT:    %bias = transformer.weight "head.bias" : tensor<4xbf16>
// CHECK-NEXT:    %x = tile.gather %table[%tokens] {loc = "embed"} : tensor<32x8xbf16>, tensor<3xi32> -> tensor<3x8xbf16>
// CHECK-NEXT:    %r = tile.gather %x[%rows] {loc = "logit_rows"} : tensor<3x8xbf16>, tensor<1xi32> -> tensor<1x8xbf16>
// CHECK-NEXT:    %[[PRODUCT:.*]] = tile.contract %r, %w {loc = "head"} : tensor<1x8xbf16>, tensor<4x8xbf16> -> tensor<1x4xf32>
// CHECK-NEXT:    %[[BIAS:.*]] = tile.cast %bias {loc = "head"} : tensor<4xbf16> -> tensor<4xf32>
// CHECK-NEXT:    %[[SUM:.*]] = tile.map "add"(%[[PRODUCT]], %[[BIAS]]) {loc = "head"} : tensor<1x4xf32>, tensor<4xf32> -> tensor<1x4xf32>
// CHECK-NEXT:    %y = tile.cast %[[SUM]] {loc = "head"} : tensor<1x4xf32> -> tensor<1x4xbf16>
func.func @linear(%tokens: tensor<3xi32>, %rows: tensor<1xi32>) -> tensor<1x4xbf16> {
  %table = transformer.weight "embed" : tensor<32x8xbf16>
  %w = transformer.weight "head" : tensor<4x8xbf16>
  %bias = transformer.weight "head.bias" : tensor<4xbf16>
  %x = transformer.embedding %tokens, %table {loc = "embed"} : (tensor<3xi32>, tensor<32x8xbf16>) -> tensor<3x8xbf16>
  %r = transformer.gather_rows %x, %rows {loc = "logit_rows"} : (tensor<3x8xbf16>, tensor<1xi32>) -> tensor<1x8xbf16>
  %y = transformer.linear %r, %w, %bias {loc = "head"} : (tensor<1x8xbf16>, tensor<4x8xbf16>, tensor<4xbf16>) -> tensor<1x4xbf16>
  func.return %y : tensor<1x4xbf16>
}

// Float32 logits of a bfloat16 model are not rounded at all.
// CHECK-LABEL: func.func @logits
// CHECK-NEXT:    %y = tile.contract %x, %w : tensor<3x8xbf16>, tensor<4x8xbf16> -> tensor<3x4xf32>
// CHECK-NEXT:    func.return %y
func.func @logits(%x: tensor<3x8xbf16>, %w: tensor<4x8xbf16>) -> tensor<3x4xf32> {
  %y = transformer.linear %x, %w : (tensor<3x8xbf16>, tensor<4x8xbf16>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// The cache becomes the tensor of its blocks. Angles and slots carry no location, so that `cse` leaves one of each for all layers.
// CHECK-LABEL: func.func @attention
// CHECK-SAME:    %cache: tensor<?x2x1x4x8xbf16>) -> (tensor<3x32xbf16>, tensor<?x2x1x4x8xbf16>)
// CHECK-NEXT:    %table = transformer.rope_table
// CHECK-NEXT:    %angles = tile.gather %table[%positions] : tensor<16x8xf32>, tensor<3xi32> -> tensor<3x8xf32>
// CHECK-NEXT:    %[[Q:.*]] = tile.cast %q
// CHECK-NEXT:    %[[TURN:.*]] = tile.rotate "paired" %[[Q]] by %angles heads 4 : i64 head_dim 8 : i64 rotary_dim 8 : i64 {loc = "layers.0.attn.rope_q"}
// CHECK-NEXT:    %turned = tile.cast %[[TURN]]
// CHECK-NEXT:    %slots = tile.slots %positions, %query_start, %block_table block 4 : i64 : tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32> -> tensor<3xi32>
// CHECK-NEXT:    %[[KEYED:.*]] = tile.scatter %k into %cache[%slots] part 0 : i64 {loc = "layers.0.attn.cache"}
// CHECK-NEXT:    %[[BOTH:.*]] = tile.scatter %v into %[[KEYED]][%slots] part 1 : i64 {loc = "layers.0.attn.cache"}
// CHECK-NEXT:    %[[MIXED:.*]] = tile.attend %turned, %[[BOTH]], %block_table, %query_start, %context_len {loc = "layers.0.attn.attention", heads = 4 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 5.000000e-01 : f64}
// CHECK-SAME:      -> tensor<3x32xf32>
// CHECK-NEXT:    %mixed = tile.cast %[[MIXED]]
// CHECK-NEXT:    func.return %mixed, %[[BOTH]] : tensor<3x32xbf16>, tensor<?x2x1x4x8xbf16>
func.func @attention(%q: tensor<3x32xbf16>, %k: tensor<3x8xbf16>, %v: tensor<3x8xbf16>, %positions: tensor<3xi32>, %query_start: tensor<3xi32>, %context_len: tensor<2xi32>, %block_table: tensor<2x5xi32>, %cache: !transformer.kv_cache<1 x 8 x bf16, block = 4, paired = 8>) -> (tensor<3x32xbf16>, !transformer.kv_cache<1 x 8 x bf16, block = 4, paired = 8>) {
  %table = transformer.rope_table {length = 16 : i64, rotary_dim = 8 : i64, theta = 1.0e+04 : f64, scaling = {}} : tensor<16x8xf32>
  %turned = transformer.rotate %q, %positions, %table {heads = 4 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "paired", loc = "layers.0.attn.rope_q"} : (tensor<3x32xbf16>, tensor<3xi32>, tensor<16x8xf32>) -> tensor<3x32xbf16>
  %new = transformer.cache_write %cache, %k, %v, %positions, %query_start, %block_table {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 8 x bf16, block = 4, paired = 8>, tensor<3x8xbf16>, tensor<3x8xbf16>, tensor<3xi32>, tensor<3xi32>, tensor<2x5xi32>) -> !transformer.kv_cache<1 x 8 x bf16, block = 4, paired = 8>
  %mixed = transformer.attention %turned, %new, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, loc = "layers.0.attn.attention"} : (tensor<3x32xbf16>, !transformer.kv_cache<1 x 8 x bf16, block = 4, paired = 8>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x32xbf16>
  func.return %mixed, %new : tensor<3x32xbf16>, !transformer.kv_cache<1 x 8 x bf16, block = 4, paired = 8>
}

// CHECK-LABEL: func.func @sample
// CHECK-NEXT:    %next = tile.sample %logits, %f, %i, %f, %f, %i, %i {loc = "sample"}
// CHECK-NEXT:    func.return %next
func.func @sample(%logits: tensor<2x16xf32>, %f: tensor<2xf32>, %i: tensor<2xi32>) -> tensor<2xi32> {
  %next = transformer.sample %logits, %f, %i, %f, %f, %i, %i {loc = "sample"} : (tensor<2x16xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32>) -> tensor<2xi32>
  func.return %next : tensor<2xi32>
}

// CHECK-LABEL: func.func @penalties
// CHECK:         %[[OVER:.*]] = tile.map "div"(%{{.*}}, %factors)
// CHECK:         %[[UNDER:.*]] = tile.map "mul"(%{{.*}}, %factors)
// CHECK-NEXT:    %held = tile.map "add"(%[[OVER]], %[[UNDER]]) {loc = "penalize"}
// CHECK:         %columns = tile.columns %factors {loc = "factors"} : tensor<2x16xf32> -> tensor<2x16xi32>
// CHECK:         %[[HERE:.*]] = tile.map "equal"(
// CHECK:         %known = tile.map "select"(%[[HERE]], %{{.*}}, %factors) {loc = "factors"} : tensor<2x16xf32>, tensor<2x1xf32>, tensor<2x16xf32> -> tensor<2x16xf32>
func.func @penalties(%logits: tensor<2x16xf32>, %factors: tensor<2x16xf32>, %next: tensor<2xi32>, %penalty: tensor<2xf32>) -> (tensor<2x16xf32>, tensor<2x16xf32>) {
  %held = transformer.penalize %logits, %factors {loc = "penalize"} : (tensor<2x16xf32>, tensor<2x16xf32>) -> tensor<2x16xf32>
  %known = transformer.mark %factors, %next, %penalty {loc = "factors"} : (tensor<2x16xf32>, tensor<2xi32>, tensor<2xf32>) -> tensor<2x16xf32>
  func.return %held, %known : tensor<2x16xf32>, tensor<2x16xf32>
}

// Heads that are normalized one by one are rows of their own; a weight for the whole row meets the whole row.
// CHECK-LABEL: func.func @head_norm
// CHECK-NEXT:    %[[HEADS:.*]] = tile.reshape %x to [6, 4] {loc = "layers.0.attn.q_norm"} : tensor<3x8xf32> -> tensor<6x4xf32>
// CHECK-NEXT:    %{{.*}} = tile.map "square"(%[[HEADS]])
// CHECK:         %inverse = tile.map "rsqrt"
// CHECK-NEXT:    %[[NORMED:.*]] = tile.map "mul"(%[[HEADS]], %inverse)
// CHECK-NEXT:    %[[SCALED:.*]] = tile.map "mul"(%[[NORMED]], %w) {{.*}} : tensor<6x4xf32>, tensor<4xf32> -> tensor<6x4xf32>
// CHECK-NEXT:    %y = tile.reshape %[[SCALED]] to [3, 8]
// CHECK:         %[[CENTRED:.*]] = tile.map "mul"({{.*}}) : tensor<6x4xf32>, tensor<6x1xf32> -> tensor<6x4xf32>
// CHECK-NEXT:    %[[ROWS:.*]] = tile.reshape %[[CENTRED]] to [3, 8]
// CHECK-NEXT:    %z = tile.map "mul"(%[[ROWS]], %v) : tensor<3x8xf32>, tensor<8xf32> -> tensor<3x8xf32>
func.func @head_norm(%x: tensor<3x8xf32>, %w: tensor<4xf32>, %v: tensor<8xf32>) -> (tensor<3x8xf32>, tensor<3x8xf32>) {
  %y = transformer.rms_norm %x, %w {eps = 1.0e-05 : f64, heads = 2 : i64, loc = "layers.0.attn.q_norm"} : (tensor<3x8xf32>, tensor<4xf32>) -> tensor<3x8xf32>
  %z = transformer.layer_norm %x, %v {eps = 1.0e-05 : f64, heads = 2 : i64} : (tensor<3x8xf32>, tensor<8xf32>) -> tensor<3x8xf32>
  func.return %y, %z : tensor<3x8xf32>, tensor<3x8xf32>
}

// CHECK-LABEL: func.func @scale
// CHECK-NEXT:    %[[X:.*]] = tile.cast %x
// CHECK-NEXT:    %[[FACTOR:.*]] = tile.constant 1.250000e+01 : f32
// CHECK-NEXT:    %[[PRODUCT:.*]] = tile.map "mul"(%[[X]], %[[FACTOR]])
// CHECK-NEXT:    %y = tile.cast %[[PRODUCT]]
func.func @scale(%x: tensor<3x8xbf16>) -> tensor<3x8xbf16> {
  %y = transformer.scale %x {factor = 12.5 : f64} : (tensor<3x8xbf16>) -> tensor<3x8xbf16>
  func.return %y : tensor<3x8xbf16>
}

// CHECK-LABEL: func.func @columns
// CHECK: tile.gather_columns %x[%columns] {loc = "o"} : tensor<3x8xbf16>, tensor<8xi32> -> tensor<3x8xbf16>
func.func @columns(%x: tensor<3x8xbf16>, %columns: tensor<8xi32>) -> tensor<3x8xbf16> {
  %y = transformer.gather_columns %x, %columns {loc = "o"} : (tensor<3x8xbf16>, tensor<8xi32>) -> tensor<3x8xbf16>
  func.return %y : tensor<3x8xbf16>
}

// CHECK-LABEL: func.func @kinds_of_attention
// CHECK-NEXT:    %{{.*}} = tile.attend %q, %cache, %block_table, %query_start, %context_len sinks %sinks {heads = 4 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 5.000000e-01 : f64, window = 7 : i64, score_cap = 2.000000e+00 : f64, alibi = 8.000000e+00 : f64}
// CHECK:         %{{.*}} = tile.attend %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 5.000000e-01 : f64, bidirectional = true}
func.func @kinds_of_attention(%q: tensor<3x32xbf16>, %cache: !transformer.kv_cache<1 x 8 x bf16, block = 4, paired = 0>, %block_table: tensor<2x5xi32>, %query_start: tensor<3xi32>, %context_len: tensor<2xi32>, %sinks: tensor<4xbf16>) -> (tensor<3x32xbf16>, tensor<3x32xbf16>) {
  %0 = transformer.attention %q, %cache, %block_table, %query_start, %context_len, %sinks {heads = 4 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, window = 7 : i64, score_cap = 2.0 : f64, alibi = 8.0 : f64} : (tensor<3x32xbf16>, !transformer.kv_cache<1 x 8 x bf16, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>, tensor<4xbf16>) -> tensor<3x32xbf16>
  %1 = transformer.attention %q, %cache, %block_table, %query_start, %context_len {heads = 4 : i64, kv_heads = 1 : i64, head_dim = 8 : i64, scale = 0.5 : f64, bidirectional = true} : (tensor<3x32xbf16>, !transformer.kv_cache<1 x 8 x bf16, block = 4, paired = 0>, tensor<2x5xi32>, tensor<3xi32>, tensor<2xi32>) -> tensor<3x32xbf16>
  func.return %0, %1 : tensor<3x32xbf16>, tensor<3x32xbf16>
}

// CHECK-LABEL: func.func @rope_row
// CHECK:         tile.map "sub"
// CHECK:         tile.map "maximum"
// CHECK:         tile.map "minimum"
// CHECK:         tile.map "mul"
// CHECK:         %{{.*}} = tile.map "add"(%positions, {{.*}} tensor<3xi32>
func.func @rope_row(%positions: tensor<3xi32>, %lengths: tensor<3xi32>) -> tensor<3xi32> {
  %0 = transformer.rope_row %positions, %lengths {length = 17 : i64, original = 16 : i64} : (tensor<3xi32>, tensor<3xi32>) -> tensor<3xi32>
  func.return %0 : tensor<3xi32>
}

// Of a packed table the rows of tokens are gathered part by part, and unpacked: no float table is left.
// CHECK-LABEL: func.func @packed_embedding
// CHECK:         %[[ROWS:.*]] = tile.gather %words[%tokens] {loc = "embed"} : tensor<9x2xi32>, tensor<3xi32> -> tensor<3x2xi32>
// CHECK-NEXT:    %[[SCALES:.*]] = tile.gather %scales[%tokens] {loc = "embed"} : tensor<9x1xbf16>, tensor<3xi32> -> tensor<3x1xbf16>
// CHECK-NEXT:    %[[WIDE:.*]] = tile.dequantize %[[ROWS]], %[[SCALES]] as <int8, group = 8> {loc = "embed"}
// CHECK-NEXT:    %x = tile.cast %[[WIDE]] {loc = "embed"} : tensor<3x8xf32> -> tensor<3x8xbf16>
// CHECK-NEXT:    func.return
func.func @packed_embedding(%words: tensor<9x2xi32>, %scales: tensor<9x1xbf16>, %tokens: tensor<3xi32>) -> tensor<3x8xbf16> {
  %table = transformer.dequantize %words, %scales {packing = #transformer.packing<int8, group = 8>} : (tensor<9x2xi32>, tensor<9x1xbf16>) -> tensor<9x8xf32>
  %x = transformer.embedding %tokens, %table {loc = "embed"} : (tensor<3xi32>, tensor<9x8xf32>) -> tensor<3x8xbf16>
  func.return %x : tensor<3x8xbf16>
}

// A cache of float8 becomes two tensors: numbers, and a scale for each head of each slot; both are returned, and tied to their arguments.
// CHECK-LABEL: func.func @float8_cache
// CHECK-SAME:    (%q: tensor<1x32xbf16>, %k: tensor<1x16xbf16>, {{.*}}, %scales.0: tensor<?x2x1x16x1xf32>) -> (tensor<1x32xbf16>, tensor<?x2x1x16x16xf8E4M3FN>, tensor<?x2x1x16x1xf32>)
// CHECK-SAME:    lamella.inputs = ["q", "k", "v", "positions", "query_start", "block_table", "context_len", "cache.0", "scales.0"]
// CHECK-SAME:    lamella.outputs = ["y", "cache.0", "scales.0"], lamella.tied = array<i64: -1, 7, 8>
// CHECK:         %[[WIDE:.*]] = tile.cast %k {loc = "layers.0.attn.cache"} : tensor<1x16xbf16> -> tensor<1x16xf32>
// CHECK-NEXT:    %[[LESS:.*]] = tile.map "neg"(%[[WIDE]])
// CHECK-NEXT:    %[[SIZE:.*]] = tile.map "maximum"(%[[WIDE]], %[[LESS]])
// CHECK-NEXT:    %[[LARGEST:.*]] = tile.reduce "max" %[[SIZE]] {loc = "layers.0.attn.cache"} : tensor<1x16xf32> -> tensor<1x1xf32>
// CHECK:         %[[SCALE:.*]] = tile.map "mul"
// CHECK-NEXT:    %[[STEPS:.*]] = tile.map "div"(%[[WIDE]], %[[SCALE]])
// CHECK-NEXT:    %[[NUMBERS:.*]] = tile.cast %[[STEPS]] {loc = "layers.0.attn.cache"} : tensor<1x16xf32> -> tensor<1x16xf8E4M3FN>
// CHECK-NEXT:    tile.scatter %[[NUMBERS]] into %cache.0[%slots] part 0
// CHECK-NEXT:    tile.scatter %[[SCALE]] into %scales.0[%slots] part 0
// CHECK:         %[[MIXED:.*]] = tile.attend %q, %{{.*}}, %block_table, %query_start, %context_len scales %{{.*}} {
// CHECK-NEXT:    %y = tile.cast %[[MIXED]]
// CHECK-NEXT:    func.return %y, %{{.*}}, %{{.*}} : tensor<1x32xbf16>, tensor<?x2x1x16x16xf8E4M3FN>, tensor<?x2x1x16x1xf32>
func.func @float8_cache(%q: tensor<1x32xbf16>, %k: tensor<1x16xbf16>, %v: tensor<1x16xbf16>, %positions: tensor<1xi32>, %query_start: tensor<2xi32>, %block_table: tensor<1x4xi32>, %context_len: tensor<1xi32>, %cache.0: !transformer.kv_cache<1 x 16 x f8E4M3FN, block = 16, paired = 0>) -> (tensor<1x32xbf16>, !transformer.kv_cache<1 x 16 x f8E4M3FN, block = 16, paired = 0>) attributes {lamella.inputs = ["q", "k", "v", "positions", "query_start", "block_table", "context_len", "cache.0"], lamella.outputs = ["y", "cache.0"], lamella.tied = array<i64: -1, 7>} {
  %c = transformer.cache_write %cache.0, %k, %v, %positions, %query_start, %block_table {loc = "layers.0.attn.cache"} : (!transformer.kv_cache<1 x 16 x f8E4M3FN, block = 16, paired = 0>, tensor<1x16xbf16>, tensor<1x16xbf16>, tensor<1xi32>, tensor<2xi32>, tensor<1x4xi32>) -> !transformer.kv_cache<1 x 16 x f8E4M3FN, block = 16, paired = 0>
  %y = transformer.attention %q, %c, %block_table, %query_start, %context_len {heads = 2 : i64, kv_heads = 1 : i64, head_dim = 16 : i64, scale = 2.500000e-01 : f64} : (tensor<1x32xbf16>, !transformer.kv_cache<1 x 16 x f8E4M3FN, block = 16, paired = 0>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32>) -> tensor<1x32xbf16>
  func.return %y, %c : tensor<1x32xbf16>, !transformer.kv_cache<1 x 16 x f8E4M3FN, block = 16, paired = 0>
}
