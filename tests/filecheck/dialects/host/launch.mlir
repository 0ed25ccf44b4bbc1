// RUN: lamella-opt %s | lamella-opt | filecheck %s
// RUN: lamella-opt %s --print-op-generic | lamella-opt | filecheck %s
// RUN: lamella-opt %s -p 'canonicalize,cse,dce' | filecheck %s

func.func @launches(%x: memref<4xf32>, %y: memref<4xf32>) {
  // CHECK: host.launch @t4_row_0 grid [4, 1, 1] ins(%x : memref<4xf32>) outs(%y : memref<4xf32>) {loc = "layers.0.attn"}
  host.launch @t4_row_0 grid [4, 1, 1] ins(%x : memref<4xf32>) outs(%y : memref<4xf32>) {loc = "layers.0.attn"}
  // CHECK-NEXT: host.launch @t4_row_0 grid [4, 1, 1] ins(%x : memref<4xf32>) outs(%y : memref<4xf32>) {loc = "layers.0.attn"}
  host.launch @t4_row_0 grid [4, 1, 1] ins(%x : memref<4xf32>) outs(%y : memref<4xf32>) {loc = "layers.0.attn"}
  // CHECK-NEXT: host.launch @t4_row_1 grid [2, 3, 1] outs(%x, %y : memref<4xf32>, memref<4xf32>)
  host.launch @t4_row_1 grid [2, 3, 1] outs(%x, %y : memref<4xf32>, memref<4xf32>)
  func.return
}
