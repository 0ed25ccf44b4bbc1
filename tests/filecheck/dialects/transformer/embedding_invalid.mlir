// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%tokens, %table = "test.op"() : () -> (tensor<?xi32, #transformer.dims<"N">>, tensor<8x6xf32>)
%0 = transformer.embedding %tokens, %table {loc = "embed"} : (tensor<?xi32, #transformer.dims<"N">>, tensor<8x6xf32>) -> tensor<?x5xf32, #transformer.dims<"N">>
// CHECK: transformer.embedding at embed: result has shape (N, 5), expected (N, 6), one row of table a token

// -----
%tokens, %table = "test.op"() : () -> (tensor<3xi32>, tensor<8x6xbf16>)
%0 = transformer.embedding %tokens, %table : (tensor<3xi32>, tensor<8x6xbf16>) -> tensor<3x6xf16>
// CHECK: transformer.embedding: result has element type f16, expected bf16, that of table

// -----
%tokens, %table = "test.op"() : () -> (tensor<?xi32>, tensor<8x6xf32>)
%0 = transformer.embedding %tokens, %table : (tensor<?xi32>, tensor<8x6xf32>) -> tensor<?x6xf32>
// CHECK: transformer.embedding: tokens has 1 dynamic dimensions and 0 names, expected one name each

// -----
%x, %rows = "test.op"() : () -> (tensor<?x6xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"R">>)
%0 = transformer.gather_rows %x, %rows {loc = "logit_rows"} : (tensor<?x6xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"R">>) -> tensor<?x6xf32, #transformer.dims<"N">>
// CHECK: transformer.gather_rows at logit_rows: result has shape (N, 6), expected (R, 6), one row of x an index

// -----
%x, %rows = "test.op"() : () -> (tensor<f32>, tensor<2xi32>)
%0 = transformer.gather_rows %x, %rows : (tensor<f32>, tensor<2xi32>) -> tensor<2xf32>
// CHECK: transformer.gather_rows: x has rank 0, expected rows to gather

// -----
%x, %rows = "test.op"() : () -> (tensor<4x6xf32>, tensor<2x1xi32>)
%0 = transformer.gather_rows %x, %rows : (tensor<4x6xf32>, tensor<2x1xi32>) -> tensor<2x6xf32>
// CHECK: transformer.gather_rows: rows has shape (2, 1), expected 1 axes

// -----
%x, %columns = "test.op"() : () -> (tensor<3x6xf32>, tensor<4xi32>)
%0 = transformer.gather_columns %x, %columns {loc = "layers.0.attn.o"} : (tensor<3x6xf32>, tensor<4xi32>) -> tensor<3x6xf32>
// CHECK: transformer.gather_columns at layers.0.attn.o: result has shape (3, 6), expected (3, 4), one column of x an index

// -----
%x, %columns = "test.op"() : () -> (tensor<3x6xf32, #transformer.layout<head = 6, paired = 6>>, tensor<6xi32>)
%0 = transformer.gather_columns %x, %columns : (tensor<3x6xf32, #transformer.layout<head = 6, paired = 6>>, tensor<6xi32>) -> tensor<3x6xf32>
// CHECK: transformer.gather_columns: x lies in pairs of 6 in heads of 6, expected plain order, in which columns are counted
