// RUN: lamella-opt %s -p tile-to-kernel --split-input-file | filecheck %s

// The IR of the pass's docstring, twice: a program a row. Layers that compute the same share the kernel, and no layer is named in it.
// CHECK-LABEL: func.func @row
// CHECK-NEXT:    host.launch @row_0 grid [3, 1, 1] ins(%X : memref<3x8xf32>) outs(%Y : memref<3x8xf32>) {loc = "layers.0.act"}
// CHECK-NEXT:    host.launch @row_0 grid [3, 1, 1] ins(%Y : memref<3x8xf32>) outs(%X : memref<3x8xf32>) {loc = "layers.1.act"}
// CHECK-NEXT:    func.return
// CHECK:       kernel.func @row_0(%[[X:[a-z_]+]]: !kernel.ptr<f32>, %[[Y:[a-z_]+]]: !kernel.ptr<f32>) attributes {num_warps = 4 : i64, num_stages = 1 : i64
// CHECK:         = kernel.program_id 0
// CHECK:         %[[LOADED:.*]] = kernel.load %[[X]][%[[AT:.*]]] {source = "load"} : !kernel.ptr<f32>, tensor<8xi32> -> tensor<8xf32>
// CHECK-NEXT:    %[[SQUARE:.*]] = kernel.mul %[[LOADED]], %[[LOADED]] {source = "act: square"} : tensor<8xf32>, tensor<8xf32> -> tensor<8xf32>
// CHECK-NEXT:    kernel.store %[[Y]][%[[AT]]], %[[SQUARE]] {source = "store"}
// CHECK-NEXT:    kernel.return
// CHECK-NOT:   kernel.func
func.func @row(%X: memref<3x8xf32>, %Y: memref<3x8xf32>) {
  tile.fused schedule <row, {columns = 8 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%X : memref<3x8xf32>) outs(%Y : memref<3x8xf32>) attributes {kernel = "row_0", loc = "layers.0.act"} {
  ^bb0(%x: tensor<3x8xf32>):
    %y = tile.map "square"(%x) {loc = "layers.0.act"} : tensor<3x8xf32> -> tensor<3x8xf32>
    tile.yield %y : tensor<3x8xf32>
  }
  tile.fused schedule <row, {columns = 8 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%Y : memref<3x8xf32>) outs(%X : memref<3x8xf32>) attributes {kernel = "row_0", loc = "layers.1.act"} {
  ^bb0(%a: tensor<3x8xf32>):
    %b = tile.map "square"(%a) {loc = "layers.1.act"} : tensor<3x8xf32> -> tensor<3x8xf32>
    tile.yield %b : tensor<3x8xf32>
  }
  func.return
}

// -----

// Six columns are eight lanes. What the mask leaves out is neutral for the reduction, and is not stored.
// CHECK-LABEL: func.func @reduce
// CHECK:       kernel.func @row_0
// CHECK:         %[[MASK:.*]] = kernel.lt {{.*}} -> tensor<8xi1>
// CHECK:         %[[RAW:.*]] = kernel.load {{.*}} mask %[[MASK]]
// CHECK-NEXT:    %[[WIDE:.*]] = kernel.cast %[[RAW]] {source = "cast"} : tensor<8xbf16> -> tensor<8xf32>
// CHECK-NEXT:    %[[LEAST:.*]] = kernel.constant 0xff800000 : f32
// CHECK-NEXT:    %[[FILLED:.*]] = kernel.where %[[MASK]], %[[WIDE]], %[[LEAST]]
// CHECK-NEXT:    %[[TOP:.*]] = kernel.reduce "max" %[[FILLED]] {{.*}} -> f32
// CHECK-NEXT:    %[[Y:.*]] = kernel.sub %[[WIDE]], %[[TOP]]
// CHECK-NEXT:    kernel.store {{.*}}, %[[Y]] mask %[[MASK]]
func.func @reduce(%X: memref<3x6xbf16>, %Y: memref<3x6xf32>) {
  tile.fused schedule <row, {columns = 8 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%X : memref<3x6xbf16>) outs(%Y : memref<3x6xf32>) attributes {kernel = "row_0"} {
  ^bb0(%x: tensor<3x6xbf16>):
    %wide = tile.cast %x : tensor<3x6xbf16> -> tensor<3x6xf32>
    %top = tile.reduce "max" %wide : tensor<3x6xf32> -> tensor<3x1xf32>
    %y = tile.map "sub"(%wide, %top) : tensor<3x6xf32>, tensor<3x1xf32> -> tensor<3x6xf32>
    tile.yield %y : tensor<3x6xf32>
  }
  func.return
}

