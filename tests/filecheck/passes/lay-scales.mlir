// RUN: lamella-opt %s -p lay-scales | filecheck %s

// Groups of 64 or more, which tensor cores multiply as bytes: scales and least values are turned.
func.func @groups(%x : tensor<2x128xbf16>) -> tensor<2x8xbf16> attributes {lamella.inputs = ["x"], lamella.outputs = ["y"], lamella.tied = array<i64: -1>} {
  %p = transformer.weight "q.packed" : tensor<8x16xi32>
  %s = transformer.weight "q.scales" : tensor<8x2xf16>
  %m = transformer.weight "q.mins" : tensor<8x2xf16>
  %w = transformer.dequantize %p, %s, %m {loc = "layers.0.attn.q", packing = #transformer.packing<int4, group = 64>} : (tensor<8x16xi32>, tensor<8x2xf16>, tensor<8x2xf16>) -> tensor<8x128xf32>
  %y = transformer.linear %x, %w : (tensor<2x128xbf16>, tensor<8x128xf32>) -> tensor<2x8xbf16>
  func.return %y : tensor<2x8xbf16>
}
// CHECK:      [[S:%.*]] = transformer.by_group %s : (tensor<8x2xf16>) -> tensor<2x8xf16>
// CHECK-NEXT: [[M:%.*]] = transformer.by_group %m : (tensor<8x2xf16>) -> tensor<2x8xf16>
// CHECK-NEXT: %w = transformer.dequantize %p, [[S]], [[M]] {loc = "layers.0.attn.q", packing = #transformer.packing<int4, group = 64>, by_group = 1 : i64} : (tensor<8x16xi32>, tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<8x128xf32>

// Rows of whole runs, which one token reads by few rows and eight groups at once: these stay side by side.
func.func @runs(%x : tensor<1x2048xbf16>) -> tensor<1x8xbf16> attributes {lamella.inputs = ["x"], lamella.outputs = ["y"], lamella.tied = array<i64: -1>} {
  %p = transformer.weight "q.packed" : tensor<8x256xi32>
  %s = transformer.weight "q.scales" : tensor<8x16xbf16>
  %w = transformer.dequantize %p, %s {packing = #transformer.packing<int4, group = 128>} : (tensor<8x256xi32>, tensor<8x16xbf16>) -> tensor<8x2048xf32>
  %y = transformer.linear %x, %w : (tensor<1x2048xbf16>, tensor<8x2048xf32>) -> tensor<1x8xbf16>
  func.return %y : tensor<1x8xbf16>
}
// CHECK:      func.func @runs
// CHECK:      [[S:%.*]] = transformer.by_group %s {together = 8 : i64} : (tensor<8x16xbf16>) -> tensor<2x64xbf16>
// CHECK-NEXT: %w = transformer.dequantize %p, [[S]] {packing = #transformer.packing<int4, group = 128>, by_group = 8 : i64} : (tensor<8x256xi32>, tensor<2x64xbf16>) -> tensor<8x2048xf32>

// Groups of 32, whole rows, and a table whose rows are gathered stay.
func.func @others(%x : tensor<2x128xbf16>, %t : tensor<2xi32>) -> tensor<2x8xbf16> attributes {lamella.inputs = ["x", "t"], lamella.outputs = ["y"], lamella.tied = array<i64: -1>} {
  %p = transformer.weight "q.packed" : tensor<128x16xi32>
  %s = transformer.weight "q.scales" : tensor<128x4xf16>
  %w = transformer.dequantize %p, %s {packing = #transformer.packing<int4, group = 32>} : (tensor<128x16xi32>, tensor<128x4xf16>) -> tensor<128x128xf32>
  %y = transformer.linear %x, %w : (tensor<2x128xbf16>, tensor<128x128xf32>) -> tensor<2x128xbf16>
  %p1 = transformer.weight "k.packed" : tensor<8x32xi32>
  %s1 = transformer.weight "k.scales" : tensor<8x1xf16>
  %w1 = transformer.dequantize %p1, %s1 {packing = #transformer.packing<int8, group = 128>} : (tensor<8x32xi32>, tensor<8x1xf16>) -> tensor<8x128xf32>
  %p2 = transformer.weight "embed.packed" : tensor<8x16xi32>
  %s2 = transformer.weight "embed.scales" : tensor<8x2xf32>
  %w2 = transformer.dequantize %p2, %s2 {packing = #transformer.packing<int4, group = 64>} : (tensor<8x16xi32>, tensor<8x2xf32>) -> tensor<8x128xf32>
  %e = transformer.embedding %t, %w2 : (tensor<2xi32>, tensor<8x128xf32>) -> tensor<2x128xbf16>
  %z = transformer.add %y, %e : (tensor<2x128xbf16>, tensor<2x128xbf16>) -> tensor<2x128xbf16>
  %u = transformer.linear %z, %w1 : (tensor<2x128xbf16>, tensor<8x128xf32>) -> tensor<2x8xbf16>
  func.return %u : tensor<2x8xbf16>
}
// CHECK:     func.func @others
// CHECK-NOT: by_group

// Scales of scales turn with them.
func.func @levels(%x : tensor<2x512xbf16>) -> tensor<2x8xbf16> attributes {lamella.inputs = ["x"], lamella.outputs = ["y"], lamella.tied = array<i64: -1>} {
  %p = transformer.weight "q.packed" : tensor<8x128xi32>
  %s = transformer.weight "q.scales" : tensor<8x16xi8>
  %m = transformer.weight "q.mins" : tensor<8x16xi8>
  %a = transformer.weight "q.super_scales" : tensor<8x2xf16>
  %b = transformer.weight "q.super_mins" : tensor<8x2xf16>
  %w = transformer.dequantize %p, %s, %m super %a, %b {packing = #transformer.packing<int8, group = 32>} : (tensor<8x128xi32>, tensor<8x16xi8>, tensor<8x16xi8> super tensor<8x2xf16>, tensor<8x2xf16>) -> tensor<8x512xf32>
  %y = transformer.linear %x, %w : (tensor<2x512xbf16>, tensor<8x512xf32>) -> tensor<2x8xbf16>
  func.return %y : tensor<2x8xbf16>
}
// CHECK:      func.func @levels
// CHECK:      [[S:%.*]] = transformer.by_group %s : (tensor<8x16xi8>) -> tensor<16x8xi8>
// CHECK-NEXT: [[M:%.*]] = transformer.by_group %m : (tensor<8x16xi8>) -> tensor<16x8xi8>
// CHECK-NEXT: [[A:%.*]] = transformer.by_group %a : (tensor<8x2xf16>) -> tensor<2x8xf16>
// CHECK-NEXT: [[B:%.*]] = transformer.by_group %b : (tensor<8x2xf16>) -> tensor<2x8xf16>
// CHECK-NEXT: %w = transformer.dequantize %p, [[S]], [[M]] super [[A]], [[B]] {packing = #transformer.packing<int8, group = 32>, by_group = 1 : i64}
