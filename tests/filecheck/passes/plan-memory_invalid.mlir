// RUN: lamella-opt %s -p plan-memory --split-input-file --verify-diagnostics | filecheck %s

// CHECK: memref.alloc: an allocation of dynamic size, got memref<?xf32>
func.func @dynamic(%n: index) -> memref<?xf32> {
  %a = memref.alloc(%n) : memref<?xf32>
  func.return %a : memref<?xf32>
}

// -----

// CHECK: func.func @twice: the function is planned already
func.func @twice(%arena: memref<0xi8>) attributes {lamella.memory = {arena = 0 : i64}} {
  func.return
}
