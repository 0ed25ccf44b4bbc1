// RUN: lamella-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: host.launch at layers.0: grid of @k is [4, 1], expected three sizes of 1 or more
func.func @axes(%x: memref<4xf32>) {
  host.launch @k grid [4, 1] outs(%x : memref<4xf32>) {loc = "layers.0"}
  func.return
}

// -----

// CHECK: host.launch: grid of @k is [0, 1, 1], expected three sizes of 1 or more
func.func @empty(%x: memref<4xf32>) {
  host.launch @k grid [0, 1, 1] outs(%x : memref<4xf32>)
  func.return
}

// -----

// CHECK: host.launch: launch of @k stores nothing, expected at least one of outs
func.func @idle(%x: memref<4xf32>) {
  host.launch @k grid [1, 1, 1] ins(%x : memref<4xf32>)
  func.return
}
