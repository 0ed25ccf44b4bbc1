// RUN: lamella-opt %s -p transformer-to-tile --split-input-file --verify-diagnostics | filecheck %s

// CHECK: transformer.rope at layers.0.attn.rope_q: no lowering to tile ops (run rope-table first)
func.func @formula(%x: tensor<3x8xf32>, %p: tensor<3xi32>) -> tensor<3x8xf32> {
  %y = transformer.rope %x, %p {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {}, loc = "layers.0.attn.rope_q"} : (tensor<3x8xf32>, tensor<3xi32>) -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}

// -----

// CHECK: transformer.silu at layers.0.ffn.activation: a dynamic dimension, got tensor<?x8xf32, #transformer.dims<"N">> (run specialize first)
func.func @dynamic(%x: tensor<?x8xf32, #transformer.dims<"N">>) -> tensor<?x8xf32, #transformer.dims<"N">> {
  %y = transformer.silu %x {loc = "layers.0.ffn.activation"} : (tensor<?x8xf32, #transformer.dims<"N">>) -> tensor<?x8xf32, #transformer.dims<"N">>
  func.return %y : tensor<?x8xf32, #transformer.dims<"N">>
}

// -----

// CHECK: transformer.transpose: no lowering to tile ops (run fold-constants first)
func.func @transform(%w: tensor<3x8xf32>) -> tensor<8x3xf32> {
  %y = transformer.transpose %w : (tensor<3x8xf32>) -> tensor<8x3xf32>
  func.return %y : tensor<8x3xf32>
}

// -----

// CHECK: test.op at layers.0: no lowering to tile ops
func.func @unknown(%x: tensor<3x8xf32>) -> tensor<3x8xf32> {
  %y = "test.op"(%x) {loc = "layers.0"} : (tensor<3x8xf32>) -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}