// -----

// A row longer than a program's columns: the reduction folds chunks first, then the chunks are read again.
// CHECK-LABEL: func.func @chunks
// CHECK:       kernel.func @row_0
// CHECK:         %[[PART:.*]] = kernel.for {{.*}} -> (tensor<16xf32>) {
// CHECK:           = kernel.load
// CHECK-NEXT:      %[[NEXT:.*]] = kernel.add {{.*}} {source = "sum"}
// CHECK-NEXT:      kernel.yield %[[NEXT]]
// CHECK-NEXT:    }
// CHECK-NEXT:    %[[SUM:.*]] = kernel.reduce "sum" %[[PART]]
// CHECK-NEXT:    kernel.for
// CHECK:           %[[AGAIN:.*]] = kernel.load
// CHECK-NEXT:      %[[Y:.*]] = kernel.div %[[AGAIN]], %[[SUM]]
// CHECK-NEXT:      kernel.store {{.*}}, %[[Y]]
// CHECK-NEXT:    }
// CHECK-NEXT:    kernel.return
func.func @chunks(%X: memref<3x48xf32>, %Y: memref<3x48xf32>) {
  tile.fused schedule <row, {columns = 16 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%X : memref<3x48xf32>) outs(%Y : memref<3x48xf32>) attributes {kernel = "row_0"} {
  ^bb0(%x: tensor<3x48xf32>):
    %s = tile.reduce "sum" %x : tensor<3x48xf32> -> tensor<3x1xf32>
    %y = tile.map "div"(%x, %s) : tensor<3x48xf32>, tensor<3x1xf32> -> tensor<3x48xf32>
    tile.yield %y : tensor<3x48xf32>
  }
  func.return
}

// -----

