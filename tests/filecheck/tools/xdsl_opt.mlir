// RUN: xdsl-opt %s -p 'canonicalize,cse' | filecheck %s
// REQUIRES: universe

// Stock xdsl-opt finds the dialects through the `xdsl.universe` entry point.
// CHECK:      func.func @norm
// CHECK-NEXT:   transformer.rms_norm
// CHECK-NEXT:   func.return
func.func @norm(%x: tensor<4x8xf32>, %w: tensor<8xf32>) -> tensor<4x8xf32> {
  %0 = "transformer.rms_norm"(%x, %w) <{eps = 1.0e-05 : f64}> : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %1 = "transformer.rms_norm"(%x, %w) <{eps = 1.0e-05 : f64}> : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  func.return %0 : tensor<4x8xf32>
}
