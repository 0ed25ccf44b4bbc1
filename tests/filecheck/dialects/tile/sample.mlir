// RUN: lamella-opt %s | lamella-opt | filecheck %s
// RUN: lamella-opt %s --print-op-generic | lamella-opt | filecheck %s

func.func @sample(%logits: tensor<2x32xf32>, %temperature: tensor<2xf32>, %top_k: tensor<2xi32>, %top_p: tensor<2xf32>, %min_p: tensor<2xf32>, %seed: tensor<2xi32>, %position: tensor<2xi32>) -> tensor<2xi32> {
  // CHECK: %next = tile.sample %logits, %temperature, %top_k, %top_p, %min_p, %seed, %position {loc = "sample"} : tensor<2x32xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32> -> tensor<2xi32>
  %next = tile.sample %logits, %temperature, %top_k, %top_p, %min_p, %seed, %position {loc = "sample"} : tensor<2x32xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32> -> tensor<2xi32>
  func.return %next : tensor<2xi32>
}

func.func @chunks(%logits: tensor<2x32xf32>, %temperature: tensor<2xf32>, %top_k: tensor<2xi32>, %top_p: tensor<2xf32>, %min_p: tensor<2xf32>, %seed: tensor<2xi32>, %position: tensor<2xi32>) -> tensor<2xi32> {
  // CHECK: %best, %index = tile.top_partial %logits splits 4 : i64 : tensor<2x32xf32> -> tensor<2x4xf32>, tensor<2x4xi32>
  %best, %index = tile.top_partial %logits splits 4 : i64 : tensor<2x32xf32> -> tensor<2x4xf32>, tensor<2x4xi32>
  // CHECK: %next = tile.sample_top %logits top %best, %index with %temperature, %top_k, %top_p, %min_p, %seed, %position : tensor<2x32xf32>, tensor<2x4xf32>, tensor<2x4xi32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32> -> tensor<2xi32>
  %next = tile.sample_top %logits top %best, %index with %temperature, %top_k, %top_p, %min_p, %seed, %position : tensor<2x32xf32>, tensor<2x4xf32>, tensor<2x4xi32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32> -> tensor<2xi32>
  func.return %next : tensor<2xi32>
}
