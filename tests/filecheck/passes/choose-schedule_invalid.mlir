// RUN: lamella-opt %s -p choose-schedule --split-input-file --verify-diagnostics | filecheck %s
// RUN: not lamella-opt %s -p 'choose-schedule{arch=volta}' --split-input-file 2>&1 | filecheck %s --check-prefix=ARCH

// ARCH: lamella-opt: error: target: unknown architecture, got volta (known: sm_80, sm_90)

// A region that fuse-regions does not make: the second contraction would wait for the first.
// CHECK: tile.fused at layers.0.ffn: no schedule fits this region: contract: tile.contract needs a whole row of x, 8 columns, and no program of tile.contract holds more than a few of its 8: the one has to wait until all programs of the other have ended
func.func @chain(%x: tensor<1x8xf32>, %w: tensor<8x8xf32>) -> tensor<1x8xf32> {
  %y = tile.fused ins(%x, %w : tensor<1x8xf32>, tensor<8x8xf32>) attributes {loc = "layers.0.ffn"} {
  ^bb0(%a: tensor<1x8xf32>, %b: tensor<8x8xf32>):
    %c = tile.contract %a, %b : tensor<1x8xf32>, tensor<8x8xf32> -> tensor<1x8xf32>
    %d = tile.contract %c, %b : tensor<1x8xf32>, tensor<8x8xf32> -> tensor<1x8xf32>
    tile.yield %d : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  func.return %y : tensor<1x8xf32>
}

// -----

// CHECK: tile.fused: no schedule fits this region: row: a gather reads rows that other programs compute
func.func @rows(%x: tensor<3x8xf32>, %rows: tensor<1xi32>) -> tensor<1x8xf32> {
  %y = tile.fused ins(%x, %rows : tensor<3x8xf32>, tensor<1xi32>) {
  ^bb0(%a: tensor<3x8xf32>, %b: tensor<1xi32>):
    %c = tile.map "silu"(%a) : tensor<3x8xf32> -> tensor<3x8xf32>
    %d = tile.gather %c[%b] : tensor<3x8xf32>, tensor<1xi32> -> tensor<1x8xf32>
    tile.yield %d : tensor<1x8xf32>
  } -> tensor<1x8xf32>
  func.return %y : tensor<1x8xf32>
}

// -----

// CHECK: tile.fused: no schedule fits this region: contract: contractions that meet in one epilogue have different widths
func.func @widths(%x: tensor<1x8xf32>, %w: tensor<4x8xf32>, %v: tensor<1x8xf32>) -> tensor<1x4xf32> {
  %y = tile.fused ins(%x, %w, %v : tensor<1x8xf32>, tensor<4x8xf32>, tensor<1x8xf32>) {
  ^bb0(%a: tensor<1x8xf32>, %b: tensor<4x8xf32>, %c: tensor<1x8xf32>):
    %d = tile.contract %a, %b : tensor<1x8xf32>, tensor<4x8xf32> -> tensor<1x4xf32>
    %e = tile.contract %a, %c : tensor<1x8xf32>, tensor<1x8xf32> -> tensor<1x1xf32>
    %f = tile.map "mul"(%d, %e) : tensor<1x4xf32>, tensor<1x1xf32> -> tensor<1x4xf32>
    tile.yield %f : tensor<1x4xf32>
  } -> tensor<1x4xf32>
  func.return %y : tensor<1x4xf32>
}

// -----

// CHECK: tile.fused: no schedule fits this region: sample: tile.map comes before the tile.sample, whose programs read other rows
func.func @before(%logits: tensor<2x32xf32>, %f: tensor<2xf32>, %i: tensor<2xi32>) -> tensor<2xi32> {
  %n = tile.fused ins(%logits, %f, %i : tensor<2x32xf32>, tensor<2xf32>, tensor<2xi32>) {
  ^bb0(%a: tensor<2x32xf32>, %b: tensor<2xf32>, %c: tensor<2xi32>):
    %d = tile.map "neg"(%a) : tensor<2x32xf32> -> tensor<2x32xf32>
    %next = tile.sample %d, %b, %c, %b, %b, %c, %c : tensor<2x32xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32> -> tensor<2xi32>
    tile.yield %next : tensor<2xi32>
  } -> tensor<2xi32>
  func.return %n : tensor<2xi32>
}
