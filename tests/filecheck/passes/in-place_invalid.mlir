// RUN: lamella-opt %s -p in-place --split-input-file --verify-diagnostics | filecheck %s

// CHECK: tile.fused at layers.0.act: it says already what is in place
func.func @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = tile.fused ins(%x : tensor<4xf32>) attributes {in_place = array<i64: -1>, loc = "layers.0.act"} {
  ^bb0(%a: tensor<4xf32>):
    %r = tile.map "silu"(%a) : tensor<4xf32> -> tensor<4xf32>
    tile.yield %r : tensor<4xf32>
  } -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
