// RUN: lamella-opt %s | lamella-opt | filecheck %s
// RUN: lamella-opt %s --print-op-generic | lamella-opt | filecheck %s
// RUN: lamella-opt %s -p 'canonicalize,cse,dce' | filecheck %s

func.func @calls(%x: memref<5x8xbf16>, %w: memref<3x8xbf16>, %b: memref<3xbf16>, %y: memref<5x3xbf16>) {
  // CHECK: host.library_matmul "t5_library_0" %x by %w into %y : memref<5x8xbf16>, memref<3x8xbf16> into memref<5x3xbf16>
  host.library_matmul "t5_library_0" %x by %w into %y : memref<5x8xbf16>, memref<3x8xbf16> into memref<5x3xbf16>
  // CHECK-NEXT: host.library_matmul "t5_library_1" %x by %w plus %b into %y {loc = "layers.0.attn.q"} : memref<5x8xbf16>, memref<3x8xbf16> plus memref<3xbf16> into memref<5x3xbf16>
  host.library_matmul "t5_library_1" %x by %w plus %b into %y {loc = "layers.0.attn.q"} : memref<5x8xbf16>, memref<3x8xbf16> plus memref<3xbf16> into memref<5x3xbf16>
  // CHECK-NEXT: host.library_matmul "t5_library_2" %x by %w plus %y into %y : memref<5x8xbf16>, memref<3x8xbf16> plus memref<5x3xbf16> into memref<5x3xbf16>
  host.library_matmul "t5_library_2" %x by %w plus %y into %y : memref<5x8xbf16>, memref<3x8xbf16> plus memref<5x3xbf16> into memref<5x3xbf16>
  // CHECK-NEXT: host.launch @t5_row_0 grid [5, 1, 1] ins(%y : memref<5x3xbf16>) outs(%y : memref<5x3xbf16>) {ordered}
  host.launch @t5_row_0 grid [5, 1, 1] ins(%y : memref<5x3xbf16>) outs(%y : memref<5x3xbf16>) {ordered}
  func.return
}
