// RUN: lamella-opt %s -p choose-implementation | filecheck %s --check-prefix=AUTO
// RUN: lamella-opt %s -p 'choose-implementation{library=off descriptors=on descriptor-tokens=32}' | filecheck %s --check-prefix=DESCRIBED
// RUN: lamella-opt %s -p 'choose-implementation{descriptors=off}' | filecheck %s
// RUN: lamella-opt %s -p 'choose-implementation{library=off descriptors=off}' | filecheck %s --check-prefix=OFF
// RUN: lamella-opt %s -p 'choose-implementation{library=on library-tokens=33 descriptors=off}' | filecheck %s --check-prefix=ON
// RUN: lamella-opt %s -p 'choose-implementation{arch=sm_80 descriptors=off}' | filecheck %s --check-prefix=UNMEASURED
// RUN: lamella-opt %s -p 'choose-implementation{arch=sm_80 library=off}' | filecheck %s --check-prefix=OLDER
// RUN: not lamella-opt %s -p 'choose-implementation{library=always}' 2>&1 | filecheck %s --check-prefix=MODE
// RUN: not lamella-opt %s -p 'choose-implementation{descriptors=maybe}' 2>&1 | filecheck %s --check-prefix=OTHER

// MODE: lamella-opt: error: library: unknown mode, expected auto, off, on, got always
// OTHER: lamella-opt: error: descriptors: unknown mode, expected auto, off, on, got maybe
// OFF-NOT: implementation =
// OFF-NOT: lamella.library

// The IR of the pass's docstring: the product of many tokens is marked, its residual added before the sums are rounded.
// By descriptors nothing else changes: tiles take up what follows the product.
// AUTO-LABEL: func.func @residual
// AUTO-NOT:     lamella.library
// AUTO:         %c = tile.contract %x, %w {loc = "layers.0.attn.o", implementation = "descriptors"}
// AUTO-NEXT:    %o = tile.cast %c
// DESCRIBED-LABEL: func.func @residual
// DESCRIBED:    implementation = "descriptors"
// OLDER-LABEL: func.func @residual
// OLDER-SAME:  lamella.idle = [{pass = "choose-implementation", reason = "nearest: tile.contract at layers.0.attn.o: nobody measured tiles of descriptors on sm_80"}]
// CHECK-LABEL: func.func @residual
// CHECK-SAME:    lamella.folds = [{kind = "residual", reason = "the library adds the residual to the sums; the rounding of the product is dropped", verdict = "folded", what = "layers.0.attn.o"}]
// CHECK-SAME:    lamella.library = {tokens = 512 : i64}
// CHECK-NEXT:    %c = tile.contract %x, %w {loc = "layers.0.attn.o", implementation = "library"}
// CHECK-NEXT:    %rf = tile.cast %r : tensor<2048x4096xbf16> -> tensor<2048x4096xf32>
// CHECK-NEXT:    %[[S:.*]] = tile.map "add"(%c, %rf) {loc = "layers.0.attn.residual"}
// CHECK-NEXT:    %y = tile.cast %[[S]] : tensor<2048x4096xf32> -> tensor<2048x4096xbf16>
// CHECK-NEXT:    func.return %y
// UNMEASURED-LABEL: func.func @residual
// UNMEASURED-SAME: lamella.idle = [{pass = "choose-implementation", reason = "nearest: tile.contract at layers.0.attn.o: nobody measured a library on sm_80"}]
func.func @residual(%x: tensor<2048x4096xbf16>, %w: tensor<4096x4096xbf16>, %r: tensor<2048x4096xbf16>) -> tensor<2048x4096xbf16> {
  %c = tile.contract %x, %w {loc = "layers.0.attn.o"} : tensor<2048x4096xbf16>, tensor<4096x4096xbf16> -> tensor<2048x4096xf32>
  %o = tile.cast %c : tensor<2048x4096xf32> -> tensor<2048x4096xbf16>
  %of = tile.cast %o : tensor<2048x4096xbf16> -> tensor<2048x4096xf32>
  %rf = tile.cast %r : tensor<2048x4096xbf16> -> tensor<2048x4096xf32>
  %s = tile.map "add"(%of, %rf) {loc = "layers.0.attn.residual"} : tensor<2048x4096xf32>, tensor<2048x4096xf32> -> tensor<2048x4096xf32>
  %y = tile.cast %s : tensor<2048x4096xf32> -> tensor<2048x4096xbf16>
  func.return %y : tensor<2048x4096xbf16>
}

