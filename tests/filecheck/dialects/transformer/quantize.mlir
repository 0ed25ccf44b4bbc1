// RUN: lamella-opt %s | lamella-opt | filecheck %s

%w = transformer.weight "q_proj" : tensor<8x64xbf16>
%s = transformer.group_scales %w {packing = #transformer.packing<int4, group = 32>, affine = true} : (tensor<8x64xbf16>) -> tensor<8x2xbf16>
// CHECK: transformer.group_scales %w {packing = #transformer.packing<int4, group = 32>, affine = true} : (tensor<8x64xbf16>) -> tensor<8x2xbf16>
%m = transformer.group_mins %w, %s {packing = #transformer.packing<int4, group = 32>} : (tensor<8x64xbf16>, tensor<8x2xbf16>) -> tensor<8x2xbf16>
// CHECK-NEXT: transformer.group_mins
%p = transformer.pack_weight %w, %s, %m {packing = #transformer.packing<int4, group = 32>} : (tensor<8x64xbf16>, tensor<8x2xbf16>, tensor<8x2xbf16>) -> tensor<8x8xi32>
// CHECK-NEXT: transformer.pack_weight {{.*}} -> tensor<8x8xi32>
%d = transformer.dequantize %p, %s, %m {packing = #transformer.packing<int4, group = 32>} : (tensor<8x8xi32>, tensor<8x2xbf16>, tensor<8x2xbf16>) -> tensor<8x64xf32>
// CHECK-NEXT: %d = transformer.dequantize %p, %s, %m {packing = #transformer.packing<int4, group = 32>} : (tensor<8x8xi32>, tensor<8x2xbf16>, tensor<8x2xbf16>) -> tensor<8x64xf32>
%x = "test.op"() : () -> tensor<3x64xbf16>
%y = transformer.linear %x, %d : (tensor<3x64xbf16>, tensor<8x64xf32>) -> tensor<3x8xbf16>
// CHECK: transformer.linear %x, %d : (tensor<3x64xbf16>, tensor<8x64xf32>) -> tensor<3x8xbf16>
%q, %t = "test.op"() : () -> (tensor<8x16xi32>, tensor<8x1xf16>)
%e = transformer.dequantize %q, %t {packing = #transformer.packing<int8, group = 64>} : (tensor<8x16xi32>, tensor<8x1xf16>) -> tensor<8x64xf32>
// CHECK: %e = transformer.dequantize %q, %t {packing = #transformer.packing<int8, group = 64>} : (tensor<8x16xi32>, tensor<8x1xf16>) -> tensor<8x64xf32>
%f = transformer.group_scales %w {packing = #transformer.packing<fp8, group = 64>} : (tensor<8x64xbf16>) -> tensor<8x1xbf16>
%g = transformer.pack_weight %w, %f {packing = #transformer.packing<fp8, group = 64>} : (tensor<8x64xbf16>, tensor<8x1xbf16>) -> tensor<8x64xf8E4M3FN>
%h = transformer.dequantize %g, %f {packing = #transformer.packing<fp8, group = 64>} : (tensor<8x64xf8E4M3FN>, tensor<8x1xbf16>) -> tensor<8x64xf32>
// CHECK: transformer.pack_weight {{.*}} -> tensor<8x64xf8E4M3FN>
// CHECK-NEXT: %h = transformer.dequantize %g, %f {packing = #transformer.packing<fp8, group = 64>} : (tensor<8x64xf8E4M3FN>, tensor<8x1xbf16>) -> tensor<8x64xf32>
%k = transformer.by_group %s : (tensor<8x2xbf16>) -> tensor<2x8xbf16>
%k2 = transformer.by_group %s {together = 2 : i64} : (tensor<8x2xbf16>) -> tensor<1x16xbf16>
// CHECK-NEXT: %k = transformer.by_group %s : (tensor<8x2xbf16>) -> tensor<2x8xbf16>
// CHECK-NEXT: %k2 = transformer.by_group %s {together = 2 : i64} : (tensor<8x2xbf16>) -> tensor<1x16xbf16>
%l = transformer.dequantize %p, %k {packing = #transformer.packing<int4, group = 32>, by_group = 1 : i64} : (tensor<8x8xi32>, tensor<2x8xbf16>) -> tensor<8x64xf32>
// CHECK-NEXT: %l = transformer.dequantize %p, %k {packing = #transformer.packing<int4, group = 32>, by_group = 1 : i64} : (tensor<8x8xi32>, tensor<2x8xbf16>) -> tensor<8x64xf32>
// Two levels: scales and least values of eight bits, times a float for four groups.
%r, %i, %j, %a, %b = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8>, tensor<8x2xf16>, tensor<8x2xf16>)
%z = transformer.dequantize %r, %i, %j super %a, %b {packing = #transformer.packing<int4, group = 32>} : (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8> super tensor<8x2xf16>, tensor<8x2xf16>) -> tensor<8x256xf32>
// CHECK: %z = transformer.dequantize %r, %i, %j super %a, %b {packing = #transformer.packing<int4, group = 32>} : (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8> super tensor<8x2xf16>, tensor<8x2xf16>) -> tensor<8x256xf32>
%n = transformer.dequantize %r, %i super %a {packing = #transformer.packing<int4, group = 32>} : (tensor<8x32xi32>, tensor<8x8xi8> super tensor<8x2xf16>) -> tensor<8x256xf32>
// CHECK: %n = transformer.dequantize %r, %i super %a {packing = #transformer.packing<int4, group = 32>} : (tensor<8x32xi32>, tensor<8x8xi8> super tensor<8x2xf16>) -> tensor<8x256xf32>