// Two contractions with epilogues of their own split the grid: 16 / 2 programs for q, 8 / 2 for k. What the epilogue reads is
// loaded before the products. A pair of columns is split, turned, joined, rounded and stored in the slot of its token.
// CHECK-LABEL: func.func @gemv
// CHECK-NEXT:    host.launch @gemv_0 grid [12, 1, 1] ins(%X, %WQ, %WK, %ANGLES, %CACHE, %SLOTS :
// CHECK-SAME:      outs(%Q, %CACHE : memref<1x16xbf16>, memref<?x2x1x16x8xbf16>) {loc = "layers.3.attn"}
// CHECK:       kernel.func @gemv_0(%{{[a-z_]+}}: !kernel.ptr<bf16>, %[[WQ:[a-z_]+]]: !kernel.ptr<bf16>, %[[WK:[a-z_]+]]: !kernel.ptr<bf16>, %[[ANGLES:[a-z_]+]]: !kernel.ptr<f32>, %{{[a-z_]+}}: !kernel.ptr<bf16>, %[[SLOTS:[a-z_]+]]: !kernel.ptr<i32>, %[[Q:[a-z_]+]]: !kernel.ptr<bf16>, %[[CACHE:[a-z_]+]]: !kernel.ptr<bf16>)
// CHECK:         kernel.if
// CHECK:           = kernel.load %[[WQ]]{{.*}} {source = "attn.q: contract", eviction = "first"} : !kernel.ptr<bf16>, tensor<2x32xi32> -> tensor<2x32xbf16>
// CHECK:           = kernel.reduce "sum" {{.*}} {source = "attn.q: contract", axis = 1 : i64} : tensor<2x32xf32> -> tensor<2xf32>
// CHECK:           kernel.store %[[Q]]
// CHECK-NEXT:    } else {
// CHECK:           = kernel.load %[[WK]]
// CHECK:           %cos = kernel.load %[[ANGLES]]
// CHECK:           %sin = kernel.load %[[ANGLES]]
// CHECK:           = kernel.load %[[SLOTS]]
// CHECK:           %[[SUM:.*]] = kernel.reduce "sum" {{.*}} {source = "attn.k: contract", axis = 1 : i64}
// CHECK:           %[[PAIRS:.*]] = kernel.reshape %[[SUM]] {source = "attn.rope_k: rotate"} : tensor<2xf32> -> tensor<1x2xf32>
// CHECK-NEXT:      %{{.*}}, %{{.*}} = kernel.split %[[PAIRS]]
// CHECK:           %[[JOINED:.*]] = kernel.join
// CHECK-NEXT:      %[[TURNED:.*]] = kernel.reshape %[[JOINED]]
// CHECK-NEXT:      %[[LOW:.*]] = kernel.cast %[[TURNED]]
// CHECK:           kernel.store %[[CACHE]]{{.*}}, %[[LOW]] {source = "attn.cache: scatter"} : !kernel.ptr<bf16>, tensor<2xi64>, tensor<2xbf16>
// CHECK-NEXT:    }
// CHECK-NEXT:    kernel.return
func.func @gemv(%X: memref<1x32xbf16>, %WQ: memref<16x32xbf16>, %WK: memref<8x32xbf16>, %ANGLES: memref<1x8xf32>, %CACHE: memref<?x2x1x16x8xbf16>, %SLOTS: memref<1xi32>, %Q: memref<1x16xbf16>) {
  tile.fused schedule <gemv, {k = 32 : i64, rows = 2 : i64, warps = 4 : i64}> ins(%X, %WQ, %WK, %ANGLES, %CACHE, %SLOTS : memref<1x32xbf16>, memref<16x32xbf16>, memref<8x32xbf16>, memref<1x8xf32>, memref<?x2x1x16x8xbf16>, memref<1xi32>) outs(%Q, %CACHE : memref<1x16xbf16>, memref<?x2x1x16x8xbf16>) attributes {kernel = "gemv_0", loc = "layers.3.attn"} {
  ^bb0(%x: tensor<1x32xbf16>, %wq: tensor<16x32xbf16>, %wk: tensor<8x32xbf16>, %angles: tensor<1x8xf32>, %cache: tensor<?x2x1x16x8xbf16>, %slots: tensor<1xi32>):
    %q = tile.contract %x, %wq {loc = "layers.3.attn.q"} : tensor<1x32xbf16>, tensor<16x32xbf16> -> tensor<1x16xf32>
    %k = tile.contract %x, %wk {loc = "layers.3.attn.k"} : tensor<1x32xbf16>, tensor<8x32xbf16> -> tensor<1x8xf32>
    %qr = tile.cast %q : tensor<1x16xf32> -> tensor<1x16xbf16>
    %k2 = tile.rotate "paired" %k by %angles heads 1 : i64 head_dim 8 : i64 rotary_dim 8 : i64 {loc = "layers.3.attn.rope_k"} : tensor<1x8xf32>, tensor<1x8xf32> -> tensor<1x8xf32>
    %kr = tile.cast %k2 : tensor<1x8xf32> -> tensor<1x8xbf16>
    %keyed = tile.scatter %kr into %cache[%slots] part 0 : i64 {loc = "layers.3.attn.cache"} : tensor<1x8xbf16>, tensor<?x2x1x16x8xbf16>, tensor<1xi32> -> tensor<?x2x1x16x8xbf16>
    tile.yield %qr, %keyed : tensor<1x16xbf16>, tensor<?x2x1x16x8xbf16>
  }
  func.return
}

// -----

