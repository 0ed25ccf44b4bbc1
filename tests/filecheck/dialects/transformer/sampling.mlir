// RUN: lamella-opt %s | lamella-opt | filecheck %s

%logits, %t, %k, %x = "test.op"() : () -> (tensor<?x257xf32, #transformer.dims<"R">>, tensor<?xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>, tensor<4xi32>)
// CHECK: %0 = transformer.sample %logits, %t, %k, %t, %t, %k, %k {loc = "sample"} : (tensor<?x257xf32, #transformer.dims<"R">>, tensor<?xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>, tensor<?xf32, #transformer.dims<"R">>, tensor<?xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>) -> tensor<?xi32, #transformer.dims<"R">>
%0 = transformer.sample %logits, %t, %k, %t, %t, %k, %k {loc = "sample"} : (tensor<?x257xf32, #transformer.dims<"R">>, tensor<?xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>, tensor<?xf32, #transformer.dims<"R">>, tensor<?xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>) -> tensor<?xi32, #transformer.dims<"R">>
// CHECK-NEXT: %1 = transformer.advance %x : (tensor<4xi32>) -> tensor<4xi32>
%1 = transformer.advance %x : (tensor<4xi32>) -> tensor<4xi32>
%f = "test.op"() : () -> tensor<?x257xf32, #transformer.dims<"R">>
// CHECK: %2 = transformer.penalize %logits, %f {loc = "penalize"} : (tensor<?x257xf32, #transformer.dims<"R">>, tensor<?x257xf32, #transformer.dims<"R">>) -> tensor<?x257xf32, #transformer.dims<"R">>
%2 = transformer.penalize %logits, %f {loc = "penalize"} : (tensor<?x257xf32, #transformer.dims<"R">>, tensor<?x257xf32, #transformer.dims<"R">>) -> tensor<?x257xf32, #transformer.dims<"R">>
// CHECK-NEXT: %3 = transformer.mark %f, %k, %t {loc = "factors"} : (tensor<?x257xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>, tensor<?xf32, #transformer.dims<"R">>) -> tensor<?x257xf32, #transformer.dims<"R">>
%3 = transformer.mark %f, %k, %t {loc = "factors"} : (tensor<?x257xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>, tensor<?xf32, #transformer.dims<"R">>) -> tensor<?x257xf32, #transformer.dims<"R">>