// The residual as read by a norm too: the sum gets a widening of its own. A bias is added as it is.
// CHECK-LABEL: func.func @shared
// CHECK:         %rf = tile.cast %r
// CHECK:         tile.map "square"(%rf)
// CHECK:         tile.contract %x, %w {implementation = "library"}
// CHECK-NEXT:    %[[OWN:.*]] = tile.cast %r : tensor<2048x4096xbf16> -> tensor<2048x4096xf32>
// CHECK-NEXT:    tile.map "add"(%c, %[[OWN]])
// CHECK:         %[[D:.*]] = tile.contract %y, %w {implementation = "library"}
// CHECK-NEXT:    %bf = tile.cast %b : tensor<4096xbf16> -> tensor<4096xf32>
// CHECK-NEXT:    tile.map "add"(%[[D]], %bf)
func.func @shared(%x: tensor<2048x4096xbf16>, %w: tensor<4096x4096xbf16>, %r: tensor<2048x4096xbf16>, %b: tensor<4096xbf16>) -> (tensor<2048x4096xf32>, tensor<2048x4096xbf16>) {
  %rf = tile.cast %r : tensor<2048x4096xbf16> -> tensor<2048x4096xf32>
  %n = tile.map "square"(%rf) : tensor<2048x4096xf32> -> tensor<2048x4096xf32>
  %c = tile.contract %x, %w : tensor<2048x4096xbf16>, tensor<4096x4096xbf16> -> tensor<2048x4096xf32>
  %o = tile.cast %c : tensor<2048x4096xf32> -> tensor<2048x4096xbf16>
  %of = tile.cast %o : tensor<2048x4096xbf16> -> tensor<2048x4096xf32>
  %s = tile.map "add"(%rf, %of) : tensor<2048x4096xf32>, tensor<2048x4096xf32> -> tensor<2048x4096xf32>
  %y = tile.cast %s : tensor<2048x4096xf32> -> tensor<2048x4096xbf16>
  %d = tile.contract %y, %w : tensor<2048x4096xbf16>, tensor<4096x4096xbf16> -> tensor<2048x4096xf32>
  %bf = tile.cast %b : tensor<4096xbf16> -> tensor<4096xf32>
  %t = tile.map "add"(%d, %bf) : tensor<2048x4096xf32>, tensor<4096xf32> -> tensor<2048x4096xf32>
  %z = tile.cast %t : tensor<2048x4096xf32> -> tensor<2048x4096xbf16>
  func.return %n, %z : tensor<2048x4096xf32>, tensor<2048x4096xbf16>
}

// Few tokens never; nor a product that the cost model finds no faster: the function says what came nearest.
// AUTO-LABEL:  func.func @few
// AUTO-NOT:      implementation =
// DESCRIBED-LABEL: func.func @few
// DESCRIBED:     implementation = "descriptors"
// CHECK-LABEL: func.func @few
// CHECK-NOT:     implementation =
// ON-LABEL:    func.func @few
// ON-NOT:        implementation =
func.func @few(%x: tensor<32x4096xbf16>, %w: tensor<4096x4096xbf16>) -> tensor<32x4096xbf16> {
  %c = tile.contract %x, %w : tensor<32x4096xbf16>, tensor<4096x4096xbf16> -> tensor<32x4096xf32>
  %y = tile.cast %c : tensor<32x4096xf32> -> tensor<32x4096xbf16>
  func.return %y : tensor<32x4096xbf16>
}

// AUTO-LABEL:  func.func @slower
// AUTO:          implementation = "descriptors"
// CHECK-LABEL: func.func @slower
// CHECK-SAME:    lamella.idle = [{pass = "choose-implementation", reason = "nearest: tile.contract at k: slower: {{[0-9.]+}} us by the library and {{[0-9.]+}} us for a launch of its own, against {{[0-9.]+}} us of tiles"}]
// CHECK-NOT:     implementation =
// ON-LABEL:    func.func @slower
// ON-SAME:       lamella.library = {tokens = 33 : i64}
// ON:            tile.contract %x, %w {loc = "k", implementation = "library"}
func.func @slower(%x: tensor<512x512xbf16>, %w: tensor<256x512xbf16>) -> tensor<512x256xbf16> {
  %c = tile.contract %x, %w {loc = "k"} : tensor<512x512xbf16>, tensor<256x512xbf16> -> tensor<512x256xf32>
  %y = tile.cast %c : tensor<512x256xf32> -> tensor<512x256xbf16>
  func.return %y : tensor<512x256xbf16>
}

// A norm would be a launch of its own before tiles of descriptors: they are slower where there is little to multiply. Contractions of one x are weighed as one.
// AUTO-LABEL:  func.func @normed
// AUTO-SAME:     lamella.idle = [{pass = "choose-implementation", reason = "nearest: tile.contract at q: slower: {{[0-9.]+}} us of tiles through descriptors and {{[0-9.]+}} us for a norm of its own, against {{[0-9.]+}} us through pointers"}]
// AUTO-NOT:      implementation =
// DESCRIBED-LABEL: func.func @normed
// DESCRIBED-COUNT-2: implementation = "descriptors"
func.func @normed(%x: tensor<128x64xbf16>, %wq: tensor<64x64xbf16>, %wk: tensor<32x64xbf16>) -> (tensor<128x64xf32>, tensor<128x32xf32>) {
  %xf = tile.cast %x : tensor<128x64xbf16> -> tensor<128x64xf32>
  %s = tile.reduce "sum" %xf : tensor<128x64xf32> -> tensor<128x1xf32>
  %m = tile.map "mul"(%xf, %s) : tensor<128x64xf32>, tensor<128x1xf32> -> tensor<128x64xf32>
  %n = tile.cast %m : tensor<128x64xf32> -> tensor<128x64xbf16>
  %q = tile.contract %n, %wq {loc = "q"} : tensor<128x64xbf16>, tensor<64x64xbf16> -> tensor<128x64xf32>
  %k = tile.contract %n, %wk {loc = "k"} : tensor<128x64xbf16>, tensor<32x64xbf16> -> tensor<128x32xf32>
  func.return %q, %k : tensor<128x64xf32>, tensor<128x32xf32>
}

