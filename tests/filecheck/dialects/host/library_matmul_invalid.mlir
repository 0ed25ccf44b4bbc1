// RUN: lamella-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: host.library_matmul at layers.0: x and weight have shapes (5, 8) and (3, 7), expected (M, K) and (O, K)
func.func @k(%x: memref<5x8xbf16>, %w: memref<3x7xbf16>, %y: memref<5x3xbf16>) {
  host.library_matmul "a" %x by %w into %y {loc = "layers.0"} : memref<5x8xbf16>, memref<3x7xbf16> into memref<5x3xbf16>
  func.return
}

// -----

// CHECK: host.library_matmul: the result has shape (3, 5), expected (5, 3)
func.func @result(%x: memref<5x8xbf16>, %w: memref<3x8xbf16>, %y: memref<3x5xbf16>) {
  host.library_matmul "a" %x by %w into %y : memref<5x8xbf16>, memref<3x8xbf16> into memref<3x5xbf16>
  func.return
}

// -----

// CHECK: host.library_matmul: the addend has shape (5,), expected (5, 3), a residual, or (3,), a bias
func.func @addend(%x: memref<5x8xbf16>, %w: memref<3x8xbf16>, %b: memref<5xbf16>, %y: memref<5x3xbf16>) {
  host.library_matmul "a" %x by %w plus %b into %y : memref<5x8xbf16>, memref<3x8xbf16> plus memref<5xbf16> into memref<5x3xbf16>
  func.return
}

// -----

// CHECK: host.library_matmul: element types are bf16, f32, expected bf16 or f16 of all
func.func @types(%x: memref<5x8xbf16>, %w: memref<3x8xbf16>, %y: memref<5x3xf32>) {
  host.library_matmul "a" %x by %w into %y : memref<5x8xbf16>, memref<3x8xbf16> into memref<5x3xf32>
  func.return
}