// Gate and up meet in one epilogue: a program accumulates the same columns of both. 48 / 16 column tiles by 40 / 32 token tiles.
// CHECK-LABEL: func.func @mma
// CHECK-NEXT:    host.launch @mma_0 grid [2, 3, 1]
// CHECK:       kernel.func @mma_0({{.*}}) attributes {num_warps = 4 : i64, num_stages = 3 : i64
// CHECK:         = kernel.program_id 1
// CHECK:         %[[GATE:.*]], %[[UP:.*]] = kernel.for {{.*}} -> (tensor<32x16xf32>, tensor<32x16xf32>) attributes {num_stages = 3 : i64} {
// CHECK:           = kernel.dot {{.*}} {source = "ffn.gate: contract"} : tensor<32x32xbf16>, tensor<32x16xbf16>, tensor<32x16xf32> -> tensor<32x16xf32>
// CHECK:           = kernel.dot {{.*}} {source = "ffn.up: contract"}
// CHECK-NEXT:      kernel.yield
// CHECK-NEXT:    }
// CHECK:         %[[ACTIVE:.*]] = kernel.div %[[GATE]], {{.*}} {source = "ffn.activation: silu"}
// CHECK-NEXT:    %[[GATED:.*]] = kernel.mul %[[ACTIVE]], %[[UP]] {source = "ffn.gated: mul"}
// CHECK-NEXT:    %[[LOW:.*]] = kernel.cast %[[GATED]]
// CHECK:         kernel.store {{.*}}, %[[LOW]] mask
func.func @mma(%X: memref<40x64xbf16>, %WG: memref<48x64xbf16>, %WU: memref<48x64xbf16>, %H: memref<40x48xbf16>) {
  tile.fused schedule <mma, {k = 32 : i64, m = 32 : i64, n = 16 : i64, splits = 1 : i64, stages = 3 : i64, swap = 0 : i64, warps = 4 : i64}> ins(%X, %WG, %WU : memref<40x64xbf16>, memref<48x64xbf16>, memref<48x64xbf16>) outs(%H : memref<40x48xbf16>) attributes {kernel = "mma_0", loc = "layers.0.ffn"} {
  ^bb0(%x: tensor<40x64xbf16>, %wg: tensor<48x64xbf16>, %wu: tensor<48x64xbf16>):
    %g = tile.contract %x, %wg {loc = "layers.0.ffn.gate"} : tensor<40x64xbf16>, tensor<48x64xbf16> -> tensor<40x48xf32>
    %u = tile.contract %x, %wu {loc = "layers.0.ffn.up"} : tensor<40x64xbf16>, tensor<48x64xbf16> -> tensor<40x48xf32>
    %a = tile.map "silu"(%g) {loc = "layers.0.ffn.activation"} : tensor<40x48xf32> -> tensor<40x48xf32>
    %h = tile.map "mul"(%a, %u) {loc = "layers.0.ffn.gated"} : tensor<40x48xf32>, tensor<40x48xf32> -> tensor<40x48xf32>
    %r = tile.cast %h {loc = "layers.0.ffn.gated"} : tensor<40x48xf32> -> tensor<40x48xbf16>
    tile.yield %r : tensor<40x48xbf16>
  }
  func.return
}

// -----