// Rows that begin anywhere have no descriptor; the library takes a product that is rounded only.
// AUTO-LABEL:  func.func @uneven
// AUTO-SAME:     lamella.idle
// DESCRIBED-LABEL: func.func @uneven
// DESCRIBED-SAME:  reason = "nearest: tile.contract: rows of 100 columns do not begin at multiples of 16 bytes"
// DESCRIBED-NOT:   implementation =
func.func @uneven(%x: tensor<512x100xbf16>, %w: tensor<64x100xbf16>) -> tensor<512x64xf32> {
  %y = tile.contract %x, %w : tensor<512x100xbf16>, tensor<64x100xbf16> -> tensor<512x64xf32>
  func.return %y : tensor<512x64xf32>
}

// Not float32, which the library would round or compute no faster; not packed weights; not a product that stays float32.
// DESCRIBED-LABEL: func.func @exact
// DESCRIBED-SAME:  reason = "nearest: tile.contract: x is f32 and the weight f32: tiles of descriptors are of bf16 or f16"
// DESCRIBED-NOT:   implementation =
// CHECK-LABEL: func.func @exact
// CHECK-SAME:    reason = "nearest: tile.contract: x is f32 and the weight f32: the library takes bf16 or f16 of both"
// CHECK-NOT:     implementation =
// ON-LABEL:    func.func @exact
// ON-NOT:        implementation =
func.func @exact(%x: tensor<2048x4096xf32>, %w: tensor<4096x4096xf32>) -> tensor<2048x4096xf32> {
  %y = tile.contract %x, %w : tensor<2048x4096xf32>, tensor<4096x4096xf32> -> tensor<2048x4096xf32>
  func.return %y : tensor<2048x4096xf32>
}

// DESCRIBED-LABEL: func.func @wide
// DESCRIBED:       implementation = "descriptors"
// CHECK-LABEL: func.func @wide
// CHECK-SAME:    reason = "nearest: tile.contract: what follows the product is neither a sum nor a rounding to the type of x"
// ON-LABEL:    func.func @wide
// ON-NOT:        implementation =
func.func @wide(%x: tensor<2048x4096xbf16>, %w: tensor<4096x4096xbf16>) -> tensor<2048x4096xf32> {
  %y = tile.contract %x, %w : tensor<2048x4096xbf16>, tensor<4096x4096xbf16> -> tensor<2048x4096xf32>
  func.return %y : tensor<2048x4096xf32>
}

// DESCRIBED-LABEL: func.func @packed
// DESCRIBED-NOT:   implementation =
// CHECK-LABEL: func.func @packed
// CHECK-SAME:    reason = "nearest: tile.contract: x is bf16 and the weight f32: the library takes bf16 or f16 of both"
// ON-LABEL:    func.func @packed
// ON-NOT:        implementation =
func.func @packed(%x: tensor<2048x64xbf16>, %words: tensor<128x16xi32>, %scales: tensor<128x1xf32>) -> tensor<2048x128xbf16> {
  %w = tile.dequantize %words, %scales as <int8, group = 64> : tensor<128x16xi32>, tensor<128x1xf32> -> tensor<128x64xf32>
  %c = tile.contract %x, %w : tensor<2048x64xbf16>, tensor<128x64xf32> -> tensor<2048x128xf32>
  %y = tile.cast %c : tensor<2048x128xf32> -> tensor<2048x128xbf16>
  func.return %y : tensor<2048x128xbf16>
}

// A decode step calls no library, however many sequences it has, and its tiles come with their prologue.
// AUTO-LABEL:  func.func @decode
// AUTO-NOT:      implementation =
// DESCRIBED-LABEL: func.func @decode
// DESCRIBED-NOT:   implementation =
// CHECK-LABEL: func.func @decode
// CHECK-NOT:     implementation =
// ON-LABEL:    func.func @decode
// ON-NOT:        implementation =
func.func @decode(%x: tensor<2048x4096xbf16>, %w: tensor<4096x4096xbf16>) -> tensor<2048x4096xbf16> attributes {lamella.bucket = {advance = true, tokens = 2048 : i64}} {
  %c = tile.contract %x, %w : tensor<2048x4096xbf16>, tensor<4096x4096xbf16> -> tensor<2048x4096xf32>
  %y = tile.cast %c : tensor<2048x4096xf32> -> tensor<2048x4096xbf16>
  func.return %y : tensor<2048x4096xbf16>
}
