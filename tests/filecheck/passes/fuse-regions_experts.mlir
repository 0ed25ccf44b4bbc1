// RUN: lamella-opt %s -p fuse-regions,choose-schedule | filecheck %s

// Gate and up of the chosen experts and their product are one launch; down with the weights of the router, which it reads in another shape,
// is the second: it needs whole rows of the first. The sum over choices joins the residual, in rows.
// CHECK-LABEL: func.func @mixture
// CHECK:         %inner = tile.fused schedule <experts, {{.*}}> ins(%x, %gate, %c, %up
// CHECK-SAME:      kind = "epilogue"
// CHECK:           %g = tile.contract_experts
// CHECK-NEXT:      %u = tile.contract_experts
// CHECK-NEXT:      = tile.map "silu"
// CHECK-NEXT:      = tile.map "mul"
// CHECK-NEXT:      tile.yield
// CHECK:         %weighted = tile.fused schedule <experts, {{.*}}> ins(%inner, %down, %c, %s
// CHECK-SAME:      reason = "experts: tile.contract_experts needs whole rows of x, of its weight and of the choices, which other programs compute"
// CHECK:           %d = tile.contract_experts
// CHECK-NEXT:      %w = tile.reshape
// CHECK-NEXT:      = tile.map "mul"
// CHECK-NEXT:      tile.yield
// CHECK:         %y = tile.fused schedule <row, {{[^>]*}}>
// CHECK-SAME:      reason = "experts: tile.add_rows has no form beside tile.contract_experts"
// CHECK:           %t = tile.add_rows
// CHECK-NEXT:      = tile.map "add"
// CHECK-NEXT:      tile.yield
func.func @mixture(%x: tensor<3x8xf32>, %c: tensor<3x2xi32>, %s: tensor<3x2xf32>, %gate: tensor<20x8xf32>, %up: tensor<20x8xf32>, %down: tensor<40x4xf32>) -> tensor<3x8xf32> {
  %g = tile.contract_experts %x, %gate by %c of 5 : i64 : tensor<3x8xf32>, tensor<20x8xf32>, tensor<3x2xi32> -> tensor<6x4xf32>
  %u = tile.contract_experts %x, %up by %c of 5 : i64 : tensor<3x8xf32>, tensor<20x8xf32>, tensor<3x2xi32> -> tensor<6x4xf32>
  %a = tile.map "silu"(%g) : tensor<6x4xf32> -> tensor<6x4xf32>
  %inner = tile.map "mul"(%a, %u) : tensor<6x4xf32>, tensor<6x4xf32> -> tensor<6x4xf32>
  %d = tile.contract_experts %inner, %down by %c of 5 : i64 : tensor<6x4xf32>, tensor<40x4xf32>, tensor<3x2xi32> -> tensor<6x8xf32>
  %w = tile.reshape %s to [6, 1] : tensor<3x2xf32> -> tensor<6x1xf32>
  %weighted = tile.map "mul"(%d, %w) : tensor<6x8xf32>, tensor<6x1xf32> -> tensor<6x8xf32>
  %t = tile.add_rows %weighted by 2 : i64 : tensor<6x8xf32> -> tensor<3x8xf32>
  %y = tile.map "add"(%t, %x) : tensor<3x8xf32>, tensor<3x8xf32> -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}

// What unpacks a weight of experts joins the contraction that reads it, whatever its format: no float of it is stored.
// CHECK-LABEL: func.func @packed
// CHECK:         %inner = tile.fused schedule <experts, {{.*}}> ins(%gw, %gs, %uw, %us, %um, %x, %c
// CHECK-SAME:      kind = "decode"
// CHECK:           tile.dequantize
// CHECK:           tile.contract_experts
// CHECK-NOT:       tile.fused
// CHECK:           tile.dequantize
// CHECK:           tile.contract_experts
// CHECK:           tile.yield
// CHECK-NOT:     tile.fused
func.func @packed(%x: tensor<3x32xbf16>, %c: tensor<3x2xi32>, %gw: tensor<20x8xi32>, %gs: tensor<20x1xbf16>, %uw: tensor<20x4xi32>, %us: tensor<20x1xbf16>, %um: tensor<20x1xbf16>) -> tensor<6x4xf32> {
  %gate = tile.dequantize %gw, %gs as <int8, group = 32> : tensor<20x8xi32>, tensor<20x1xbf16> -> tensor<20x32xf32>
  %up = tile.dequantize %uw, %us, %um as <int4, group = 32> : tensor<20x4xi32>, tensor<20x1xbf16>, tensor<20x1xbf16> -> tensor<20x32xf32>
  %g = tile.contract_experts %x, %gate by %c of 5 : i64 : tensor<3x32xbf16>, tensor<20x32xf32>, tensor<3x2xi32> -> tensor<6x4xf32>
  %u = tile.contract_experts %x, %up by %c of 5 : i64 : tensor<3x32xbf16>, tensor<20x32xf32>, tensor<3x2xi32> -> tensor<6x4xf32>
  %inner = tile.map "mul"(%g, %u) : tensor<6x4xf32>, tensor<6x4xf32> -> tensor<6x4xf32>
  func.return %inner : tensor<6x4xf32>
}
