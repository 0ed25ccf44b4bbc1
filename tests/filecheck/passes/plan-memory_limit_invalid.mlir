// RUN: lamella-opt %s -p 'plan-memory{max-arena=512}' --split-input-file --verify-diagnostics | filecheck %s

// Three buffers of 256 bytes are live at once: no order of placing them helps.
// CHECK: func.func @tokens, bucket of 16 tokens: the arena exceeds max-arena, expected at most 512 bytes, got 768 bytes in the best packing, 768 of them live at once (give the bucket fewer tokens, or allow 768 bytes)
func.func @tokens(%x: memref<64xf32>) attributes {lamella.bucket = {tokens = 16 : i64}} {
  %a = memref.alloc() : memref<64xf32>
  %b = memref.alloc() : memref<64xf32>
  %c = memref.alloc() : memref<64xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%a, %b, %c : memref<64xf32>, memref<64xf32>, memref<64xf32>)
  func.return
}

// -----

// CHECK: func.func @token, bucket of one token: the arena exceeds max-arena, expected at most 512 bytes, got 1024 bytes in the best packing, 1024 of them live at once (allow 1024 bytes)
func.func @token(%x: memref<64xf32>) attributes {lamella.bucket = {tokens = 1 : i64}} {
  %a = memref.alloc() : memref<256xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%a : memref<256xf32>)
  func.return
}
