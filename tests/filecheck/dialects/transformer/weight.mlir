// RUN: lamella-opt %s | lamella-opt | filecheck %s

func.func @weights() -> (tensor<8x6xbf16>, tensor<8xf16>, tensor<4x4xf32>) {
  // CHECK: %table = transformer.weight "embed" : tensor<8x6xbf16>
  %table = transformer.weight "embed" : tensor<8x6xbf16>
  // CHECK-NEXT: %bias = transformer.weight "layers.0.attn.q_proj.bias" : tensor<8xf16>
  %bias = transformer.weight "layers.0.attn.q_proj.bias" : tensor<8xf16>
  // CHECK-NEXT: %other = transformer.weight "other" {note = 1 : i64} : tensor<4x4xf32>
  %other = transformer.weight "other" {note = 1 : i64} : tensor<4x4xf32>
  func.return %table, %bias, %other : tensor<8x6xbf16>, tensor<8xf16>, tensor<4x4xf32>
}

// CHECK-LABEL: func.func @transforms
func.func @transforms(%w: tensor<8x6xbf16>, %bias: tensor<8xbf16>, %gamma: tensor<6xbf16>, %beta: tensor<6xbf16>) {
  // CHECK: %paired = transformer.pair_rows %w {head_dim = 4 : i64, rotary_dim = 2 : i64} : (tensor<8x6xbf16>) -> tensor<8x6xbf16, #transformer.layout<head = 4, paired = 2>>
  %paired = transformer.pair_rows %w {head_dim = 4 : i64, rotary_dim = 2 : i64} : (tensor<8x6xbf16>) -> tensor<8x6xbf16, #transformer.layout<head = 4, paired = 2>>
  // CHECK-NEXT: %bias_1 = transformer.pair_rows %bias {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<8xbf16>) -> tensor<8xbf16, #transformer.layout<head = 8, paired = 8>>
  %bias_1 = transformer.pair_rows %bias {head_dim = 8 : i64, rotary_dim = 8 : i64} : (tensor<8xbf16>) -> tensor<8xbf16, #transformer.layout<head = 8, paired = 8>>
  // CHECK-NEXT: %scaled = transformer.scale_columns %w, %gamma : (tensor<8x6xbf16>, tensor<6xbf16>) -> tensor<8x6xbf16>
  %scaled = transformer.scale_columns %w, %gamma : (tensor<8x6xbf16>, tensor<6xbf16>) -> tensor<8x6xbf16>
  // CHECK-NEXT: %gemma = transformer.scale_columns %w, %gamma {offset = 1.000000e+00 : f64} : (tensor<8x6xbf16>, tensor<6xbf16>) -> tensor<8x6xbf16>
  %gemma = transformer.scale_columns %w, %gamma {offset = 1.0 : f64} : (tensor<8x6xbf16>, tensor<6xbf16>) -> tensor<8x6xbf16>
  // CHECK-NEXT: %shifted = transformer.shift_bias %bias, %w, %beta : (tensor<8xbf16>, tensor<8x6xbf16>, tensor<6xbf16>) -> tensor<8xbf16>
  %shifted = transformer.shift_bias %bias, %w, %beta : (tensor<8xbf16>, tensor<8x6xbf16>, tensor<6xbf16>) -> tensor<8xbf16>
  // CHECK-NEXT: %joined = transformer.concat_rows %w, %scaled, %w : (tensor<8x6xbf16>, tensor<8x6xbf16>, tensor<8x6xbf16>) -> tensor<24x6xbf16>
  %joined = transformer.concat_rows %w, %scaled, %w : (tensor<8x6xbf16>, tensor<8x6xbf16>, tensor<8x6xbf16>) -> tensor<24x6xbf16>
  // CHECK-NEXT: %turned = transformer.transpose %joined {loc = "lm_head"} : (tensor<24x6xbf16>) -> tensor<6x24xbf16>
  %turned = transformer.transpose %joined {loc = "lm_head"} : (tensor<24x6xbf16>) -> tensor<6x24xbf16>
  func.return
}

// CHECK-LABEL: func.func @slices
func.func @slices(%w: tensor<8x6xbf16>, %bias: tensor<8xbf16>) {
  // CHECK: %k = transformer.slice_rows %w {start = 4 : i64, size = 2 : i64} : (tensor<8x6xbf16>) -> tensor<2x6xbf16>
  %k = transformer.slice_rows %w {start = 4 : i64, size = 2 : i64} : (tensor<8x6xbf16>) -> tensor<2x6xbf16>
  // CHECK-NEXT: %all = transformer.slice_rows %bias {start = 0 : i64, size = 8 : i64} : (tensor<8xbf16>) -> tensor<8xbf16>
  %all = transformer.slice_rows %bias {start = 0 : i64, size = 8 : i64} : (tensor<8xbf16>) -> tensor<8xbf16>
  func.return
}

// CHECK-LABEL: func.func @heads
func.func @heads(%qkv: tensor<24x8xf32>, %norms: tensor<3x4xf32>) {
  // CHECK-NEXT: %{{.*}} = transformer.slice_rows %qkv {groups = 2 : i64, size = 4 : i64, start = 8 : i64} : (tensor<24x8xf32>) -> tensor<8x8xf32>
  %v = transformer.slice_rows %qkv {groups = 2 : i64, size = 4 : i64, start = 8 : i64} : (tensor<24x8xf32>) -> tensor<8x8xf32>
  // CHECK-NEXT: %{{.*}} = transformer.flatten %norms : (tensor<3x4xf32>) -> tensor<12xf32>
  %all = transformer.flatten %norms : (tensor<3x4xf32>) -> tensor<12xf32>
  func.return
}
