// RUN: lamella-opt %s | lamella-opt | filecheck %s

// CHECK: func.func @rows(%tokens: tensor<?xi32, #transformer.dims<"N">>, %rows: tensor<?xi32, #transformer.dims<"R">>)
func.func @rows(%tokens : tensor<?xi32, #transformer.dims<"N">>, %rows : tensor<?xi32, #transformer.dims<"R">>) -> (tensor<?x6xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>) {
  %table = transformer.weight "embed" : tensor<8x6xf32>
  // CHECK: %x = transformer.embedding %tokens, %table {loc = "embed"} : (tensor<?xi32, #transformer.dims<"N">>, tensor<8x6xf32>) -> tensor<?x6xf32, #transformer.dims<"N">>
  %x = transformer.embedding %tokens, %table {loc = "embed"} : (tensor<?xi32, #transformer.dims<"N">>, tensor<8x6xf32>) -> tensor<?x6xf32, #transformer.dims<"N">>
  // CHECK-NEXT: %y = transformer.gather_rows %x, %rows : (tensor<?x6xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"R">>) -> tensor<?x6xf32, #transformer.dims<"R">>
  %y = transformer.gather_rows %x, %rows : (tensor<?x6xf32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"R">>) -> tensor<?x6xf32, #transformer.dims<"R">>
  // CHECK-NEXT: %ids = transformer.gather_rows %tokens, %rows : (tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"R">>) -> tensor<?xi32, #transformer.dims<"R">>
  %ids = transformer.gather_rows %tokens, %rows : (tensor<?xi32, #transformer.dims<"N">>, tensor<?xi32, #transformer.dims<"R">>) -> tensor<?xi32, #transformer.dims<"R">>
  func.return %y, %ids : tensor<?x6xf32, #transformer.dims<"R">>, tensor<?xi32, #transformer.dims<"R">>
}
