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

// LongRoPE: longer than the original length, the table has both sets of frequencies, and one row number serves all ropes.
// CHECK:      func.func @two_sets
// CHECK-NEXT: %rope_table = transformer.rope_table {length = 32 : i64, {{.*}} : tensor<64x2xf32>
// CHECK-NEXT: %rope_row = transformer.rope_row %positions, %lengths {length = 32 : i64, original = 16 : i64}
// CHECK-NEXT: transformer.rotate %x, %rope_row, %rope_table
// CHECK-NEXT: transformer.rotate %x, %rope_row, %rope_table
func.func @two_sets(%x : tensor<3x4xf32>, %positions : tensor<3xi32>, %lengths : tensor<3xi32>) -> (tensor<3x4xf32>, tensor<3x4xf32>) {
  %0 = transformer.rope %x, %positions, %lengths {heads = 2 : i64, head_dim = 2 : i64, rotary_dim = 2 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {factor = 2.0 : f64, long_factor = [4.0 : f64], original_max_position_embeddings = 16 : i64, rope_type = "longrope", short_factor = [1.0 : f64]}} : (tensor<3x4xf32>, tensor<3xi32>, tensor<3xi32>) -> tensor<3x4xf32>
  %1 = transformer.rope %x, %positions, %lengths {heads = 1 : i64, head_dim = 4 : i64, rotary_dim = 2 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {factor = 2.0 : f64, long_factor = [4.0 : f64], original_max_position_embeddings = 16 : i64, rope_type = "longrope", short_factor = [1.0 : f64]}} : (tensor<3x4xf32>, tensor<3xi32>, tensor<3xi32>) -> tensor<3x4xf32>
  func.return %0, %1 : tensor<3x4xf32>, tensor<3x4xf32>
}

// Up to it, the short factors serve all positions.
// CHECK:      func.func @one_set
// CHECK-NEXT: %rope_table = transformer.rope_table {length = 32 : i64, {{.*}} : tensor<32x2xf32>
// CHECK-NEXT: transformer.rotate %x, %positions, %rope_table
func.func @one_set(%x : tensor<3x4xf32>, %positions : tensor<3xi32>, %lengths : tensor<3xi32>) -> tensor<3x4xf32> {
  %0 = transformer.rope %x, %positions, %lengths {heads = 2 : i64, head_dim = 2 : i64, rotary_dim = 2 : i64, style = "half", theta = 1.0e+04 : f64, scaling = {factor = 2.0 : f64, long_factor = [4.0 : f64], original_max_position_embeddings = 32 : i64, rope_type = "longrope", short_factor = [1.0 : f64]}} : (tensor<3x4xf32>, tensor<3xi32>, tensor<3xi32>) -> tensor<3x4xf32>
  func.return %0 : tensor<3x4xf32>
}
