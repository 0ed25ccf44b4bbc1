// RUN: lamella-opt %s -p choose-schedule | filecheck %s
// RUN: lamella-opt %s -p 'choose-schedule{arch=sm_80}' | filecheck %s
// RUN: lamella-opt %s -p 'choose-schedule{split-attention=false split-sampling=false split-k=false}' | filecheck %s --check-prefix=WHOLE

// One program does what would be split; nothing else changes.
// WHOLE-NOT:  _partial
// WHOLE:      tile.fused schedule <attend, {{{.*}}splits = 1 : i64
// WHOLE-NOT:  _partial
// WHOLE:      tile.fused schedule <sample, {{{.*}}splits = 1 : i64
// WHOLE-NOT:  _partial

// One token: a program takes whole rows of the weights.
// CHECK-LABEL: func.func @gemv
// CHECK-NEXT:    %y = tile.fused schedule <gemv, {k = {{[0-9]+}} : i64{{.*}}, rows = {{[0-9]+}} : i64, warps = {{[48]}} : i64}>
// CHECK-SAME:      ledger [#tile.ledger<chosen, {kind = "schedule", reason = "the one skeleton that fits: gemv", schedule = "gemv"}>] attributes {loc = "layers.0.attn.q"} {
// CHECK:           tile.contract
func.func @gemv(%x: tensor<1x2048xbf16>, %w: tensor<2048x2048xbf16>) -> tensor<1x2048xf32> {
  %y = tile.fused ins(%x, %w : tensor<1x2048xbf16>, tensor<2048x2048xbf16>) attributes {loc = "layers.0.attn.q"} {
  ^bb0(%a: tensor<1x2048xbf16>, %b: tensor<2048x2048xbf16>):
    %c = tile.contract %a, %b : tensor<1x2048xbf16>, tensor<2048x2048xbf16> -> tensor<1x2048xf32>
    tile.yield %c : tensor<1x2048xf32>
  } -> tensor<1x2048xf32>
  func.return %y : tensor<1x2048xf32>
}

// A rotation needs both columns of a pair in one program: an even number of rows.
// CHECK-LABEL: func.func @paired
// CHECK-NEXT:    %y = tile.fused schedule <gemv, {k = 64 : i64{{.*}}, rows = {{(2|4|8|16)}} : i64, warps
func.func @paired(%x: tensor<1x64xf32>, %w: tensor<64x64xf32>, %angles: tensor<1x16xf32>) -> tensor<1x64xf32> {
  %y = tile.fused ins(%x, %w, %angles : tensor<1x64xf32>, tensor<64x64xf32>, tensor<1x16xf32>) {
  ^bb0(%a: tensor<1x64xf32>, %b: tensor<64x64xf32>, %r: tensor<1x16xf32>):
    %c = tile.contract %a, %b : tensor<1x64xf32>, tensor<64x64xf32> -> tensor<1x64xf32>
    %t = tile.rotate "paired" %c by %r heads 4 : i64 head_dim 16 : i64 rotary_dim 16 : i64 : tensor<1x64xf32>, tensor<1x16xf32> -> tensor<1x64xf32>
    tile.yield %t : tensor<1x64xf32>
  } -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}

// Several tokens: tensor-core tiles of m tokens by n rows of the weights.
// CHECK-LABEL: func.func @mma
// CHECK-NEXT:    %y = tile.fused schedule <mma, {k = {{[0-9]+}} : i64, m = {{[0-9]+}} : i64, n = {{[0-9]+}} : i64, splits = 1 : i64, stages = {{[0-9]}} : i64, swap = 0 : i64, warps = {{[48]}} : i64}>
func.func @mma(%x: tensor<70x2048xbf16>, %w: tensor<2048x2048xbf16>) -> tensor<70x2048xf32> {
  %y = tile.fused ins(%x, %w : tensor<70x2048xbf16>, tensor<2048x2048xbf16>) {
  ^bb0(%a: tensor<70x2048xbf16>, %b: tensor<2048x2048xbf16>):
    %c = tile.contract %a, %b : tensor<70x2048xbf16>, tensor<2048x2048xbf16> -> tensor<70x2048xf32>
    tile.yield %c : tensor<70x2048xf32>
  } -> tensor<70x2048xf32>
  func.return %y : tensor<70x2048xf32>
}

