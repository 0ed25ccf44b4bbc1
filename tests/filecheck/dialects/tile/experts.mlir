// RUN: lamella-opt %s | lamella-opt | filecheck %s
// RUN: lamella-opt %s --print-op-generic | lamella-opt | filecheck %s

func.func @mixture(%x: tensor<3x8xf32>, %logits: tensor<3x5xf32>, %w: tensor<20x8xf32>) -> tensor<3x4xf32> {
  // CHECK: %weights, %chosen = tile.route %logits top 2 : i64 normalized true {loc = "route"} : tensor<3x5xf32> -> tensor<3x2xf32>, tensor<3x2xi32>
  %weights, %chosen = tile.route %logits top 2 : i64 normalized true {loc = "route"} : tensor<3x5xf32> -> tensor<3x2xf32>, tensor<3x2xi32>
  // CHECK-NEXT: %y = tile.contract_experts %x, %w by %chosen of 5 : i64 {loc = "experts"} : tensor<3x8xf32>, tensor<20x8xf32>, tensor<3x2xi32> -> tensor<6x4xf32>
  %y = tile.contract_experts %x, %w by %chosen of 5 : i64 {loc = "experts"} : tensor<3x8xf32>, tensor<20x8xf32>, tensor<3x2xi32> -> tensor<6x4xf32>
  // CHECK-NEXT: %z = tile.add_rows %y by 2 : i64 : tensor<6x4xf32> -> tensor<3x4xf32>
  %z = tile.add_rows %y by 2 : i64 : tensor<6x4xf32> -> tensor<3x4xf32>
  // CHECK-NEXT: %order = tile.sort_choices %chosen {loc = "experts"} : tensor<3x2xi32> -> tensor<6xi32>
  %order = tile.sort_choices %chosen {loc = "experts"} : tensor<3x2xi32> -> tensor<6xi32>
  // CHECK-NEXT: %sorted = tile.contract_experts %x, %w by %chosen in %order of 5 : i64 : tensor<3x8xf32>, tensor<20x8xf32>, tensor<3x2xi32>, tensor<6xi32> -> tensor<6x4xf32>
  %sorted = tile.contract_experts %x, %w by %chosen in %order of 5 : i64 : tensor<3x8xf32>, tensor<20x8xf32>, tensor<3x2xi32>, tensor<6xi32> -> tensor<6x4xf32>
  func.return %z : tensor<3x4xf32>
}

func.func @packed(%x: tensor<3x8xbf16>, %words: tensor<20x1xi32>, %scales: tensor<20x1xf16>, %chosen: tensor<3x2xi32>) -> tensor<6x4xf32> {
  %w = tile.dequantize %words, %scales as <int4, group = 8> : tensor<20x1xi32>, tensor<20x1xf16> -> tensor<20x8xf32>
  // CHECK: %y = tile.contract_experts %x, %w by %chosen of 5 : i64 : tensor<3x8xbf16>, tensor<20x8xf32>, tensor<3x2xi32> -> tensor<6x4xf32>
  %y = tile.contract_experts %x, %w by %chosen of 5 : i64 : tensor<3x8xbf16>, tensor<20x8xf32>, tensor<3x2xi32> -> tensor<6x4xf32>
  func.return %y : tensor<6x4xf32>
}
