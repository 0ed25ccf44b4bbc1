// RUN: lamella-opt %s -p fuse-regions | filecheck %s

// The IR of the pass's docstring: what follows a contraction runs on the columns that a program has just summed.
// CHECK-LABEL: func.func @epilogue
// CHECK-NEXT:    %y = tile.fused ins(%x, %w, %r : tensor<1x8xf32>, tensor<4x8xf32>, tensor<1x4xf32>)
// CHECK-SAME:      ledger [#tile.ledger<joined, {benefit_us = {{[-+0-9.e]+}} : f64, bytes = 32 : i64, consumer = "tile.map", kind = "epilogue", launches = 1 : i64, producer = "tile.contract", reason = "computed where its operands already are", registers = {{[0-9]+}} : i64}>] {
// CHECK-NEXT:    ^bb0(%x_1: tensor<1x8xf32>, %w_1: tensor<4x8xf32>, %r_1: tensor<1x4xf32>):
// CHECK-NEXT:      %c = tile.contract %x_1, %w_1
// CHECK-NEXT:      %[[Y:.*]] = tile.map "add"(%c, %r_1)
// CHECK-NEXT:      tile.yield %[[Y]] : tensor<1x4xf32>
// CHECK-NEXT:    } -> tensor<1x4xf32>
// CHECK-NEXT:    func.return %y
func.func @epilogue(%x: tensor<1x8xf32>, %w: tensor<4x8xf32>, %r: tensor<1x4xf32>) -> tensor<1x4xf32> {
  %c = tile.contract %x, %w : tensor<1x8xf32>, tensor<4x8xf32> -> tensor<1x4xf32>
  %y = tile.map "add"(%c, %r) : tensor<1x4xf32>, tensor<1x4xf32> -> tensor<1x4xf32>
  func.return %y : tensor<1x4xf32>
}

// A chain of maps and reductions on the same rows, named by what its locations have in common.
// CHECK-LABEL: func.func @vertical
// CHECK-NEXT:    %y = tile.fused ins(%x : tensor<3x8xf32>)
// CHECK-SAME:      #tile.ledger<joined, {benefit_us = {{[-+0-9.e]+}} : f64, bytes = 120 : i64, consumer = "tile.map at layers.0.scale", kind = "vertical", launches = 1 : i64, producer = "tile.reduce at layers.0.norm", reason = "one consumer, same rows", registers = {{[0-9]+}} : i64}>
// CHECK-SAME:      attributes {loc = "layers.0"} {
// CHECK:           = tile.reduce "sum"
// CHECK-NEXT:      = tile.map "rsqrt"
// CHECK-NEXT:      = tile.map "mul"
// CHECK-NEXT:      tile.yield
// CHECK-NEXT:    } -> tensor<3x8xf32>
// CHECK-NEXT:    func.return %y
func.func @vertical(%x: tensor<3x8xf32>) -> tensor<3x8xf32> {
  %s = tile.reduce "sum" %x {loc = "layers.0.norm"} : tensor<3x8xf32> -> tensor<3x1xf32>
  %r = tile.map "rsqrt"(%s) {loc = "layers.0.norm"} : tensor<3x1xf32> -> tensor<3x1xf32>
  %y = tile.map "mul"(%x, %r) {loc = "layers.0.scale"} : tensor<3x8xf32>, tensor<3x1xf32> -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}

// Rows that another program computes end a chain: the gather starts the second region.
// CHECK-LABEL: func.func @rows
// CHECK-NEXT:    %a = tile.fused ins(%x : tensor<3x8xf32>)
// CHECK:         %s = tile.fused ins(%a, %rows : tensor<3x8xf32>, tensor<1xi32>)
// CHECK:           = tile.gather
// CHECK-NEXT:      = tile.reduce "sum"
// CHECK-NEXT:      tile.yield
func.func @rows(%x: tensor<3x8xf32>, %rows: tensor<1xi32>) -> tensor<1x1xf32> {
  %a = tile.map "silu"(%x) {loc = "act"} : tensor<3x8xf32> -> tensor<3x8xf32>
  %g = tile.gather %a[%rows] {loc = "logit_rows"} : tensor<3x8xf32>, tensor<1xi32> -> tensor<1x8xf32>
  %s = tile.reduce "sum" %g {loc = "sum"} : tensor<1x8xf32> -> tensor<1x1xf32>
  func.return %s : tensor<1x1xf32>
}

