// RUN: lamella-opt %s -p 'rope-table{length=32}' | filecheck %s
// RUN: lamella-opt %s -p 'rope-table{length=0}' --verify-diagnostics | filecheck %s --check-prefix=EMPTY

// EMPTY: pass 'rope-table': length is 0, expected at least 1

// Two ropes share a table; a third with other frequencies has its own.
// CHECK:      func.func @turn
// CHECK-NEXT: %rope_table = transformer.rope_table {length = 32 : i64, rotary_dim = 4 : i64, theta = 1.000000e+04 : f64, scaling = {}} : tensor<32x4xf32>
// CHECK-NEXT: %rope_table_1 = transformer.rope_table {length = 32 : i64, rotary_dim = 8 : i64, theta = 1.000000e+04 : f64, scaling = {}} : tensor<32x8xf32>
// CHECK-NEXT: %0 = transformer.rotate %q, %positions, %rope_table_1 {loc = "layers.0.attn.rope_q", heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half"} : (tensor<?x16xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>, tensor<32x8xf32>) -> tensor<?x16xf32, #transformer.dims<"N">>
// CHECK-NEXT: %1 = transformer.rotate %k, %positions, %rope_table_1 {loc = "layers.0.attn.rope_k", heads = 1 : i64,
// CHECK-NEXT: %2 = transformer.rotate %k, %positions, %rope_table {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 4 : i64, style = "paired"}
// CHECK-NEXT: func.return %0, %1, %2
func.func @turn(%q : tensor<?x16xf32, #transformer.dims<"N">>, %k : tensor<?x8xf32, #transformer.dims<"N">>, %positions : tensor<?xi32, #transformer.dims<"N">>) -> (tensor<?x16xf32, #transformer.dims<"N">>, tensor<?x8xf32, #transformer.dims<"N">>, tensor<?x8xf32, #transformer.dims<"N">>) {
  %0 = transformer.rope %q, %positions {heads = 2 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {}, loc = "layers.0.attn.rope_q"} : (tensor<?x16xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>) -> tensor<?x16xf32, #transformer.dims<"N">>
  %1 = transformer.rope %k, %positions {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 8 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {}, loc = "layers.0.attn.rope_k"} : (tensor<?x8xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>) -> tensor<?x8xf32, #transformer.dims<"N">>
  %2 = transformer.rope %k, %positions {heads = 1 : i64, head_dim = 8 : i64, rotary_dim = 4 : i64, style = "paired", theta = 1.0e+04 : f64, scaling = {}} : (tensor<?x8xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"N">>) -> tensor<?x8xf32, #transformer.dims<"N">>
  func.return %0, %1, %2 : tensor<?x16xf32, #transformer.dims<"N">>, tensor<?x8xf32, #transformer.dims<"N">>, tensor<?x8xf32, #transformer.dims<"N">>
}
