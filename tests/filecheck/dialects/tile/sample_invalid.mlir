// RUN: lamella-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: tile.sample at sample: top_k has shape (3,), expected (2,), one a row of logits
func.func @rows(%logits: tensor<2x32xf32>, %f: tensor<2xf32>, %i: tensor<2xi32>, %top_k: tensor<3xi32>) {
  %next = tile.sample %logits, %f, %top_k, %f, %f, %i, %i {loc = "sample"} : tensor<2x32xf32>, tensor<2xf32>, tensor<3xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32> -> tensor<2xi32>
  func.return
}

// -----

// CHECK: tile.sample: result has shape (1,), expected (2,)
func.func @result(%logits: tensor<2x32xf32>, %f: tensor<2xf32>, %i: tensor<2xi32>) {
  %next = tile.sample %logits, %f, %i, %f, %f, %i, %i : tensor<2x32xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32> -> tensor<1xi32>
  func.return
}

// -----

func.func @chunks(%logits: tensor<2x32xf32>) {
  // CHECK: tile.top_partial: results have shapes (2, 4) and (2, 8), expected (2, 4)
  %best, %index = tile.top_partial %logits splits 4 : i64 : tensor<2x32xf32> -> tensor<2x4xf32>, tensor<2x8xi32>
  func.return
}

// -----

func.func @draw(%logits: tensor<2x32xf32>, %best: tensor<1x4xf32>, %index: tensor<1x4xi32>, %t: tensor<2xf32>, %k: tensor<2xi32>) {
  // CHECK: tile.sample_top: best (1, 4) and index (1, 4) do not fit 2 rows
  %next = tile.sample_top %logits top %best, %index with %t, %k, %t, %t, %k, %k : tensor<2x32xf32>, tensor<1x4xf32>, tensor<1x4xi32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32> -> tensor<2xi32>
  func.return
}