// q, k and v: three contractions on one x, two rotations and both writes to the cache in one launch. Weights stay outside.
// CHECK-LABEL: func.func @qkv
// CHECK-NEXT:    %wq = transformer.weight "q"
// CHECK-NEXT:    %wk = transformer.weight "k"
// CHECK-NEXT:    %wv = transformer.weight "v"
// CHECK-NEXT:    %q2, %both = tile.fused ins(%x, %wq, %wk, %wv, %angles, %cache, %slots :
// CHECK-SAME:      consumer = "tile.contract at attn.k", kind = "horizontal", launches = 1 : i64, producer = "tile.contract at attn.q", reason = "contractions on one x"
// CHECK-SAME:      consumer = "tile.contract at attn.v", kind = "horizontal"
// CHECK-SAME:      consumer = "tile.rotate at attn.rope_q", kind = "epilogue"
// CHECK-SAME:      consumer = "tile.scatter at attn.cache", kind = "epilogue"
// CHECK-SAME:      attributes {loc = "attn"} {
// CHECK:           = tile.contract
// CHECK-NEXT:      = tile.contract
// CHECK-NEXT:      = tile.contract
// CHECK-NEXT:      = tile.rotate
// CHECK-NEXT:      = tile.rotate
// CHECK-NEXT:      = tile.scatter
// CHECK-NEXT:      = tile.scatter
// CHECK-NEXT:      tile.yield
// CHECK-NEXT:    } -> tensor<3x8xf32>, tensor<?x2x1x16x4xf32>
// CHECK-NEXT:    func.return %q2, %both
func.func @qkv(%x: tensor<3x8xf32>, %angles: tensor<3x4xf32>, %slots: tensor<3xi32>, %cache: tensor<?x2x1x16x4xf32>) -> (tensor<3x8xf32>, tensor<?x2x1x16x4xf32>) attributes {lamella.tied = array<i64: -1, 3>} {
  %wq = transformer.weight "q" : tensor<8x8xf32>
  %q = tile.contract %x, %wq {loc = "attn.q"} : tensor<3x8xf32>, tensor<8x8xf32> -> tensor<3x8xf32>
  %wk = transformer.weight "k" : tensor<4x8xf32>
  %k = tile.contract %x, %wk {loc = "attn.k"} : tensor<3x8xf32>, tensor<4x8xf32> -> tensor<3x4xf32>
  %wv = transformer.weight "v" : tensor<4x8xf32>
  %v = tile.contract %x, %wv {loc = "attn.v"} : tensor<3x8xf32>, tensor<4x8xf32> -> tensor<3x4xf32>
  %q2 = tile.rotate "paired" %q by %angles heads 2 : i64 head_dim 4 : i64 rotary_dim 4 : i64 {loc = "attn.rope_q"} : tensor<3x8xf32>, tensor<3x4xf32> -> tensor<3x8xf32>
  %k2 = tile.rotate "paired" %k by %angles heads 1 : i64 head_dim 4 : i64 rotary_dim 4 : i64 {loc = "attn.rope_k"} : tensor<3x4xf32>, tensor<3x4xf32> -> tensor<3x4xf32>
  %keyed = tile.scatter %k2 into %cache[%slots] part 0 : i64 {loc = "attn.cache"} : tensor<3x4xf32>, tensor<?x2x1x16x4xf32>, tensor<3xi32> -> tensor<?x2x1x16x4xf32>
  %both = tile.scatter %v into %keyed[%slots] part 1 : i64 {loc = "attn.cache"} : tensor<3x4xf32>, tensor<?x2x1x16x4xf32>, tensor<3xi32> -> tensor<?x2x1x16x4xf32>
  func.return %q2, %both : tensor<3x8xf32>, tensor<?x2x1x16x4xf32>
}

