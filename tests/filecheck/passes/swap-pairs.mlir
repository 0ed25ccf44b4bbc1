// RUN: lamella-opt %s -p swap-pairs | filecheck %s
// RUN: lamella-opt %s -p swap-pairs | lamella-opt | filecheck %s

// The IR of the pass's docstring: a row region makes x, a region whose schedule has runs multiplies it by packed bytes.
// CHECK-LABEL: func.func @row
// CHECK:         ledger [#tile.ledger<swapped, {out = 0 : i64, reason = "products of packed words take the first pair of two words, then the second: {{.*}}"}>]
// CHECK:         %[[N:.*]] = tile.cast %{{.*}} {loc = "norm"} : tensor<1x512xf32> -> tensor<1x512xbf16>
// CHECK-NEXT:    %[[S:.*]] = tile.swap_pairs %[[N]] {loc = "norm"} : tensor<1x512xbf16> -> tensor<1x512xbf16>
// CHECK-NEXT:    tile.yield %[[S]]
// CHECK:         %[[T:.*]] = tile.swap_pairs %{{.*}} {loc = "q"} : tensor<1x512xbf16> -> tensor<1x512xbf16>
// CHECK-NEXT:    %[[W:.*]] = tile.dequantize
// CHECK-NEXT:    tile.contract %[[T]], %[[W]]
func.func @row(%a: tensor<1x512xbf16>, %words: tensor<8x128xi32>, %scales: tensor<8x1xbf16>) -> tensor<1x8xf32> {
  %x = tile.fused schedule <row, {columns = 512 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%a : tensor<1x512xbf16>) {
  ^bb0(%0: tensor<1x512xbf16>):
    %f = tile.cast %0 : tensor<1x512xbf16> -> tensor<1x512xf32>
    %n = tile.cast %f {loc = "norm"} : tensor<1x512xf32> -> tensor<1x512xbf16>
    tile.yield %n : tensor<1x512xbf16>
  } -> tensor<1x512xbf16>
  %y = tile.fused schedule <gemv, {k = 512 : i64, rows = 2 : i64, runs = 8 : i64, warps = 1 : i64}> ins(%x, %words, %scales : tensor<1x512xbf16>, tensor<8x128xi32>, tensor<8x1xbf16>) {
  ^bb0(%0: tensor<1x512xbf16>, %1: tensor<8x128xi32>, %2: tensor<8x1xbf16>):
    %w = tile.dequantize %1, %2 as <int8, group = 512> : tensor<8x128xi32>, tensor<8x1xbf16> -> tensor<8x512xf32>
    %c = tile.contract %0, %w {loc = "q"} : tensor<1x512xbf16>, tensor<8x512xf32> -> tensor<1x8xf32>
    tile.yield %c : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  func.return %y : tensor<1x8xf32>
}

// The residual reads x as well: it stays in order, and nothing changes.
// CHECK-LABEL: func.func @read_elsewhere
// CHECK-NOT:     swap_pairs
// CHECK:         func.return
func.func @read_elsewhere(%a: tensor<1x512xbf16>, %words: tensor<512x128xi32>, %scales: tensor<512x1xbf16>) -> tensor<1x512xbf16> {
  %x = tile.fused schedule <row, {columns = 512 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%a : tensor<1x512xbf16>) {
  ^bb0(%0: tensor<1x512xbf16>):
    %f = tile.cast %0 : tensor<1x512xbf16> -> tensor<1x512xf32>
    %n = tile.cast %f : tensor<1x512xf32> -> tensor<1x512xbf16>
    tile.yield %n : tensor<1x512xbf16>
  } -> tensor<1x512xbf16>
  %y = tile.fused schedule <gemv, {k = 512 : i64, rows = 2 : i64, runs = 8 : i64, warps = 1 : i64}> ins(%x, %words, %scales : tensor<1x512xbf16>, tensor<512x128xi32>, tensor<512x1xbf16>) {
  ^bb0(%0: tensor<1x512xbf16>, %1: tensor<512x128xi32>, %2: tensor<512x1xbf16>):
    %w = tile.dequantize %1, %2 as <int8, group = 512> : tensor<512x128xi32>, tensor<512x1xbf16> -> tensor<512x512xf32>
    %c = tile.contract %0, %w : tensor<1x512xbf16>, tensor<512x512xf32> -> tensor<1x512xf32>
    %f = tile.cast %0 : tensor<1x512xbf16> -> tensor<1x512xf32>
    %r = tile.map "add"(%c, %f) : tensor<1x512xf32>, tensor<1x512xf32> -> tensor<1x512xf32>
    %s = tile.cast %r : tensor<1x512xf32> -> tensor<1x512xbf16>
    tile.yield %s : tensor<1x512xbf16>
  } -> tensor<1x512xbf16>
  func.return %y : tensor<1x512xbf16>
}

// Eight-bit floats are multiplied in pairs as they are loaded, tiles of digits out of shared memory, and what the caller hands over lies in order.
// CHECK-LABEL: func.func @others
// CHECK-NOT:     swap_pairs
// CHECK:         func.return
func.func @others(%a: tensor<1x512xbf16>, %floats: tensor<8x512xf8E4M3FN>, %words: tensor<8x128xi32>, %scales: tensor<8x1xbf16>) -> (tensor<1x8xf32>, tensor<1x8xf32>, tensor<1x8xf32>) {
  %x:2 = tile.fused schedule <row, {columns = 512 : i64, rows = 1 : i64, warps = 4 : i64}> ins(%a : tensor<1x512xbf16>) {
  ^bb0(%0: tensor<1x512xbf16>):
    %f = tile.cast %0 : tensor<1x512xbf16> -> tensor<1x512xf32>
    %n = tile.cast %f : tensor<1x512xf32> -> tensor<1x512xbf16>
    %g = tile.map "neg"(%f) : tensor<1x512xf32> -> tensor<1x512xf32>
    %m = tile.cast %g : tensor<1x512xf32> -> tensor<1x512xbf16>
    tile.yield %n, %m : tensor<1x512xbf16>, tensor<1x512xbf16>
  } -> tensor<1x512xbf16>, tensor<1x512xbf16>
  %y = tile.fused schedule <gemv, {k = 512 : i64, rows = 2 : i64, runs = 8 : i64, warps = 1 : i64}> ins(%x#0, %floats, %scales : tensor<1x512xbf16>, tensor<8x512xf8E4M3FN>, tensor<8x1xbf16>) {
  ^bb0(%0: tensor<1x512xbf16>, %1: tensor<8x512xf8E4M3FN>, %2: tensor<8x1xbf16>):
    %w = tile.dequantize %1, %2 as <fp8, group = 512> : tensor<8x512xf8E4M3FN>, tensor<8x1xbf16> -> tensor<8x512xf32>
    %c = tile.contract %0, %w : tensor<1x512xbf16>, tensor<8x512xf32> -> tensor<1x8xf32>
    tile.yield %c : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  %z = tile.fused schedule <mma, {digits = 3 : i64, k = 256 : i64, m = 1 : i64, n = 16 : i64, splits = 1 : i64, stages = 3 : i64, swap = 1 : i64, warps = 1 : i64}> ins(%x#1, %words, %scales : tensor<1x512xbf16>, tensor<8x128xi32>, tensor<8x1xbf16>) {
  ^bb0(%0: tensor<1x512xbf16>, %1: tensor<8x128xi32>, %2: tensor<8x1xbf16>):
    %w = tile.dequantize %1, %2 as <int8, group = 512> : tensor<8x128xi32>, tensor<8x1xbf16> -> tensor<8x512xf32>
    %c = tile.contract %0, %w : tensor<1x512xbf16>, tensor<8x512xf32> -> tensor<1x8xf32>
    tile.yield %c : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  %u = tile.fused schedule <gemv, {k = 512 : i64, rows = 2 : i64, runs = 8 : i64, warps = 1 : i64}> ins(%a, %words, %scales : tensor<1x512xbf16>, tensor<8x128xi32>, tensor<8x1xbf16>) {
  ^bb0(%0: tensor<1x512xbf16>, %1: tensor<8x128xi32>, %2: tensor<8x1xbf16>):
    %w = tile.dequantize %1, %2 as <int8, group = 512> : tensor<8x128xi32>, tensor<8x1xbf16> -> tensor<8x512xf32>
    %c = tile.contract %0, %w : tensor<1x512xbf16>, tensor<8x512xf32> -> tensor<1x8xf32>
    tile.yield %c : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  func.return %y, %z, %u : tensor<1x8xf32>, tensor<1x8xf32>, tensor<1x8xf32>
}
