// RUN: lamella-opt %s | lamella-opt | filecheck %s

%p, %s, %m, %x = "test.op"() : () -> (tensor<8x8xi32>, tensor<8x2xf16>, tensor<8x2xf16>, tensor<1x64xbf16>)
%w = tile.dequantize %p, %s, %m as <int4, group = 32> {loc = "layers.0.attn.q"} : tensor<8x8xi32>, tensor<8x2xf16>, tensor<8x2xf16> -> tensor<8x64xf32>
// CHECK: %w = tile.dequantize %p, %s, %m as <int4, group = 32> {loc = "layers.0.attn.q"} : tensor<8x8xi32>, tensor<8x2xf16>, tensor<8x2xf16> -> tensor<8x64xf32>
%y = tile.contract %x, %w : tensor<1x64xbf16>, tensor<8x64xf32> -> tensor<1x8xf32>
// CHECK-NEXT: tile.contract %x, %w : tensor<1x64xbf16>, tensor<8x64xf32> -> tensor<1x8xf32>
%q, %t = "test.op"() : () -> (tensor<8x16xi32>, tensor<8x1xf32>)
%v = tile.dequantize %q, %t as <int8, group = 64> : tensor<8x16xi32>, tensor<8x1xf32> -> tensor<8x64xf32>
// CHECK: %v = tile.dequantize %q, %t as <int8, group = 64> : tensor<8x16xi32>, tensor<8x1xf32> -> tensor<8x64xf32>
%n = "test.op"() : () -> tensor<8x2xf32>
%u = tile.dequantize %p, %s, %n as <int4, group = 32> : tensor<8x8xi32>, tensor<8x2xf16>, tensor<8x2xf32> -> tensor<8x64xf32>
// CHECK: %u = tile.dequantize %p, %s, %n as <int4, group = 32> : tensor<8x8xi32>, tensor<8x2xf16>, tensor<8x2xf32> -> tensor<8x64xf32>
%g, %f = "test.op"() : () -> (tensor<8x64xf8E4M3FN>, tensor<8x1xbf16>)
%h = tile.dequantize %g, %f as <fp8, group = 64> : tensor<8x64xf8E4M3FN>, tensor<8x1xbf16> -> tensor<8x64xf32>
// CHECK: %h = tile.dequantize %g, %f as <fp8, group = 64> : tensor<8x64xf8E4M3FN>, tensor<8x1xbf16> -> tensor<8x64xf32>
%b = "test.op"() : () -> tensor<2x8xf16>
%l = tile.dequantize %p, %b as <int4, group = 32> {by_group = 1 : i64} : tensor<8x8xi32>, tensor<2x8xf16> -> tensor<8x64xf32>
// CHECK: %l = tile.dequantize %p, %b as <int4, group = 32> {by_group = 1 : i64} : tensor<8x8xi32>, tensor<2x8xf16> -> tensor<8x64xf32>
// Two levels: scales and least values of eight bits, times a float for four groups.
%r, %i, %j, %k, %o = "test.op"() : () -> (tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8>, tensor<8x2xf16>, tensor<8x2xf16>)
%z = tile.dequantize %r, %i, %j super %k, %o as <int4, group = 32> {loc = "layers.0.attn.q"} : tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8> super tensor<8x2xf16>, tensor<8x2xf16> -> tensor<8x256xf32>
// CHECK: %z = tile.dequantize %r, %i, %j super %k, %o as <int4, group = 32> {loc = "layers.0.attn.q"} : tensor<8x32xi32>, tensor<8x8xi8>, tensor<8x8xi8> super tensor<8x2xf16>, tensor<8x2xf16> -> tensor<8x256xf32>
%c, %d = "test.op"() : () -> (tensor<8x8xi8>, tensor<2x8xf16>)
%e = tile.dequantize %r, %c super %d as <int4, group = 32> {by_group = 1 : i64} : tensor<8x32xi32>, tensor<8x8xi8> super tensor<2x8xf16> -> tensor<8x256xf32>
// CHECK: %e = tile.dequantize %r, %c super %d as <int4, group = 32> {by_group = 1 : i64} : tensor<8x32xi32>, tensor<8x8xi8> super tensor<2x8xf16> -> tensor<8x256xf32>
