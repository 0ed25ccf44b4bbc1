// RUN: lamella-opt %s -p split-linears --split-input-file | filecheck %s

// Columns of a product are rows of the weight: each slice becomes a linear, and its rows are taken once, when the model is loaded.
// CHECK-LABEL: func.func @qkv
// CHECK:         %[[Q:.*]] = transformer.weight "qkv_proj.part" : tensor<8x8xf32>
// CHECK:         %[[QB:.*]] = transformer.weight "qkv_proj.bias.part" : tensor<8xf32>
// CHECK:         %q = transformer.linear %x, %[[Q]], %[[QB]] {loc = "attn.q"}
// CHECK:         %k = transformer.linear %x, %{{.*}}, %{{.*}} {loc = "attn.k"}
// CHECK-NOT:     slice_columns
// CHECK:         func.return %q, %k
// CHECK:       func.func @transform_weights() -> (tensor<8x8xf32>, tensor<8xf32>, tensor<4x8xf32>, tensor<4xf32>)
// CHECK-SAME:    lamella.outputs = ["qkv_proj.part", "qkv_proj.bias.part", "qkv_proj.part_1", "qkv_proj.bias.part_1"]
// CHECK:         transformer.slice_rows %{{.*}} {start = 0 : i64, size = 8 : i64}
// CHECK:         transformer.slice_rows %{{.*}} {start = 8 : i64, size = 4 : i64}
func.func @qkv(%x: tensor<3x8xf32>) -> (tensor<3x8xf32>, tensor<3x4xf32>) {
  %w = transformer.weight "qkv_proj" : tensor<12x8xf32>
  %b = transformer.weight "qkv_proj.bias" : tensor<12xf32>
  %qk = transformer.linear %x, %w, %b {loc = "attn.qkv"} : (tensor<3x8xf32>, tensor<12x8xf32>, tensor<12xf32>) -> tensor<3x12xf32>
  %k = transformer.slice_columns %qk {loc = "attn.k", start = 8 : i64, size = 4 : i64} : (tensor<3x12xf32>) -> tensor<3x4xf32>
  %q = transformer.slice_columns %qk {loc = "attn.q", start = 0 : i64, size = 8 : i64} : (tensor<3x12xf32>) -> tensor<3x8xf32>
  func.return %q, %k : tensor<3x8xf32>, tensor<3x4xf32>
}

// -----

// A linear that is also read whole stays; the near miss is recorded.
// CHECK-LABEL: func.func @whole
// CHECK-SAME:    lamella.idle = [{pass = "split-linears", reason = "nearest: transformer.linear at attn.qkv is read whole by func.return"}]
// CHECK:         transformer.slice_columns
func.func @whole(%x: tensor<3x8xf32>) -> (tensor<3x12xf32>, tensor<3x4xf32>) {
  %w = transformer.weight "qkv_proj" : tensor<12x8xf32>
  %qk = transformer.linear %x, %w {loc = "attn.qkv"} : (tensor<3x8xf32>, tensor<12x8xf32>) -> tensor<3x12xf32>
  %k = transformer.slice_columns %qk {loc = "attn.k", start = 8 : i64, size = 4 : i64} : (tensor<3x12xf32>) -> tensor<3x4xf32>
  func.return %qk, %k : tensor<3x12xf32>, tensor<3x4xf32>
}

// -----

// CHECK-LABEL: func.func @activation
// CHECK-SAME:    reason = "nearest: transformer.slice_columns at part takes columns of transformer.silu at activation, which is no linear"
func.func @activation(%x: tensor<3x8xf32>) -> tensor<3x4xf32> {
  %a = transformer.silu %x {loc = "activation"} : (tensor<3x8xf32>) -> tensor<3x8xf32>
  %y = transformer.slice_columns %a {loc = "part", start = 0 : i64, size = 4 : i64} : (tensor<3x8xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// -----

// CHECK-LABEL: func.func @nothing
// CHECK-SAME:    reason = "no slice of a linear's columns"
func.func @nothing(%x: tensor<3x8xf32>) -> tensor<3x8xf32> {
  func.return %x : tensor<3x8xf32>
}
