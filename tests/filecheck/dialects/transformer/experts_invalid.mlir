// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%logits = "test.op"() : () -> tensor<3x5xf32>
%weights, %chosen = transformer.route %logits {loc = "route", normalized = true, top_k = 6 : i64} : (tensor<3x5xf32>) -> (tensor<3x6xf32>, tensor<3x6xi32>)
// CHECK: transformer.route at route: top_k is 6, expected 1 to 5, the experts of logits

// -----
%logits = "test.op"() : () -> tensor<3x5xf32>
%weights, %chosen = transformer.route %logits {normalized = false, top_k = 2 : i64} : (tensor<3x5xf32>) -> (tensor<3x2xf32>, tensor<3x3xi32>)
// CHECK: transformer.route: chosen has shape (3, 3), expected (3, 2), the rows of logits and top_k

// -----
%x, %c, %s, %w, %d = "test.op"() : () -> (tensor<3x8xf32>, tensor<2x2xi32>, tensor<3x2xf32>, tensor<20x8xf32>, tensor<40x4xf32>)
%y = transformer.experts %x, %c, %s, %w, %w, %d {activation = "silu", experts = 5 : i64} : (tensor<3x8xf32>, tensor<2x2xi32>, tensor<3x2xf32>, tensor<20x8xf32>, tensor<20x8xf32>, tensor<40x4xf32>) -> tensor<3x8xf32>
// CHECK: transformer.experts: chosen has shape (2, 2), expected (3, 2), the rows of x

// -----
%x, %c, %s, %w, %d = "test.op"() : () -> (tensor<3x8xf32>, tensor<3x2xi32>, tensor<3x1xf32>, tensor<20x8xf32>, tensor<40x4xf32>)
%y = transformer.experts %x, %c, %s, %w, %w, %d {activation = "silu", experts = 5 : i64} : (tensor<3x8xf32>, tensor<3x2xi32>, tensor<3x1xf32>, tensor<20x8xf32>, tensor<20x8xf32>, tensor<40x4xf32>) -> tensor<3x8xf32>
// CHECK: transformer.experts: weights has shape (3, 1), expected (3, 2), the shape of chosen

// -----
%x, %c, %s, %w, %d = "test.op"() : () -> (tensor<3x8xf32>, tensor<3x2xi32>, tensor<3x2xf32>, tensor<20x8xf32>, tensor<40x4xf32>)
%y = transformer.experts %x, %c, %s, %w, %w, %d {activation = "silu", experts = 3 : i64} : (tensor<3x8xf32>, tensor<3x2xi32>, tensor<3x2xf32>, tensor<20x8xf32>, tensor<20x8xf32>, tensor<40x4xf32>) -> tensor<3x8xf32>
// CHECK: transformer.experts: gate has shape (20, 8), expected rows in 3 equal parts, one an expert

// -----
%x, %c, %s, %w, %d = "test.op"() : () -> (tensor<3x8xf32>, tensor<3x2xi32>, tensor<3x2xf32>, tensor<20x8xf32>, tensor<40x5xf32>)
%y = transformer.experts %x, %c, %s, %w, %w, %d {activation = "silu", experts = 5 : i64} : (tensor<3x8xf32>, tensor<3x2xi32>, tensor<3x2xf32>, tensor<20x8xf32>, tensor<20x8xf32>, tensor<40x5xf32>) -> tensor<3x8xf32>
// CHECK: transformer.experts: down has shape (40, 5), expected (40, 4), the columns of x and the rows of gate of each expert

// -----
%x, %c, %s, %w, %d = "test.op"() : () -> (tensor<3x8xf32>, tensor<3x2xi32>, tensor<3x2xf32>, tensor<20x8xf32>, tensor<40x4xbf16>)
%y = transformer.experts %x, %c, %s, %w, %w, %d {activation = "silu", experts = 5 : i64} : (tensor<3x8xf32>, tensor<3x2xi32>, tensor<3x2xf32>, tensor<20x8xf32>, tensor<20x8xf32>, tensor<40x4xbf16>) -> tensor<3x8xf32>
// CHECK: transformer.experts: down has element type bf16, expected f32, that of x

// -----
%x, %c, %s, %w, %u, %d = "test.op"() : () -> (tensor<3x8xbf16>, tensor<3x2xi32>, tensor<3x2xf32>, tensor<20x8xf32>, tensor<10x8xf32>, tensor<40x4xbf16>)
%y = transformer.experts %x, %c, %s, %w, %u, %d {activation = "silu", experts = 5 : i64} : (tensor<3x8xbf16>, tensor<3x2xi32>, tensor<3x2xf32>, tensor<20x8xf32>, tensor<10x8xf32>, tensor<40x4xbf16>) -> tensor<3x8xbf16>
// CHECK: transformer.experts: up has shape (10, 8), expected (20, 8), the shape of gate

// -----
%x, %c, %s, %w, %u, %d = "test.op"() : () -> (tensor<3x8xbf16>, tensor<3x2xi32>, tensor<3x2xf32>, tensor<20x8xf32>, tensor<20x8xf16>, tensor<40x4xbf16>)
%y = transformer.experts %x, %c, %s, %w, %u, %d {activation = "silu", experts = 5 : i64} : (tensor<3x8xbf16>, tensor<3x2xi32>, tensor<3x2xf32>, tensor<20x8xf32>, tensor<20x8xf16>, tensor<40x4xbf16>) -> tensor<3x8xbf16>
// CHECK: transformer.experts: up has element type f16, expected bf16, that of x