// Few tokens by few weight rows: those are the rows of the product, and programs share the columns of a tile; the last one adds up.
// CHECK-LABEL: func.func @few
// CHECK-NEXT:    %arrivals = tile.arrivals {{[0-9]+}} : i64
// CHECK-NEXT:    %sums, %y = tile.fused schedule <mma, {{{.*}}m = 8 : i64, {{.*}}splits = [[SPLITS:[0-9]+]] : i64, {{.*}}swap = 1 : i64{{.*}}}> ins(%x, %w, %arrivals :
// CHECK:           %sums_1 = tile.contract_partial %a, %b {loc = "layers.0.attn.o", splits = [[SPLITS]] : i64, chunk = {{[0-9]+}} : i64}
// CHECK-NEXT:      %[[SUM:.*]] = tile.contract_merge %sums_1 counted by %arrivals_1 {loc = "layers.0.attn.o"}
// CHECK-NEXT:      tile.yield %sums_1, %[[SUM]]
// CHECK:         func.return %y
func.func @few(%x: tensor<5x2048xbf16>, %w: tensor<2048x2048xbf16>) -> tensor<5x2048xf32> {
  %y = tile.fused ins(%x, %w : tensor<5x2048xbf16>, tensor<2048x2048xbf16>) {
  ^bb0(%a: tensor<5x2048xbf16>, %b: tensor<2048x2048xbf16>):
    %c = tile.contract %a, %b {loc = "layers.0.attn.o"} : tensor<5x2048xbf16>, tensor<2048x2048xbf16> -> tensor<5x2048xf32>
    tile.yield %c : tensor<5x2048xf32>
  } -> tensor<5x2048xf32>
  func.return %y : tensor<5x2048xf32>
}

// No anchor: a program a row, masked up to the next power of two. Vectors of one number a row are taken many at a time.
// CHECK-LABEL: func.func @row
// CHECK-NEXT:    %y = tile.fused schedule <row, {columns = 1024 : i64, rows = 1 : i64, warps = {{[48]}} : i64}>
// CHECK:         %q = tile.fused schedule <row, {columns = 1 : i64, rows = 128 : i64, warps = {{[48]}} : i64}>
func.func @row(%x: tensor<3x576xf32>, %p: tensor<300xi32>) -> (tensor<3x576xf32>, tensor<300xi32>) {
  %y = tile.fused ins(%x : tensor<3x576xf32>) {
  ^bb0(%a: tensor<3x576xf32>):
    %b = tile.map "silu"(%a) : tensor<3x576xf32> -> tensor<3x576xf32>
    tile.yield %b : tensor<3x576xf32>
  } -> tensor<3x576xf32>
  %q = tile.fused ins(%p : tensor<300xi32>) {
  ^bb0(%a: tensor<300xi32>):
    %b = tile.map "neg"(%a) : tensor<300xi32> -> tensor<300xi32>
    tile.yield %b : tensor<300xi32>
  } -> tensor<300xi32>
  func.return %y, %q : tensor<3x576xf32>, tensor<300xi32>
}

// The IR of the pass's docstring. One query over a long context is too few programs: each chunk of the context becomes a partial result,
// which the plan gives a buffer, and the last program of each key/value head merges them and runs what followed the attention.
// CHECK-LABEL: func.func @split
// CHECK-NEXT:    %arrivals = tile.arrivals {{528|432}} : i64
// CHECK-NEXT:    %acc, %max, %sum, %o = tile.fused schedule <attend, {{{.*}}splits = [[SPLITS:[0-9]+]] : i64{{.*}}}> ins(%q, %cache, %block_table, %query_start, %context_len, %r, %arrivals :
// CHECK-SAME:      reason = "too few programs to fill the device: the context is split [[SPLITS]] ways, the last program merges"
// CHECK-SAME:      attributes {loc = "layers.0.attn.attention"} {
// CHECK:           tile.attend_partial {{.*}} splits = [[SPLITS]] : i64
// CHECK-SAME:        -> tensor<1x4x[[SPLITS]]x8xf32>, tensor<1x4x[[SPLITS]]xf32>, tensor<1x4x[[SPLITS]]xf32>
// CHECK-NEXT:      %[[MERGED:.*]] = tile.attend_merge {{.*}} counted by %arrivals_1 {loc = "layers.0.attn.attention"}
// CHECK-NEXT:      %[[SUM:.*]] = tile.map "add"(%[[MERGED]], %f)
// CHECK-NEXT:      %[[LOW:.*]] = tile.cast %[[SUM]]
// CHECK-NEXT:      tile.yield %{{.*}}, %{{.*}}, %{{.*}}, %[[LOW]]
// CHECK-NEXT:    } -> tensor<1x4x[[SPLITS]]x8xf32>, tensor<1x4x[[SPLITS]]xf32>, tensor<1x4x[[SPLITS]]xf32>, tensor<1x32xbf16>
// CHECK-NEXT:    func.return %o
func.func @split(%q: tensor<1x32xbf16>, %cache: tensor<?x2x2x16x8xbf16>, %block_table: tensor<1x128xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>, %r: tensor<1x32xf32>) -> tensor<1x32xbf16> attributes {lamella.bucket = {tokens = 1 : i64, sequences = 1 : i64, longest_query = 1 : i64, logit_rows = 1 : i64, blocks = 128 : i64, advance = true}} {
  %o = tile.fused ins(%q, %cache, %block_table, %query_start, %context_len, %r : tensor<1x32xbf16>, tensor<?x2x2x16x8xbf16>, tensor<1x128xi32>, tensor<2xi32>, tensor<1xi32>, tensor<1x32xf32>) attributes {loc = "layers.0.attn.attention"} {
  ^bb0(%a: tensor<1x32xbf16>, %b: tensor<?x2x2x16x8xbf16>, %c: tensor<1x128xi32>, %d: tensor<2xi32>, %e: tensor<1xi32>, %f: tensor<1x32xf32>):
    %mixed = tile.attend %a, %b, %c, %d, %e {loc = "layers.0.attn.attention", heads = 4 : i64, kv_heads = 2 : i64, head_dim = 8 : i64, scale = 0.5 : f64} : tensor<1x32xbf16>, tensor<?x2x2x16x8xbf16>, tensor<1x128xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<1x32xf32>
    %sum = tile.map "add"(%mixed, %f) : tensor<1x32xf32>, tensor<1x32xf32> -> tensor<1x32xf32>
    %low = tile.cast %sum : tensor<1x32xf32> -> tensor<1x32xbf16>
    tile.yield %low : tensor<1x32xbf16>
  } -> tensor<1x32xbf16>
  func.return %o : tensor<1x32xbf16>
}

