// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%0 = transformer.weight "embed" : tensor<?x6xf32, #transformer.dims<"N">>
// CHECK: transformer.weight: embed has shape (N, 6), expected static dimensions

// -----
%0 = transformer.weight "embed" layout ["pair_rows"] : tensor<8x6xf32>
// CHECK: transformer.weight: layout of embed has the step "pair_rows", expected ["name", {options}]

// -----
%0 = transformer.weight "embed" : tensor<8x6xi32>
// CHECK: type is tensor<8x6xi32>, expected a tensor of f32 or f16 or bf16
