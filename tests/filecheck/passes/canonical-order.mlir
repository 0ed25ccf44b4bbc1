// RUN: lamella-opt %s -p canonical-order | filecheck %s
// RUN: lamella-opt %s -p canonical-order,canonical-order | filecheck %s

// The IR of the pass's docstring: the operand that more ops lead to comes first, and weights are called after what reads them.
// CHECK-LABEL: func.func @gated
// CHECK-NEXT:    %gate.weight = transformer.weight "gate_proj"
// CHECK-NEXT:    %gate = transformer.linear %x, %gate.weight
// CHECK-NEXT:    %active = transformer.silu %gate
// CHECK-NEXT:    %up.weight = transformer.weight "up_proj"
// CHECK-NEXT:    %up = transformer.linear %x, %up.weight
// CHECK-NEXT:    %y = transformer.mul %active, %up
// CHECK-NEXT:    func.return %y
func.func @gated(%x: tensor<3x8xf32>) -> tensor<3x4xf32> {
  %w1 = transformer.weight "up_proj" : tensor<4x8xf32>
  %up = transformer.linear %x, %w1 {loc = "up"} : (tensor<3x8xf32>, tensor<4x8xf32>) -> tensor<3x4xf32>
  %w0 = transformer.weight "gate_proj" : tensor<4x8xf32>
  %gate = transformer.linear %x, %w0 {loc = "gate"} : (tensor<3x8xf32>, tensor<4x8xf32>) -> tensor<3x4xf32>
  %active = transformer.silu %gate {loc = "activation"} : (tensor<3x4xf32>) -> tensor<3x4xf32>
  %y = transformer.mul %up, %active {loc = "gated"} : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// The same in another order, with other names: the same text.
// CHECK-LABEL: func.func @other_spelling
// CHECK-NEXT:    %gate.weight = transformer.weight "gate_proj"
// CHECK-NEXT:    %gate = transformer.linear %x, %gate.weight
// CHECK-NEXT:    %active = transformer.silu %gate
// CHECK-NEXT:    %up.weight = transformer.weight "up_proj"
// CHECK-NEXT:    %up = transformer.linear %x, %up.weight
// CHECK-NEXT:    %y = transformer.mul %active, %up
// CHECK-NEXT:    func.return %y
func.func @other_spelling(%x: tensor<3x8xf32>) -> tensor<3x4xf32> {
  %a = transformer.weight "gate_proj" : tensor<4x8xf32>
  %b = transformer.weight "up_proj" : tensor<4x8xf32>
  %gate = transformer.linear %x, %a {loc = "gate"} : (tensor<3x8xf32>, tensor<4x8xf32>) -> tensor<3x4xf32>
  %active = transformer.silu %gate {loc = "activation"} : (tensor<3x4xf32>) -> tensor<3x4xf32>
  %up = transformer.linear %x, %b {loc = "up"} : (tensor<3x8xf32>, tensor<4x8xf32>) -> tensor<3x4xf32>
  %y = transformer.mul %active, %up {loc = "gated"} : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
  func.return %y : tensor<3x4xf32>
}

// A difference does not commute: its operands stay, and decide which of two independent ops comes first.
// CHECK-LABEL: func.func @difference
// CHECK-NEXT:    %a = tile.map "exp"(%x)
// CHECK-NEXT:    %b = tile.map "neg"(%x)
// CHECK-NEXT:    %y = tile.map "sub"(%a, %b)
func.func @difference(%x: tensor<3x8xf32>) -> tensor<3x8xf32> {
  %b = tile.map "neg"(%x) : tensor<3x8xf32> -> tensor<3x8xf32>
  %a = tile.map "exp"(%x) : tensor<3x8xf32> -> tensor<3x8xf32>
  %y = tile.map "sub"(%a, %b) : tensor<3x8xf32>, tensor<3x8xf32> -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}

// Operands at equal distance are told apart by their structure: here it does not matter who came first in the text.
// CHECK-LABEL: func.func @sum
// CHECK:         %y = tile.map "add"(%[[FIRST:[ab]]], %[[SECOND:[ab]]])
// CHECK:         %z = tile.map "mul"(%[[FIRST]], %[[SECOND]])
func.func @sum(%x: tensor<3x8xf32>) -> (tensor<3x8xf32>, tensor<3x8xf32>) {
  %b = tile.map "neg"(%x) : tensor<3x8xf32> -> tensor<3x8xf32>
  %a = tile.map "exp"(%x) : tensor<3x8xf32> -> tensor<3x8xf32>
  %y = tile.map "add"(%a, %b) : tensor<3x8xf32>, tensor<3x8xf32> -> tensor<3x8xf32>
  %z = tile.map "mul"(%b, %a) : tensor<3x8xf32>, tensor<3x8xf32> -> tensor<3x8xf32>
  func.return %y, %z : tensor<3x8xf32>, tensor<3x8xf32>
}

// What nothing returned needs stays, before the terminator.
// CHECK-LABEL: func.func @unused
// CHECK-NEXT:    %y = tile.map "exp"(%x)
// CHECK-NEXT:    %a = tile.map "neg"(%x)
// CHECK-NEXT:    func.return %y
func.func @unused(%x: tensor<3x8xf32>) -> tensor<3x8xf32> {
  %a = tile.map "neg"(%x) : tensor<3x8xf32> -> tensor<3x8xf32>
  %y = tile.map "exp"(%x) : tensor<3x8xf32> -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}
