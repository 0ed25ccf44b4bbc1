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

// Of packed words the rows of tokens alone are unpacked, and rounded once.
func.func @packed(%tokens : tensor<?xi32, #transformer.dims<"N">>) -> tensor<?x8xbf16, #transformer.dims<"N">> {
  %words = transformer.weight "embed.packed" : tensor<9x2xi32>
  %scales = transformer.weight "embed.scales" : tensor<9x1xbf16>
  %table = transformer.dequantize %words, %scales {packing = #transformer.packing<int8, group = 8>} : (tensor<9x2xi32>, tensor<9x1xbf16>) -> tensor<9x8xf32>
  // CHECK: %x = transformer.embedding %tokens, %table {loc = "embed"} : (tensor<?xi32, #transformer.dims<"N">>, tensor<9x8xf32>) -> tensor<?x8xbf16, #transformer.dims<"N">>
  %x = transformer.embedding %tokens, %table {loc = "embed"} : (tensor<?xi32, #transformer.dims<"N">>, tensor<9x8xf32>) -> tensor<?x8xbf16, #transformer.dims<"N">>
  func.return %x : tensor<?x8xbf16, #transformer.dims<"N">>
}

func.func @columns(%x : tensor<?x6xbf16, #transformer.dims<"N">>) -> tensor<?x4xbf16, #transformer.dims<"N">> {
  %columns = transformer.weight "layers.0.ffn.down_proj.columns" : tensor<4xi32>
  // CHECK: %y = transformer.gather_columns %x, %columns {loc = "layers.0.ffn.down"} : (tensor<?x6xbf16, #transformer.dims<"N">>, tensor<4xi32>) -> tensor<?x4xbf16, #transformer.dims<"N">>
  %y = transformer.gather_columns %x, %columns {loc = "layers.0.ffn.down"} : (tensor<?x6xbf16, #transformer.dims<"N">>, tensor<4xi32>) -> tensor<?x4xbf16, #transformer.dims<"N">>
  func.return %y : tensor<?x4xbf16, #transformer.dims<"N">>
}
