// RUN: lamella-opt %s -p 'specialize{tokens=4}' --verify-diagnostics --split-input-file | filecheck %s

func.func @images(%x : tensor<?x8xf32, #transformer.dims<"P">>) {
  func.return
}
// CHECK: pass 'specialize': @images: dimension P of tensor<?x8xf32, #transformer.dims<"P">> has no size, expected one of N, B, B+1, M, R

// -----
// A function without a model signature gets its dimensions only.
// CHECK: func.func @part(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
// CHECK-NEXT: %y = transformer.silu %x : (tensor<4x8xf32>) -> tensor<4x8xf32>
func.func @part(%x : tensor<?x8xf32, #transformer.dims<"N">>) -> tensor<?x8xf32, #transformer.dims<"N">> {
  %y = transformer.silu %x : (tensor<?x8xf32, #transformer.dims<"N">>) -> tensor<?x8xf32, #transformer.dims<"N">>
  func.return %y : tensor<?x8xf32, #transformer.dims<"N">>
}