// The partners of a half-split rotation lie in different programs.
// CHECK-LABEL: func.func @half
// CHECK-NEXT:    %q = tile.fused ins(%x, %wq : tensor<3x8xf32>, tensor<8x8xf32>) attributes {loc = "attn.q"}
// CHECK:         %q2 = tile.fused ins(%q, %angles : tensor<3x8xf32>, tensor<3x4xf32>)
// CHECK-SAME:      #tile.ledger<refused, {consumer = "tile.rotate at attn.rope_q", kind = "epilogue", producer = "tile.contract at attn.q", reason = "contract: a half-split rotation needs columns half a head apart; propagate-layout pairs them"}>
func.func @half(%x: tensor<3x8xf32>, %wq: tensor<8x8xf32>, %angles: tensor<3x4xf32>) -> tensor<3x8xf32> {
  %q = tile.contract %x, %wq {loc = "attn.q"} : tensor<3x8xf32>, tensor<8x8xf32> -> tensor<3x8xf32>
  %q2 = tile.rotate "half" %q by %angles heads 2 : i64 head_dim 4 : i64 rotary_dim 4 : i64 {loc = "attn.rope_q"} : tensor<3x8xf32>, tensor<3x4xf32> -> tensor<3x8xf32>
  func.return %q2 : tensor<3x8xf32>
}

// Gate and up with SwiGLU are one launch, down with its residual another: the whole feed-forward layer is none, and the ledger says why.
// CHECK-LABEL: func.func @ffn
// CHECK-NEXT:    %h = tile.fused ins(%x, %wg, %wu :
// CHECK-SAME:      producer = "tile.contract at ffn.gate", reason = "contractions on one x"
// CHECK-SAME:      consumer = "tile.map at ffn.gated", kind = "epilogue", launches = 1 : i64, producer = "tile.contract at ffn.up"
// CHECK:           = tile.contract
// CHECK-NEXT:      = tile.contract
// CHECK-NEXT:      = tile.map "silu"
// CHECK-NEXT:      = tile.map "mul"
// CHECK-NEXT:      tile.yield
// CHECK-NEXT:    } -> tensor<1x512xf32>
// CHECK-NEXT:    %y = tile.fused ins(%h, %wd, %r :
// CHECK-SAME:      consumer = "tile.map at ffn.residual", kind = "epilogue"
// CHECK-SAME:      #tile.ledger<refused, {consumer = "tile.map at ffn.residual", kind = "anchors", producer = "tile.map at ffn.gated", reason = "contract: ffn.down needs a whole row of x, 512 columns, and no program of ffn.gate holds more than a few of its 512: the one has to wait until all programs of the other have ended"}>
// CHECK:           = tile.contract
// CHECK-NEXT:      = tile.map "add"
// CHECK-NEXT:      tile.yield
func.func @ffn(%x: tensor<1x8xf32>, %wg: tensor<512x8xf32>, %wu: tensor<512x8xf32>, %wd: tensor<8x512xf32>, %r: tensor<1x8xf32>) -> tensor<1x8xf32> {
  %g = tile.contract %x, %wg {loc = "ffn.gate"} : tensor<1x8xf32>, tensor<512x8xf32> -> tensor<1x512xf32>
  %u = tile.contract %x, %wu {loc = "ffn.up"} : tensor<1x8xf32>, tensor<512x8xf32> -> tensor<1x512xf32>
  %a = tile.map "silu"(%g) {loc = "ffn.activation"} : tensor<1x512xf32> -> tensor<1x512xf32>
  %h = tile.map "mul"(%a, %u) {loc = "ffn.gated"} : tensor<1x512xf32>, tensor<1x512xf32> -> tensor<1x512xf32>
  %d = tile.contract %h, %wd {loc = "ffn.down"} : tensor<1x512xf32>, tensor<8x512xf32> -> tensor<1x8xf32>
  %y = tile.map "add"(%d, %r) {loc = "ffn.residual"} : tensor<1x8xf32>, tensor<1x8xf32> -> tensor<1x8xf32>
  func.return %y : tensor<1x8xf32>
}