// Few tokens: a weight tile times x transposed; two programs share the columns of a tile, and the second to end adds up the sums of both.
// CHECK-LABEL: func.func @few
// CHECK-NEXT:    host.launch @mma_1 grid [2, 2, 1]
// CHECK:       kernel.func @mma_1
// CHECK:         %[[PART:.*]] = kernel.program_id 1
// CHECK:         %acc_1 = kernel.for %{{.*}} = %first to
// CHECK:           %[[T:.*]] = kernel.trans {{.*}} : tensor<8x32xbf16> -> tensor<32x8xbf16>
// CHECK:           = kernel.dot %w, %[[T]], {{.*}} : tensor<16x32xbf16>, tensor<32x8xbf16>, tensor<16x8xf32> -> tensor<16x8xf32>
// CHECK:         kernel.store %sums_out_ptr
// CHECK-NEXT:    kernel.barrier
// CHECK:         %arrived = kernel.atomic_add %arrivals_ptr
// CHECK:         kernel.if
// CHECK-COUNT-2:   kernel.load %sums_out_ptr{{.*}}cache = "cg"
// CHECK:           kernel.store %y_out_ptr
// CHECK:           kernel.store %arrivals_ptr
func.func @few(%X: memref<5x128xbf16>, %W: memref<32x128xbf16>, %A: memref<8xi32>, %S: memref<2x5x32xf32>, %Y: memref<5x32xf32>) {
  tile.fused schedule <mma, {k = 32 : i64, m = 8 : i64, n = 16 : i64, splits = 2 : i64, stages = 3 : i64, swap = 1 : i64, warps = 1 : i64}> ins(%X, %W, %A : memref<5x128xbf16>, memref<32x128xbf16>, memref<8xi32>) outs(%S, %Y : memref<2x5x32xf32>, memref<5x32xf32>) attributes {kernel = "mma_1", loc = "layers.0.attn"} {
  ^bb0(%x: tensor<5x128xbf16>, %w: tensor<32x128xbf16>, %arrivals: tensor<8xi32>):
    %sums = tile.contract_partial %x, %w {splits = 2 : i64, chunk = 64 : i64} : tensor<5x128xbf16>, tensor<32x128xbf16> -> tensor<2x5x32xf32>
    %y = tile.contract_merge %sums counted by %arrivals : tensor<2x5x32xf32>, tensor<8xi32> -> tensor<5x32xf32>
    tile.yield %sums, %y : tensor<2x5x32xf32>, tensor<5x32xf32>
  }
  func.return
}

// -----

