// RUN: lamella-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: tile.fused at layers.0: the region has 0 arguments, expected 1, one an input
func.func @arguments(%x: tensor<4xf32>) {
  %y = tile.fused ins(%x : tensor<4xf32>) attributes {loc = "layers.0"} {
    %a = tile.constant 1.0 : f32 : tensor<f32>
    tile.yield %a : tensor<f32>
  } -> tensor<f32>
  func.return
}

// -----

// CHECK: tile.fused: argument 0 has type tensor<8xf32>, expected tensor<4xf32>, that of input 0
func.func @type(%x: memref<4xf32>) {
  %y = tile.fused ins(%x : memref<4xf32>) {
  ^bb0(%a: tensor<8xf32>):
    tile.yield %a : tensor<8xf32>
  } -> tensor<8xf32>
  func.return
}

// -----

// CHECK: tile.fused: yields 1 values, expected 2, one a result or out
func.func @yields(%x: tensor<4xf32>) {
  %y, %z = tile.fused ins(%x : tensor<4xf32>) {
  ^bb0(%a: tensor<4xf32>):
    tile.yield %a : tensor<4xf32>
  } -> tensor<4xf32>, tensor<4xf32>
  func.return
}

// -----

// CHECK: tile.fused: value 0 has type tensor<4xf32>, expected tensor<8xf32>
func.func @result(%x: tensor<4xf32>) {
  %y = tile.fused ins(%x : tensor<4xf32>) {
  ^bb0(%a: tensor<4xf32>):
    tile.yield %a : tensor<4xf32>
  } -> tensor<8xf32>
  func.return
}

// -----

// CHECK: tile.fused: has both results and outs; tensors give results, buffers take outs
func.func @both(%x: memref<4xf32>) {
  %y = tile.fused ins(%x : memref<4xf32>) outs(%x : memref<4xf32>) {
  ^bb0(%a: tensor<4xf32>):
    tile.yield %a, %a : tensor<4xf32>, tensor<4xf32>
  } -> tensor<4xf32>
  func.return
}

// -----

// CHECK: tile.fused: the region ends without tile.yield
func.func @unfinished(%x: tensor<4xf32>) {
  tile.fused ins(%x : tensor<4xf32>) {
  ^bb0(%a: tensor<4xf32>):
    "test.termop"() : () -> ()
  }
  func.return
}

// -----

// CHECK: tile.fused: {{.*}}defined out of its IsolatedFromAbove parent
func.func @isolated(%x: tensor<4xf32>) {
  %y = tile.fused {
    %b = tile.map "silu"(%x) : tensor<4xf32> -> tensor<4xf32>
    tile.yield %b : tensor<4xf32>
  } -> tensor<4xf32>
  func.return
}

// -----

// CHECK: tile.fused: in_place has 2 numbers, expected 1, one a result
func.func @numbers(%x: tensor<4xf32>) {
  %y = tile.fused ins(%x : tensor<4xf32>) attributes {in_place = array<i64: 0, -1>} {
  ^bb0(%a: tensor<4xf32>):
    tile.yield %a : tensor<4xf32>
  } -> tensor<4xf32>
  func.return
}

// -----

// CHECK: tile.fused: result 0 overwrites input 1, expected one of 1, or -1
func.func @missing(%x: tensor<4xf32>) {
  %y = tile.fused ins(%x : tensor<4xf32>) attributes {in_place = array<i64: 1>} {
  ^bb0(%a: tensor<4xf32>):
    tile.yield %a : tensor<4xf32>
  } -> tensor<4xf32>
  func.return
}

// -----

// CHECK: tile.fused: result 0 has type tensor<4xbf16>, but overwrites input 0 of type tensor<4xf32>
func.func @types(%x: tensor<4xf32>) {
  %y = tile.fused ins(%x : tensor<4xf32>) attributes {in_place = array<i64: 0>} {
  ^bb0(%a: tensor<4xf32>):
    %b = tile.cast %a : tensor<4xf32> -> tensor<4xbf16>
    tile.yield %b : tensor<4xbf16>
  } -> tensor<4xbf16>
  func.return
}
