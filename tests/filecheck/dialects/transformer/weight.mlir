// RUN: lamella-opt %s | lamella-opt | filecheck %s

func.func @weights() -> (tensor<8x6xbf16>, tensor<8xf16>, tensor<4x4xf32>) {
  // CHECK: %table = transformer.weight "embed" : tensor<8x6xbf16>
  %table = transformer.weight "embed" : tensor<8x6xbf16>
  // CHECK-NEXT: %bias = transformer.weight "layers.0.attn.q_proj.bias" layout {{\[\[}}"pair_rows", {head_dim = 4 : i64, rotary_dim = 2 : i64}]] : tensor<8xf16>
  %bias = transformer.weight "layers.0.attn.q_proj.bias" layout [["pair_rows", {head_dim = 4 : i64, rotary_dim = 2 : i64}]] : tensor<8xf16>
  // CHECK-NEXT: %other = transformer.weight "other" {note = 1 : i64} : tensor<4x4xf32>
  %other = transformer.weight "other" {note = 1 : i64} : tensor<4x4xf32>
  func.return %table, %bias, %other : tensor<8x6xbf16>, tensor<8xf16>, tensor<4x4xf32>
}
