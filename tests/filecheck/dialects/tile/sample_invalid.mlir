// RUN: lamella-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: tile.sample at sample: top_k has shape (3,), expected (2,), one a row of logits
func.func @rows(%logits: tensor<2x32xf32>, %f: tensor<2xf32>, %i: tensor<2xi32>, %top_k: tensor<3xi32>) {
  %next = tile.sample %logits, %f, %top_k, %f, %i, %i {loc = "sample"} : tensor<2x32xf32>, tensor<2xf32>, tensor<3xi32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32> -> tensor<2xi32>
  func.return
}

// -----

// CHECK: tile.sample: result has shape (1,), expected (2,)
func.func @result(%logits: tensor<2x32xf32>, %f: tensor<2xf32>, %i: tensor<2xi32>) {
  %next = tile.sample %logits, %f, %i, %f, %i, %i : tensor<2x32xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32> -> tensor<1xi32>
  func.return
}
