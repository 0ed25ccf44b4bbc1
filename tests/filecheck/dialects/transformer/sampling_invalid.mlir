// RUN: lamella-opt %s --verify-diagnostics --split-input-file | filecheck %s

%logits, %t, %k, %s = "test.op"() : () -> (tensor<?x257xf32, #transformer.dims<"R">>, tensor<?xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"N">>)
%0 = transformer.sample %logits, %t, %k, %t, %t, %s, %k {loc = "sample"} : (tensor<?x257xf32, #transformer.dims<"R">>, tensor<?xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>, tensor<?xf32, #transformer.dims<"R">>, tensor<?xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"R">>) -> tensor<?xi32, #transformer.dims<"R">>
// CHECK: transformer.sample at sample: seed has shape (N,), expected (R,), the rows of logits

// -----
%logits, %t, %k = "test.op"() : () -> (tensor<2x257xf32>, tensor<2xf32>, tensor<2xi32>)
%0 = transformer.sample %logits, %t, %k, %t, %t, %k, %k : (tensor<2x257xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi32>, tensor<2xi32>) -> tensor<3xi32>
// CHECK: transformer.sample: result has shape (3,), expected (2,), the rows of logits

// -----
%x = "test.op"() : () -> tensor<2xi32>
%0 = transformer.advance %x : (tensor<2xi32>) -> tensor<3xi32>
// CHECK: transformer.advance: result has shape (3,), expected (2,), the shape of x

// -----
%l, %f = "test.op"() : () -> (tensor<2x257xf32>, tensor<2x256xf32>)
%0 = transformer.penalize %l, %f {loc = "penalize"} : (tensor<2x257xf32>, tensor<2x256xf32>) -> tensor<2x257xf32>
// CHECK: transformer.penalize at penalize: factors has shape (2, 256), expected (2, 257), the shape of logits

// -----
%f, %t, %p = "test.op"() : () -> (tensor<2x257xf32>, tensor<3xi32>, tensor<2xf32>)
%0 = transformer.mark %f, %t, %p : (tensor<2x257xf32>, tensor<3xi32>, tensor<2xf32>) -> tensor<2x257xf32>
// CHECK: transformer.mark: tokens has shape (3,), expected (2,), the rows of factors
