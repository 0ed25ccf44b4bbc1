// RUN: lamella-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: tile.route at route: logits have shape (3, 5), expected a matrix with at least top_k = 6 columns
func.func @more(%logits: tensor<3x5xf32>) {
  %weights, %chosen = tile.route %logits top 6 : i64 normalized true {loc = "route"} : tensor<3x5xf32> -> tensor<3x6xf32>, tensor<3x6xi32>
  func.return
}

// -----

// CHECK: tile.route: chosen has shape (3, 1), expected (3, 2)
func.func @results(%logits: tensor<3x5xf32>) {
  %weights, %chosen = tile.route %logits top 2 : i64 normalized false : tensor<3x5xf32> -> tensor<3x2xf32>, tensor<3x1xi32>
  func.return
}

// -----

// CHECK: tile.contract_experts: weight has shape (20, 7), expected (_, 8), the last axis of x
func.func @inner(%x: tensor<3x8xf32>, %w: tensor<20x7xf32>, %c: tensor<3x2xi32>) {
  %y = tile.contract_experts %x, %w by %c of 5 : i64 : tensor<3x8xf32>, tensor<20x7xf32>, tensor<3x2xi32> -> tensor<6x4xf32>
  func.return
}

// -----

// CHECK: tile.contract_experts: weight has shape (20, 8), expected rows in 6 equal parts, one an expert
func.func @parts(%x: tensor<3x8xf32>, %w: tensor<20x8xf32>, %c: tensor<3x2xi32>) {
  %y = tile.contract_experts %x, %w by %c of 6 : i64 : tensor<3x8xf32>, tensor<20x8xf32>, tensor<3x2xi32> -> tensor<6x4xf32>
  func.return
}

// -----

// CHECK: tile.contract_experts: x has shape (4, 8), expected a number of rows that divides 6, the choices
func.func @rows(%x: tensor<4x8xf32>, %w: tensor<20x8xf32>, %c: tensor<3x2xi32>) {
  %y = tile.contract_experts %x, %w by %c of 5 : i64 : tensor<4x8xf32>, tensor<20x8xf32>, tensor<3x2xi32> -> tensor<6x4xf32>
  func.return
}

// -----

// CHECK: tile.contract_experts: chosen has element type f32, expected i32
func.func @index(%x: tensor<3x8xf32>, %w: tensor<20x8xf32>, %c: tensor<3x2xf32>) {
  %y = tile.contract_experts %x, %w by %c of 5 : i64 : tensor<3x8xf32>, tensor<20x8xf32>, tensor<3x2xf32> -> tensor<6x4xf32>
  func.return
}

// -----

// CHECK: tile.contract_experts: weight has element type bf16, expected f32, that of x, or f32
func.func @element(%x: tensor<3x8xf32>, %w: tensor<20x8xbf16>, %c: tensor<3x2xi32>) {
  %y = tile.contract_experts %x, %w by %c of 5 : i64 : tensor<3x8xf32>, tensor<20x8xbf16>, tensor<3x2xi32> -> tensor<6x4xf32>
  func.return
}

// -----

// CHECK: tile.contract_experts: result has shape (6, 5), expected (6, 4)
func.func @result(%x: tensor<3x8xf32>, %w: tensor<20x8xf32>, %c: tensor<3x2xi32>) {
  %y = tile.contract_experts %x, %w by %c of 5 : i64 : tensor<3x8xf32>, tensor<20x8xf32>, tensor<3x2xi32> -> tensor<6x5xf32>
  func.return
}

// -----

// CHECK: tile.add_rows: x has shape (6, 4), expected a matrix with a multiple of 4 rows
func.func @sum(%x: tensor<6x4xf32>) {
  %y = tile.add_rows %x by 4 : i64 : tensor<6x4xf32> -> tensor<1x4xf32>
  func.return
}

// -----

// CHECK: tile.add_rows: result has shape (2, 4), expected (3, 4)
func.func @sums(%x: tensor<6x4xf32>) {
  %y = tile.add_rows %x by 2 : i64 : tensor<6x4xf32> -> tensor<2x4xf32>
  func.return
}

// -----

// CHECK: tile.sort_choices: chosen has type tensor<3x2xf32>, expected a matrix of i32
func.func @floats(%chosen: tensor<3x2xf32>) {
  %order = tile.sort_choices %chosen : tensor<3x2xf32> -> tensor<6xi32>
  func.return
}

// -----

// CHECK: tile.sort_choices: result has type tensor<5xi32>, expected 6 numbers of i32
func.func @fewer(%chosen: tensor<3x2xi32>) {
  %order = tile.sort_choices %chosen : tensor<3x2xi32> -> tensor<5xi32>
  func.return
}

// -----

// CHECK: tile.contract_experts: order has type tensor<3xi32>, expected 6 numbers of i32
func.func @order(%x: tensor<3x8xf32>, %w: tensor<20x8xf32>, %chosen: tensor<3x2xi32>, %order: tensor<3xi32>) {
  %y = tile.contract_experts %x, %w by %chosen in %order of 5 : i64 : tensor<3x8xf32>, tensor<20x8xf32>, tensor<3x2xi32>, tensor<3xi32> -> tensor<6x4xf32>
  func.return
}