// A value that its own region and others use is an extra result of the region: the residual stream.
// CHECK-LABEL: func.func @extra_result
// CHECK-NEXT:    %y, %s = tile.fused ins(%x, %w, %r :
// CHECK:           %[[Y:.*]] = tile.map "add"
// CHECK-NEXT:      %[[S:.*]] = tile.map "silu"(%[[Y]])
// CHECK-NEXT:      tile.yield %[[Y]], %[[S]]
// CHECK:         %d = tile.fused ins(%s, %v :
// CHECK:         func.return %y, %d
func.func @extra_result(%x: tensor<1x8xf32>, %w: tensor<512x8xf32>, %r: tensor<1x512xf32>, %v: tensor<4x512xf32>) -> (tensor<1x512xf32>, tensor<1x4xf32>) {
  %c = tile.contract %x, %w {loc = "down"} : tensor<1x8xf32>, tensor<512x8xf32> -> tensor<1x512xf32>
  %y = tile.map "add"(%c, %r) {loc = "residual"} : tensor<1x512xf32>, tensor<1x512xf32> -> tensor<1x512xf32>
  %s = tile.map "silu"(%y) {loc = "next"} : tensor<1x512xf32> -> tensor<1x512xf32>
  %d = tile.contract %s, %v {loc = "q"} : tensor<1x512xf32>, tensor<4x512xf32> -> tensor<1x4xf32>
  func.return %y, %d : tensor<1x512xf32>, tensor<1x4xf32>
}

// A program holds a row only where it is short, so a norm does not follow a wide contraction in one launch.
// CHECK-LABEL: func.func @wide_row
// CHECK:         tile.fused ins(%c : tensor<1x512xf32>)
// CHECK-SAME:      #tile.ledger<refused, {consumer = "tile.reduce at norm", kind = "epilogue", producer = "tile.contract at o", reason = "contract: a reduction needs the whole row of 512 columns in one program, at most 256"}>
func.func @wide_row(%x: tensor<1x8xf32>, %w: tensor<512x8xf32>) -> tensor<1x1xf32> {
  %c = tile.contract %x, %w {loc = "o"} : tensor<1x8xf32>, tensor<512x8xf32> -> tensor<1x512xf32>
  %s = tile.reduce "sum" %c {loc = "norm"} : tensor<1x512xf32> -> tensor<1x1xf32>
  func.return %s : tensor<1x1xf32>
}

// CHECK-LABEL: func.func @short_row
// CHECK-NEXT:    %s = tile.fused
// CHECK:           = tile.contract
// CHECK-NEXT:      = tile.reduce "sum"
// CHECK-NEXT:      tile.yield
func.func @short_row(%x: tensor<1x8xf32>, %w: tensor<200x8xf32>) -> tensor<1x1xf32> {
  %c = tile.contract %x, %w {loc = "o"} : tensor<1x8xf32>, tensor<200x8xf32> -> tensor<1x200xf32>
  %s = tile.reduce "sum" %c {loc = "norm"} : tensor<1x200xf32> -> tensor<1x1xf32>
  func.return %s : tensor<1x1xf32>
}

// At one token every program repeats the norm of the row while its weights are on the way: cheaper than a launch.
// CHECK-LABEL: func.func @prologue_of_one_token
// CHECK-NEXT:    %c = tile.fused ins(%x, %w :
// CHECK-SAME:      #tile.ledger<joined, {benefit_us = {{[-+0-9.e]+}} : f64, bytes = 4096 : i64, consumer = "tile.contract at q", kind = "prologue", launches = 1 : i64, producer = "tile.map at norm", reason = "saves {{[0-9.]+}} us, costs {{-?[0-9.]+}} us of recomputation", registers = {{[0-9]+}} : i64}>
// CHECK:           = tile.reduce "sum"
// CHECK:           = tile.contract
func.func @prologue_of_one_token(%x: tensor<1x1024xbf16>, %w: tensor<1024x1024xbf16>) -> tensor<1x1024xf32> {
  %xf = tile.cast %x {loc = "norm"} : tensor<1x1024xbf16> -> tensor<1x1024xf32>
  %s = tile.reduce "sum" %xf {loc = "norm"} : tensor<1x1024xf32> -> tensor<1x1xf32>
  %xm = tile.map "mul"(%xf, %s) {loc = "norm"} : tensor<1x1024xf32>, tensor<1x1xf32> -> tensor<1x1024xf32>
  %xb = tile.cast %xm {loc = "norm"} : tensor<1x1024xf32> -> tensor<1x1024xbf16>
  %c = tile.contract %xb, %w {loc = "q"} : tensor<1x1024xbf16>, tensor<1024x1024xbf16> -> tensor<1x1024xf32>
  func.return %c : tensor<1x1024xf32>
}