// Tiles of queries by key/value heads by sequences times chunks; the last program of its chunks merges them.
// CHECK-LABEL: func.func @attention
// CHECK-NEXT:    host.launch @attend_0 grid [2, 2, 4]
// CHECK-SAME:      outs(%ACC, %MAX, %SUM, %O :
// CHECK:       kernel.func @attend_0
// CHECK:         = kernel.for {{.*}} -> (tensor<16xf32>, tensor<16xf32>, tensor<16x16xf32>) attributes {num_stages = 2 : i64
// CHECK:           %[[SCORES:.*]] = kernel.dot {{.*}} : tensor<16x16xbf16>, tensor<16x32xbf16> -> tensor<16x32xf32>
// CHECK:           = kernel.reduce "max"
// CHECK:           %[[P:.*]] = kernel.exp2 {{.*}} -> tensor<16x32xf32>
// CHECK:           = kernel.dot {{.*}} : tensor<16x32xbf16>, tensor<32x16xbf16>, tensor<16x16xf32> -> tensor<16x16xf32>
// CHECK-NEXT:      kernel.yield
// CHECK:         kernel.store %{{acc|max|sum}}_out_ptr
// CHECK:         kernel.store %{{acc|max|sum}}_out_ptr
// CHECK:         kernel.store %{{acc|max|sum}}_out_ptr
// CHECK:         kernel.barrier
// CHECK-NEXT:    %arrived = kernel.atomic_add %arrivals_ptr
// CHECK:         %[[LAST:.*]] = kernel.eq %arrived,
// CHECK-NEXT:    kernel.if %[[LAST]]
// CHECK:           %parts = kernel.load %acc_out_ptr{{.*}}cache = "cg"
// CHECK:           = kernel.exp
// CHECK:           = kernel.div
// CHECK:           = kernel.cast {{.*}} : tensor<2x16xf32> -> tensor<2x16xbf16>
// CHECK:           kernel.store %o_out_ptr
// CHECK:           kernel.store %arrivals_ptr
// CHECK-NEXT:    }
// CHECK-NEXT:    kernel.return
func.func @attention(%Q: memref<5x32xbf16>, %CACHE: memref<?x2x2x16x16xbf16>, %TABLE: memref<2x4xi32>, %STARTS: memref<3xi32>, %CONTEXT: memref<2xi32>, %ACC: memref<5x2x2x16xf32>, %MAX: memref<5x2x2xf32>, %SUM: memref<5x2x2xf32>, %O: memref<5x32xbf16>, %ARRIVALS: memref<8xi32>) attributes {lamella.bucket = {tokens = 5 : i64, sequences = 2 : i64, longest_query = 4 : i64, logit_rows = 2 : i64, blocks = 4 : i64, advance = false}} {
  tile.fused schedule <attend, {queries = 2 : i64, rows = 16 : i64, splits = 2 : i64, stages = 2 : i64, tile = 32 : i64, warps = 4 : i64}> ins(%Q, %CACHE, %TABLE, %STARTS, %CONTEXT, %ARRIVALS : memref<5x32xbf16>, memref<?x2x2x16x16xbf16>, memref<2x4xi32>, memref<3xi32>, memref<2xi32>, memref<8xi32>) outs(%ACC, %MAX, %SUM, %O : memref<5x2x2x16xf32>, memref<5x2x2xf32>, memref<5x2x2xf32>, memref<5x32xbf16>) attributes {kernel = "attend_0"} {
  ^bb0(%q: tensor<5x32xbf16>, %cache: tensor<?x2x2x16x16xbf16>, %table: tensor<2x4xi32>, %starts: tensor<3xi32>, %context: tensor<2xi32>, %arrivals: tensor<8xi32>):
    %acc, %max, %sum = tile.attend_partial %q, %cache, %table, %starts, %context {heads = 2 : i64, kv_heads = 2 : i64, head_dim = 16 : i64, scale = 0.25 : f64, splits = 2 : i64, tile = 32 : i64} : tensor<5x32xbf16>, tensor<?x2x2x16x16xbf16>, tensor<2x4xi32>, tensor<3xi32>, tensor<2xi32> -> tensor<5x2x2x16xf32>, tensor<5x2x2xf32>, tensor<5x2x2xf32>
    %mixed = tile.attend_merge %acc, %max, %sum counted by %arrivals : tensor<5x2x2x16xf32>, tensor<5x2x2xf32>, tensor<5x2x2xf32>, tensor<8xi32> -> tensor<5x32xf32>
    %o = tile.cast %mixed : tensor<5x32xf32> -> tensor<5x32xbf16>
    tile.yield %acc, %max, %sum, %o : tensor<5x2x2x16xf32>, tensor<5x2x2xf32>, tensor<5x2x2xf32>, tensor<5x32xbf16>
  }
  func.return
}

// -----

// A program a row of logits: the greedy token, the bisections of top-k and top-p, the draw; a greedy row runs empty loops.
// CHECK-LABEL: func.func @sample
// CHECK-NEXT:    host.launch @sample_0 grid [2, 1, 1]
// CHECK:       kernel.func @sample_0
// CHECK:         = kernel.for
// CHECK:         %[[DRAWING:.*]] = kernel.gt {{.*}} -> i1
// CHECK:         = kernel.for
// CHECK:           = kernel.bitcast
// CHECK:         kernel.log
// CHECK:         %[[TOKEN:.*]] = kernel.where %[[DRAWING]], {{.*}} : i1, i32, i32 -> i32
// CHECK-NEXT:    kernel.store {{.*}}, %[[TOKEN]]
// CHECK-NEXT:    kernel.return
func.func @sample(%LOGITS: memref<2x48xf32>, %F: memref<2xf32>, %I: memref<2xi32>, %N: memref<2xi32>) {
  tile.fused schedule <sample, {columns = 32 : i64, warps = 4 : i64}> ins(%LOGITS, %F, %I : memref<2x48xf32>, memref<2xf32>, memref<2xi32>) outs(%N : memref<2xi32>) attributes {kernel = "sample_0"} {
  ^bb0(%logits: tensor<2x48xf32>, %f: tensor<2xf32>, %i: tensor<2xi32>):
    %next = tile.sample %logits, %f, %i, %f, %f, %i, %i {loc = "sample"} : tensor<2x48xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32> -> tensor<2xi32>
    tile.yield %next : tensor<2xi32>
  }
  func.return
}

