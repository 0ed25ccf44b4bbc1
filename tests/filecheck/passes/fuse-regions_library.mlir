// RUN: lamella-opt %s -p 'choose-implementation{library=on},commute-row-scale,fuse-regions,choose-schedule,in-place' --split-input-file | filecheck %s
// RUN: lamella-opt %s -p 'choose-implementation{library=on},fuse-regions{max-depth=0},choose-schedule' --split-input-file | filecheck %s --check-prefix=ALONE

// A feed-forward block: norm, two products of the library, the gate, a product that adds the residual where it lies. What is left of the norm
// does not move behind the products, and nothing joins them: neither each other, nor norm or gate.
// CHECK-LABEL: func.func @ffn
// CHECK-SAME:    reason = "a library computes a product of it, and scales no rows: the scaled value is stored and rounded", verdict = "refused"
// CHECK:         %x, %n = tile.fused schedule <row
// CHECK:         %g = tile.fused schedule <library, {}> ins(%n, %wg :
// CHECK-SAME:    kind = "library"
// CHECK-SAME:    reason = "library: it computes the product and what it adds, and no before"
// CHECK-NEXT:    ^bb0
// CHECK-NEXT:      tile.contract {{.*}} implementation = "library"
// CHECK-NEXT:      tile.cast
// CHECK-NEXT:      tile.yield
// CHECK:         %u = tile.fused schedule <library, {}> ins(%n, %wu :
// CHECK-NEXT:    ^bb0
// CHECK-NEXT:      tile.contract
// CHECK-NEXT:      tile.cast
// CHECK-NEXT:      tile.yield
// CHECK:         %hb = tile.fused schedule <row, {{.*}} ins(%g, %u :
// CHECK:         tile.fused schedule <library, {}> ins(%hb, %wd, %x :
// CHECK-SAME:    reason = "asked for: {{[0-9.]+}} us by the library and {{[0-9.]+}} us for a launch of its own, against {{[0-9.]+}} us of tiles"
// CHECK-SAME:    in_place = array<i64: 2>
// CHECK-NEXT:    ^bb0
// CHECK-NEXT:      tile.contract
// CHECK-NEXT:      tile.cast
// CHECK-NEXT:      tile.map "add"
// CHECK-NEXT:      tile.cast
// CHECK-NEXT:      tile.yield

// The oracle's reasons hold whatever else is off, and what belongs to a call is in its region even where every op is alone.
// ALONE-LABEL: func.func @ffn
// ALONE-COUNT-3: tile.fused schedule <library, {}>
// ALONE-NOT:     tile.fused schedule <library
func.func @ffn(%e: tensor<640x64xbf16>, %wg: tensor<128x64xbf16>, %wu: tensor<128x64xbf16>, %wd: tensor<64x128xbf16>) -> tensor<640x64xbf16> {
  %ef = tile.cast %e : tensor<640x64xbf16> -> tensor<640x64xf32>
  %ea = tile.map "silu"(%ef) {loc = "before"} : tensor<640x64xf32> -> tensor<640x64xf32>
  %x = tile.cast %ea : tensor<640x64xf32> -> tensor<640x64xbf16>
  %xf = tile.cast %x : tensor<640x64xbf16> -> tensor<640x64xf32>
  %q = tile.map "square"(%xf) {loc = "norm"} : tensor<640x64xf32> -> tensor<640x64xf32>
  %s = tile.reduce "sum" %q {loc = "norm"} : tensor<640x64xf32> -> tensor<640x1xf32>
  %i = tile.map "rsqrt"(%s) {loc = "norm"} : tensor<640x1xf32> -> tensor<640x1xf32>
  %m = tile.map "mul"(%xf, %i) {loc = "norm"} : tensor<640x64xf32>, tensor<640x1xf32> -> tensor<640x64xf32>
  %n = tile.cast %m {loc = "norm"} : tensor<640x64xf32> -> tensor<640x64xbf16>
  %gc = tile.contract %n, %wg {loc = "gate"} : tensor<640x64xbf16>, tensor<128x64xbf16> -> tensor<640x128xf32>
  %g = tile.cast %gc : tensor<640x128xf32> -> tensor<640x128xbf16>
  %uc = tile.contract %n, %wu {loc = "up"} : tensor<640x64xbf16>, tensor<128x64xbf16> -> tensor<640x128xf32>
  %u = tile.cast %uc : tensor<640x128xf32> -> tensor<640x128xbf16>
  %gf = tile.cast %g : tensor<640x128xbf16> -> tensor<640x128xf32>
  %ga = tile.map "silu"(%gf) {loc = "gated"} : tensor<640x128xf32> -> tensor<640x128xf32>
  %uf = tile.cast %u : tensor<640x128xbf16> -> tensor<640x128xf32>
  %h = tile.map "mul"(%ga, %uf) {loc = "gated"} : tensor<640x128xf32>, tensor<640x128xf32> -> tensor<640x128xf32>
  %hb = tile.cast %h {loc = "gated"} : tensor<640x128xf32> -> tensor<640x128xbf16>
  %dc = tile.contract %hb, %wd {loc = "down"} : tensor<640x128xbf16>, tensor<64x128xbf16> -> tensor<640x64xf32>
  %d = tile.cast %dc : tensor<640x64xf32> -> tensor<640x64xbf16>
  %df = tile.cast %d : tensor<640x64xbf16> -> tensor<640x64xf32>
  %r = tile.map "add"(%df, %xf) {loc = "residual"} : tensor<640x64xf32>, tensor<640x64xf32> -> tensor<640x64xf32>
  %y = tile.cast %r : tensor<640x64xf32> -> tensor<640x64xbf16>
  func.return %y : tensor<640x64xbf16>
}