// At many tokens it is not.
// CHECK-LABEL: func.func @prologue_of_many_tokens
// CHECK-NEXT:    %xb = tile.fused ins(%x : tensor<2048x1024xbf16>)
// CHECK:           = tile.reduce "sum"
// CHECK:         %c = tile.fused ins(%xb, %w :
// CHECK-SAME:      #tile.ledger<refused, {consumer = "tile.contract at q", kind = "prologue", producer = "tile.map at norm", reason = "saves {{[0-9.]+}} us, costs {{[0-9.]+}} us: every program of the contraction would recompute it"}>
// CHECK-NOT:       = tile.reduce
func.func @prologue_of_many_tokens(%x: tensor<2048x1024xbf16>, %w: tensor<4096x1024xbf16>) -> tensor<2048x4096xf32> {
  %xf = tile.cast %x {loc = "norm"} : tensor<2048x1024xbf16> -> tensor<2048x1024xf32>
  %s = tile.reduce "sum" %xf {loc = "norm"} : tensor<2048x1024xf32> -> tensor<2048x1xf32>
  %xm = tile.map "mul"(%xf, %s) {loc = "norm"} : tensor<2048x1024xf32>, tensor<2048x1xf32> -> tensor<2048x1024xf32>
  %xb = tile.cast %xm {loc = "norm"} : tensor<2048x1024xf32> -> tensor<2048x1024xbf16>
  %c = tile.contract %xb, %w {loc = "q"} : tensor<2048x1024xbf16>, tensor<4096x1024xbf16> -> tensor<2048x4096xf32>
  func.return %c : tensor<2048x4096xf32>
}

// A widening cast is made again by each user: the narrow value is what both regions read.
// CHECK-LABEL: func.func @widening
// CHECK-NEXT:    %c = tile.fused ins(%x, %w : tensor<3x8xbf16>, tensor<4x8xf32>)
// CHECK:           = tile.cast {{.*}} : tensor<3x8xbf16> -> tensor<3x8xf32>
// CHECK-NEXT:      = tile.contract
// CHECK:         %y = tile.fused ins(%c, %v, %x : tensor<3x4xf32>, tensor<8x4xf32>, tensor<3x8xbf16>)
// CHECK:           = tile.contract
// CHECK-NEXT:      = tile.cast {{.*}} : tensor<3x8xbf16> -> tensor<3x8xf32>
// CHECK-NEXT:      = tile.map "add"
func.func @widening(%x: tensor<3x8xbf16>, %w: tensor<4x8xf32>, %v: tensor<8x4xf32>) -> (tensor<3x4xf32>, tensor<3x8xf32>) {
  %wide = tile.cast %x : tensor<3x8xbf16> -> tensor<3x8xf32>
  %c = tile.contract %wide, %w {loc = "down"} : tensor<3x8xf32>, tensor<4x8xf32> -> tensor<3x4xf32>
  %d = tile.contract %c, %v {loc = "up"} : tensor<3x4xf32>, tensor<8x4xf32> -> tensor<3x8xf32>
  %y = tile.map "add"(%d, %wide) {loc = "residual"} : tensor<3x8xf32>, tensor<3x8xf32> -> tensor<3x8xf32>
  func.return %c, %y : tensor<3x4xf32>, tensor<3x8xf32>
}