// -----

// A region for the library has no kernel: it becomes a call, whose residual may lie where its result goes. Inputs come in any order.
// CHECK-LABEL: func.func @library
// CHECK-NEXT:    host.library_matmul "library_0" %X by %W plus %R into %R {loc = "layers.0.attn"} : memref<5x8xbf16>, memref<3x8xbf16> plus memref<5x3xbf16> into memref<5x3xbf16>
// CHECK-NEXT:    func.return
// CHECK-NOT:   kernel.func
func.func @library(%X: memref<5x8xbf16>, %W: memref<3x8xbf16>, %R: memref<5x3xbf16>) {
  tile.fused schedule <library, {}> ins(%R, %X, %W : memref<5x3xbf16>, memref<5x8xbf16>, memref<3x8xbf16>) outs(%R : memref<5x3xbf16>) attributes {kernel = "library_0", loc = "layers.0.attn"} {
  ^bb0(%r: tensor<5x3xbf16>, %x: tensor<5x8xbf16>, %w: tensor<3x8xbf16>):
    %rf = tile.cast %r : tensor<5x3xbf16> -> tensor<5x3xf32>
    %c = tile.contract %x, %w {implementation = "library"} : tensor<5x8xbf16>, tensor<3x8xbf16> -> tensor<5x3xf32>
    %s = tile.map "add"(%c, %rf) : tensor<5x3xf32>, tensor<5x3xf32> -> tensor<5x3xf32>
    %y = tile.cast %s : tensor<5x3xf32> -> tensor<5x3xbf16>
    tile.yield %y : tensor<5x3xbf16>
  }
  func.return
}

// -----

// Tiles through descriptors: x and the weight are parameters of that kind, the loop computes no addresses, and only stores are masked.
// CHECK-LABEL: kernel.func @described_0(%{{[a-z_]+}}: !kernel.descriptor<128x64xbf16>, %{{[a-z_]+}}: !kernel.descriptor<64x64xbf16>, %{{[a-z_]+}}: !kernel.ptr<bf16>)
// CHECK:         %[[FIRST:[a-z0-9_]+]] = kernel.mul %{{[a-z0-9_]+}}, %{{[a-z0-9_]+}} : i32, i32 -> i32
// CHECK:         %[[START:start[0-9_]*]] = kernel.mul
// CHECK:         kernel.for
// CHECK-NEXT:      %x = kernel.load_block %{{[a-z_]+}}[%[[FIRST]], %i]
// CHECK-NEXT:      %w = kernel.load_block %{{[a-z_]+}}[%[[START]], %i]
// CHECK-NEXT:      kernel.trans %w
// CHECK-NEXT:      kernel.dot %x,
// CHECK-NEXT:      kernel.yield
// CHECK:         kernel.store {{.*}} mask
func.func @described(%X: memref<200x136xbf16>, %W: memref<96x136xbf16>, %Y: memref<200x96xbf16>) {
  tile.fused schedule <mma, {descriptors = 1 : i64, k = 64 : i64, m = 128 : i64, n = 64 : i64, splits = 1 : i64, stages = 3 : i64, swap = 0 : i64, warps = 8 : i64}> ins(%X, %W : memref<200x136xbf16>, memref<96x136xbf16>) outs(%Y : memref<200x96xbf16>) attributes {kernel = "described_0", loc = "layers.0.attn"} {
  ^bb0(%x: tensor<200x136xbf16>, %w: tensor<96x136xbf16>):
    %c = tile.contract %x, %w {implementation = "descriptors"} : tensor<200x136xbf16>, tensor<96x136xbf16> -> tensor<200x96xf32>
    %y = tile.cast %c : tensor<200x96xf32> -> tensor<200x96xbf16>
    tile.yield %y : tensor<200x96xbf16>
  }
  func.return
}
