// RUN: lamella-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: host.weight: weight embed has type memref<?x16xf32>, expected a static shape
%w = host.weight "embed" : memref<?x16xf32>

// -----

// CHECK: host.constant: constant table has type memref<?xf32>, expected a static shape
%t = host.constant "table" {op = "transformer.rope_table", arguments = {}} : memref<?xf32>

// -----

// CHECK: tensor<16xf32> should be of base attribute memref
%w = host.weight "embed" : tensor<16xf32>