// What waits for nothing, on equal rows, is one launch; so is what nothing waits for.
// CHECK-LABEL: func.func @siblings
// CHECK-NEXT:    %rows, %next = tile.fused ins(%table, %positions, %context :
// CHECK-SAME:      #tile.ledger<joined, {benefit_us = {{[-+0-9.e]+}} : f64, bytes = 0 : i64, consumer = "tile.map at context", kind = "sibling", launches = 1 : i64, producer = "tile.gather at angles", reason = "no dependence: programs of one launch", registers = {{[0-9]+}} : i64}>
// CHECK:           = tile.gather
// CHECK:           = tile.map "add"
// CHECK-NEXT:      tile.yield
// CHECK-NEXT:    } -> tensor<3x4xf32>, tensor<3xi32>
// CHECK-NEXT:    func.return
func.func @siblings(%table: tensor<64x4xf32>, %positions: tensor<3xi32>, %context: tensor<3xi32>) -> (tensor<3x4xf32>, tensor<3xi32>) attributes {lamella.tied = array<i64: -1, 2>} {
  %rows = tile.gather %table[%positions] {loc = "angles"} : tensor<64x4xf32>, tensor<3xi32> -> tensor<3x4xf32>
  %one = tile.constant 1 : i32 : tensor<i32>
  %next = tile.map "add"(%context, %one) {loc = "context"} : tensor<3xi32>, tensor<i32> -> tensor<3xi32>
  func.return %rows, %next : tensor<3x4xf32>, tensor<3xi32>
}

// Heads that are normalized one by one have programs of their own, and so have others of another number: the chains behind one contraction's
// launch share one. The second scatter needs nothing of the first but the cache.
// CHECK-LABEL: func.func @heads
// CHECK:           = tile.contract
// CHECK:           = tile.contract
// CHECK:           = tile.contract
// CHECK:         tile.fused
// CHECK-SAME:      kind = "sibling"
// CHECK-SAME:      reason = "no dependence: programs of one launch"
// CHECK:           = tile.reshape %{{.*}} to [4, 8]
// CHECK:           = tile.reduce "sum"
// CHECK:           = tile.reshape %{{.*}} to [1, 32]
// CHECK:           = tile.reshape %{{.*}} to [2, 8]
// CHECK:           = tile.reduce "sum"
// CHECK:           = tile.scatter
// CHECK:           = tile.scatter
// CHECK-NEXT:      tile.yield
// CHECK:         func.return
func.func @heads(%x: tensor<1x64xf32>, %wq: tensor<32x64xf32>, %wk: tensor<16x64xf32>, %wv: tensor<16x64xf32>, %cache: tensor<?x2x2x4x8xf32>, %slots: tensor<1xi32>) -> (tensor<1x32xf32>, tensor<?x2x2x4x8xf32>) attributes {lamella.tied = array<i64: -1, 4>} {
  %q = tile.contract %x, %wq {loc = "q"} : tensor<1x64xf32>, tensor<32x64xf32> -> tensor<1x32xf32>
  %k = tile.contract %x, %wk {loc = "k"} : tensor<1x64xf32>, tensor<16x64xf32> -> tensor<1x16xf32>
  %v = tile.contract %x, %wv {loc = "v"} : tensor<1x64xf32>, tensor<16x64xf32> -> tensor<1x16xf32>
  %qh = tile.reshape %q to [4, 8] {loc = "q_norm"} : tensor<1x32xf32> -> tensor<4x8xf32>
  %qs = tile.reduce "sum" %qh {loc = "q_norm"} : tensor<4x8xf32> -> tensor<4x1xf32>
  %qn = tile.map "div"(%qh, %qs) {loc = "q_norm"} : tensor<4x8xf32>, tensor<4x1xf32> -> tensor<4x8xf32>
  %qr = tile.reshape %qn to [1, 32] {loc = "q_norm"} : tensor<4x8xf32> -> tensor<1x32xf32>
  %qa = tile.map "silu"(%qr) {loc = "q_norm"} : tensor<1x32xf32> -> tensor<1x32xf32>
  %kh = tile.reshape %k to [2, 8] {loc = "k_norm"} : tensor<1x16xf32> -> tensor<2x8xf32>
  %ks = tile.reduce "sum" %kh {loc = "k_norm"} : tensor<2x8xf32> -> tensor<2x1xf32>
  %kn = tile.map "div"(%kh, %ks) {loc = "k_norm"} : tensor<2x8xf32>, tensor<2x1xf32> -> tensor<2x8xf32>
  %kr = tile.reshape %kn to [1, 16] {loc = "k_norm"} : tensor<2x8xf32> -> tensor<1x16xf32>
  %c0 = tile.scatter %kr into %cache[%slots] part 0 {loc = "cache"} : tensor<1x16xf32>, tensor<?x2x2x4x8xf32>, tensor<1xi32> -> tensor<?x2x2x4x8xf32>
  %c1 = tile.scatter %v into %c0[%slots] part 1 {loc = "cache"} : tensor<1x16xf32>, tensor<?x2x2x4x8xf32>, tensor<1xi32> -> tensor<?x2x2x4x8xf32>
  func.return %qa, %c1 : tensor<1x32xf32>, tensor<?x2x2x4x8xf32>
}

