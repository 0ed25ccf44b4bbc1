// RUN: lamella-opt %s -p 'split-reductions{on=true}' | filecheck %s
// RUN: lamella-opt %s -p 'split-reductions{on=true arch=sm_90}' | lamella-opt | filecheck %s
// RUN: lamella-opt %s -p split-reductions | filecheck %s --check-prefix=OFF

// OFF-NOT: add_columns

// The IR of the pass's docstring, with what is around it: a product by bytes, whose programs have two columns each, its squares, and a scale behind the next product.
// CHECK-LABEL: func.func @norm
// CHECK-SAME:    lamella.folds = [{kind = "reduction", reason = "each program of the product before adds up the columns that it makes, and the products behind add up those sums", verdict = "divided", what = "norm"}]
// CHECK:         %q = tile.map "square"(%h)
// CHECK-NEXT:    %column_sums = tile.add_columns %q by 2 : i64 {loc = "norm"} : tensor<1x512xf32> -> tensor<1x256xf32>
// CHECK-NEXT:    %r = tile.reduce "sum" %column_sums {loc = "norm"} : tensor<1x256xf32> -> tensor<1x1xf32>
func.func @norm(%x: tensor<1x512xbf16>, %words: tensor<512x128xi32>, %scales: tensor<512x1xbf16>, %residual: tensor<1x512xf32>) -> tensor<1x512xf32> {
  %w = tile.dequantize %words, %scales as <int8, group = 512> : tensor<512x128xi32>, tensor<512x1xbf16> -> tensor<512x512xf32>
  %p = tile.contract %x, %w : tensor<1x512xbf16>, tensor<512x512xf32> -> tensor<1x512xf32>
  %h = tile.map "add"(%p, %residual) : tensor<1x512xf32>, tensor<1x512xf32> -> tensor<1x512xf32>
  %b = tile.cast %h : tensor<1x512xf32> -> tensor<1x512xbf16>
  %q = tile.map "square"(%h) : tensor<1x512xf32> -> tensor<1x512xf32>
  %r = tile.reduce "sum" %q {loc = "norm"} : tensor<1x512xf32> -> tensor<1x1xf32>
  %s = tile.map "rsqrt"(%r) : tensor<1x1xf32> -> tensor<1x1xf32>
  %v = tile.dequantize %words, %scales as <int8, group = 512> : tensor<512x128xi32>, tensor<512x1xbf16> -> tensor<512x512xf32>
  %c = tile.contract %b, %v : tensor<1x512xbf16>, tensor<512x512xf32> -> tensor<1x512xf32>
  %y = tile.map "mul"(%c, %s) : tensor<1x512xf32>, tensor<1x1xf32> -> tensor<1x512xf32>
  func.return %y : tensor<1x512xf32>
}

// A scale in front of the product is needed by its programs before they multiply; a row that the caller hands over is made by no product; floats have no runs.
// CHECK-LABEL: func.func @in_front
// CHECK-NOT:     add_columns
// CHECK:         func.return
func.func @in_front(%x: tensor<1x512xbf16>, %words: tensor<512x128xi32>, %scales: tensor<512x1xbf16>) -> tensor<1x512xf32> {
  %w = tile.dequantize %words, %scales as <int8, group = 512> : tensor<512x128xi32>, tensor<512x1xbf16> -> tensor<512x512xf32>
  %h = tile.contract %x, %w : tensor<1x512xbf16>, tensor<512x512xf32> -> tensor<1x512xf32>
  %q = tile.map "square"(%h) : tensor<1x512xf32> -> tensor<1x512xf32>
  %r = tile.reduce "sum" %q : tensor<1x512xf32> -> tensor<1x1xf32>
  %n = tile.map "mul"(%h, %r) : tensor<1x512xf32>, tensor<1x1xf32> -> tensor<1x512xf32>
  %b = tile.cast %n : tensor<1x512xf32> -> tensor<1x512xbf16>
  %v = tile.dequantize %words, %scales as <int8, group = 512> : tensor<512x128xi32>, tensor<512x1xbf16> -> tensor<512x512xf32>
  %c = tile.contract %b, %v : tensor<1x512xbf16>, tensor<512x512xf32> -> tensor<1x512xf32>
  func.return %c : tensor<1x512xf32>
}

// CHECK-LABEL: func.func @others
// CHECK-NOT:     add_columns
// CHECK:         func.return
func.func @others(%x: tensor<1x512xbf16>, %floats: tensor<512x512xbf16>, %words: tensor<512x128xi32>, %scales: tensor<512x1xbf16>) -> (tensor<1x512xf32>, tensor<1x512xf32>) {
  %v = tile.dequantize %words, %scales as <int8, group = 512> : tensor<512x128xi32>, tensor<512x1xbf16> -> tensor<512x512xf32>
  %xf = tile.cast %x : tensor<1x512xbf16> -> tensor<1x512xf32>
  %q = tile.map "square"(%xf) : tensor<1x512xf32> -> tensor<1x512xf32>
  %r = tile.reduce "sum" %q : tensor<1x512xf32> -> tensor<1x1xf32>
  %c = tile.contract %x, %v : tensor<1x512xbf16>, tensor<512x512xf32> -> tensor<1x512xf32>
  %y = tile.map "mul"(%c, %r) : tensor<1x512xf32>, tensor<1x1xf32> -> tensor<1x512xf32>
  %h = tile.contract %x, %floats : tensor<1x512xbf16>, tensor<512x512xbf16> -> tensor<1x512xf32>
  %b = tile.cast %h : tensor<1x512xf32> -> tensor<1x512xbf16>
  %qf = tile.map "square"(%h) : tensor<1x512xf32> -> tensor<1x512xf32>
  %rf = tile.reduce "sum" %qf : tensor<1x512xf32> -> tensor<1x1xf32>
  %u = tile.dequantize %words, %scales as <int8, group = 512> : tensor<512x128xi32>, tensor<512x1xbf16> -> tensor<512x512xf32>
  %d = tile.contract %b, %u : tensor<1x512xbf16>, tensor<512x512xf32> -> tensor<1x512xf32>
  %z = tile.map "mul"(%d, %rf) : tensor<1x512xf32>, tensor<1x1xf32> -> tensor<1x512xf32>
  func.return %y, %z : tensor<1x512xf32>, tensor<1x512xf32>
}
