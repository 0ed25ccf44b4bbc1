// RUN: lamella-opt %s -p transformer-to-tile | filecheck %s

// A row for each choice of a token. The weights change their shape before they are widened: nothing stands between router and reader.
// CHECK-LABEL: func.func @mixture
// CHECK-NEXT:    %weights, %chosen = tile.route %logits top 2 : i64 normalized true : tensor<3x5xbf16> -> tensor<3x2xf32>, tensor<3x2xi32>
// CHECK-NEXT:    %[[GATE:.*]] = tile.contract_experts %x, %gate by %chosen of 5 : i64 : tensor<3x8xbf16>, tensor<20x8xbf16>, tensor<3x2xi32> -> tensor<6x4xf32>
// CHECK:         %[[UP:.*]] = tile.contract_experts %x, %up by %chosen of 5
// CHECK:         = tile.map "silu"
// CHECK:         = tile.map "mul"
// CHECK-NEXT:    %inner = tile.cast %{{.*}} : tensor<6x4xf32> -> tensor<6x4xbf16>
// CHECK-NEXT:    %[[SCALE:.*]] = tile.reshape %weights to [6, 1] : tensor<3x2xf32> -> tensor<6x1xf32>
// CHECK-NEXT:    %[[DOWN:.*]] = tile.contract_experts %inner, %down by %chosen of 5 : i64 : tensor<6x4xbf16>, tensor<40x4xbf16>, tensor<3x2xi32> -> tensor<6x8xf32>
// CHECK:         %weighted = tile.cast %{{.*}} : tensor<6x8xf32> -> tensor<6x8xbf16>
// CHECK-NEXT:    %[[SUM:.*]] = tile.add_rows %weighted by 2 : i64 : tensor<6x8xbf16> -> tensor<3x8xf32>
// CHECK-NEXT:    %y = tile.cast %[[SUM]]
func.func @mixture(%x: tensor<3x8xbf16>, %logits: tensor<3x5xbf16>, %gate: tensor<20x8xbf16>, %up: tensor<20x8xbf16>, %down: tensor<40x4xbf16>) -> tensor<3x8xbf16> {
  %weights, %chosen = transformer.route %logits {normalized = true, top_k = 2 : i64} : (tensor<3x5xbf16>) -> (tensor<3x2xf32>, tensor<3x2xi32>)
  %y = transformer.experts %x, %chosen, %weights, %gate, %up, %down {activation = "silu", experts = 5 : i64} : (tensor<3x8xbf16>, tensor<3x2xi32>, tensor<3x2xf32>, tensor<20x8xbf16>, tensor<20x8xbf16>, tensor<40x4xbf16>) -> tensor<3x8xbf16>
  func.return %y : tensor<3x8xbf16>
}

// Of more than sixteen tokens the choices are sorted by expert, once for all three contractions.
// CHECK-LABEL: func.func @many_tokens
// CHECK:         %order = tile.sort_choices %chosen : tensor<17x2xi32> -> tensor<34xi32>
// CHECK:         tile.contract_experts %x, %gate by %chosen in %order of 5 : i64 : tensor<17x8xbf16>, tensor<20x8xbf16>, tensor<17x2xi32>, tensor<34xi32> -> tensor<34x4xf32>
// CHECK:         tile.contract_experts %x, %up by %chosen in %order of 5
// CHECK:         tile.contract_experts %inner, %down by %chosen in %order of 5
func.func @many_tokens(%x: tensor<17x8xbf16>, %logits: tensor<17x5xbf16>, %gate: tensor<20x8xbf16>, %up: tensor<20x8xbf16>, %down: tensor<40x4xbf16>) -> tensor<17x8xbf16> {
  %weights, %chosen = transformer.route %logits {normalized = true, top_k = 2 : i64} : (tensor<17x5xbf16>) -> (tensor<17x2xf32>, tensor<17x2xi32>)
  %y = transformer.experts %x, %chosen, %weights, %gate, %up, %down {activation = "silu", experts = 5 : i64} : (tensor<17x8xbf16>, tensor<17x2xi32>, tensor<17x2xf32>, tensor<20x8xbf16>, tensor<20x8xbf16>, tensor<40x4xbf16>) -> tensor<17x8xbf16>
  func.return %y : tensor<17x8xbf16>
}

// Packed weights: each is unpacked in front of its contraction, in types that may differ.
// CHECK-LABEL: func.func @packed
// CHECK:         %[[GATE:.*]] = tile.dequantize %words, %scales as <int8, group = 8> : tensor<20x2xi32>, tensor<20x1xbf16> -> tensor<20x8xf32>
// CHECK:         tile.contract_experts %x, %[[GATE]] by %chosen of 5 : i64 : tensor<3x8xbf16>, tensor<20x8xf32>, tensor<3x2xi32> -> tensor<6x4xf32>
// CHECK:         tile.contract_experts %x, %up by %chosen of 5 : i64 : tensor<3x8xbf16>, tensor<20x8xbf16>
func.func @packed(%x: tensor<3x8xbf16>, %chosen: tensor<3x2xi32>, %weights: tensor<3x2xf32>, %words: tensor<20x2xi32>, %scales: tensor<20x1xbf16>, %up: tensor<20x8xbf16>, %down: tensor<40x4xbf16>) -> tensor<3x8xbf16> {
  %gate = transformer.dequantize %words, %scales {packing = #transformer.packing<int8, group = 8>} : (tensor<20x2xi32>, tensor<20x1xbf16>) -> tensor<20x8xf32>
  %y = transformer.experts %x, %chosen, %weights, %gate, %up, %down {activation = "silu", experts = 5 : i64} : (tensor<3x8xbf16>, tensor<3x2xi32>, tensor<3x2xf32>, tensor<20x8xf32>, tensor<20x8xbf16>, tensor<40x4xbf16>) -> tensor<3x8xbf16>
  func.return %y : tensor<3x8xbf16>
}