// A result that takes over an argument (`lamella.tied`) comes after every read of the old value, wherever the text has it.
// CHECK-LABEL: func.func @overwrite
// CHECK-NEXT:    %rows = tile.fused ins(%table, %positions :
// CHECK:           = tile.gather
// CHECK-NEXT:      tile.yield
// CHECK:         %next = tile.fused ins(%positions :
// CHECK:           = tile.map "add"
// CHECK:         func.return %next, %rows
func.func @overwrite(%positions: tensor<3xi32>, %table: tensor<64x4xf32>) -> (tensor<3xi32>, tensor<3x4xf32>) attributes {lamella.tied = array<i64: 0, -1>} {
  %one = tile.constant 1 : i32 : tensor<i32>
  %next = tile.map "add"(%positions, %one) {loc = "positions"} : tensor<3xi32>, tensor<i32> -> tensor<3xi32>
  %rows = tile.gather %table[%positions] {loc = "angles"} : tensor<64x4xf32>, tensor<3xi32> -> tensor<3x4xf32>
  func.return %next, %rows : tensor<3xi32>, tensor<3x4xf32>
}

// Rounding follows attention in its launch; the projection after it has programs of its own.
// CHECK-LABEL: func.func @attention
// CHECK-NEXT:    %r = tile.fused ins(%q, %cache, %block_table, %query_start, %context_len :
// CHECK:           = tile.attend
// CHECK-NEXT:      = tile.cast
// CHECK-NEXT:      tile.yield
// CHECK:         %o = tile.fused ins(%r, %w :
// CHECK-SAME:      #tile.ledger<refused, {consumer = "tile.contract at attn.o", kind = "anchors", producer = "tile.attend at attn", reason = "tile.attend, tile.contract each decide which program computes what"}>
func.func @attention(%q: tensor<3x16xf32>, %cache: tensor<?x2x2x16x4xf32>, %block_table: tensor<1x4xi32>, %query_start: tensor<2xi32>, %context_len: tensor<1xi32>, %w: tensor<16x16xbf16>) -> tensor<3x16xf32> {
  %a = tile.attend %q, %cache, %block_table, %query_start, %context_len {loc = "attn", heads = 4 : i64, kv_heads = 2 : i64, head_dim = 4 : i64, scale = 0.5 : f64} : tensor<3x16xf32>, tensor<?x2x2x16x4xf32>, tensor<1x4xi32>, tensor<2xi32>, tensor<1xi32> -> tensor<3x16xf32>
  %r = tile.cast %a {loc = "attn"} : tensor<3x16xf32> -> tensor<3x16xbf16>
  %o = tile.contract %r, %w {loc = "attn.o"} : tensor<3x16xbf16>, tensor<16x16xbf16> -> tensor<3x16xf32>
  func.return %o : tensor<3x16xf32>
}