// Many sequences and heads fill the device as they are.
// CHECK-LABEL: func.func @whole
// CHECK-NEXT:    %o = tile.fused schedule <attend, {{{.*}}splits = 1 : i64{{.*}}}>
// CHECK:           tile.attend %a
// CHECK-NOT:     tile.attend_merge
func.func @whole(%q: tensor<4096x256xbf16>, %cache: tensor<?x2x8x16x8xbf16>, %block_table: tensor<64x16xi32>, %query_start: tensor<65xi32>, %context_len: tensor<64xi32>) -> tensor<4096x256xf32> attributes {lamella.bucket = {tokens = 4096 : i64, sequences = 64 : i64, longest_query = 64 : i64, logit_rows = 64 : i64, blocks = 16 : i64, advance = false}} {
  %o = tile.fused ins(%q, %cache, %block_table, %query_start, %context_len : tensor<4096x256xbf16>, tensor<?x2x8x16x8xbf16>, tensor<64x16xi32>, tensor<65xi32>, tensor<64xi32>) {
  ^bb0(%a: tensor<4096x256xbf16>, %b: tensor<?x2x8x16x8xbf16>, %c: tensor<64x16xi32>, %d: tensor<65xi32>, %e: tensor<64xi32>):
    %mixed = tile.attend %a, %b, %c, %d, %e {heads = 32 : i64, kv_heads = 8 : i64, head_dim = 8 : i64, scale = 0.5 : f64} : tensor<4096x256xbf16>, tensor<?x2x8x16x8xbf16>, tensor<64x16xi32>, tensor<65xi32>, tensor<64xi32> -> tensor<4096x256xf32>
    tile.yield %mixed : tensor<4096x256xf32>
  } -> tensor<4096x256xf32>
  func.return %o : tensor<4096x256xf32>
}

// CHECK-LABEL: func.func @sample
// CHECK-NEXT:    %best, %index = tile.fused schedule <sample, {columns = {{[0-9]+}} : i64, splits = [[CHUNKS:[0-9]+]] : i64, warps = {{[0-9]+}} : i64}>
// CHECK-SAME:      reason = "one program a row would be all latency: [[CHUNKS]] programs share the vocabulary"
// CHECK:           tile.top_partial %{{.*}} splits [[CHUNKS]] : i64
// CHECK:         %n = tile.fused schedule <sample,
// CHECK:           tile.sample_top %{{.*}} top %{{.*}}, %{{.*}} with
func.func @sample(%logits: tensor<2x32000xf32>, %f: tensor<2xf32>, %i: tensor<2xi32>) -> tensor<2xi32> {
  %n = tile.fused ins(%logits, %f, %i : tensor<2x32000xf32>, tensor<2xf32>, tensor<2xi32>) {
  ^bb0(%a: tensor<2x32000xf32>, %b: tensor<2xf32>, %c: tensor<2xi32>):
    %next = tile.sample %a, %b, %c, %b, %b, %c, %c : tensor<2x32000xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32> -> tensor<2xi32>
    tile.yield %next : tensor<2xi32>
  } -> tensor<2xi32>
  func.return %n : tensor<2xi32>
}
