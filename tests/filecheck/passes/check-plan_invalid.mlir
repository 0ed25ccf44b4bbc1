// RUN: lamella-opt %s -p check-plan --split-input-file --verify-diagnostics | filecheck %s

// CHECK: plan of @overlap: %a at [0, 256) and %b at [0, 128) overlap, and both are live at launch 2 (host.launch at layers.0.down); %a is accessed from launch 0 (host.launch) to launch 2 (host.launch at layers.0.down), %b is accessed from launch 1 (host.launch at layers.0.up) to launch 2 (host.launch at layers.0.down)
func.func @overlap(%x: memref<64xf32>, %arena: memref<512xi8>) attributes {lamella.memory = {}} {
  %0 = arith.constant 0 : index
  %a = memref.view %arena[%0][] : memref<512xi8> to memref<64xf32>
  %b = memref.view %arena[%0][] : memref<512xi8> to memref<32xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%a : memref<64xf32>)
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%b : memref<32xf32>) {loc = "layers.0.up"}
  host.launch @k grid [1, 1, 1] ins(%a, %b : memref<64xf32>, memref<32xf32>) outs(%x : memref<64xf32>) {loc = "layers.0.down"}
  func.return
}

// -----

// A launch must not store over what it reads elsewhere: ranges are closed.
// CHECK: plan of @closed: %a at [0, 256) and %b at [0, 256) overlap, and both are live at launch 1 (host.launch)
func.func @closed(%x: memref<64xf32>, %arena: memref<256xi8>) -> memref<64xf32> attributes {lamella.memory = {}} {
  %0 = arith.constant 0 : index
  %a = memref.view %arena[%0][] : memref<256xi8> to memref<64xf32>
  %b = memref.view %arena[%0][] : memref<256xi8> to memref<64xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%a : memref<64xf32>)
  host.launch @k grid [1, 1, 1] ins(%a : memref<64xf32>) outs(%b : memref<64xf32>)
  func.return %b : memref<64xf32>
}

// -----

// CHECK: plan of @returned: %a at [0, 256) and %b at [0, 256) overlap, and both are live at launch 1 (host.launch)
func.func @returned(%x: memref<64xf32>, %arena: memref<256xi8>) -> memref<64xf32> attributes {lamella.memory = {}} {
  %0 = arith.constant 0 : index
  %a = memref.view %arena[%0][] : memref<256xi8> to memref<64xf32>
  %b = memref.view %arena[%0][] : memref<256xi8> to memref<64xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%a : memref<64xf32>)
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%b : memref<64xf32>)
  func.return %a : memref<64xf32>
}

// -----

// CHECK: plan of @outside: %a at [256, 512) lies outside of the arena of 256 bytes
func.func @outside(%x: memref<64xf32>, %arena: memref<256xi8>) attributes {lamella.memory = {}} {
  %0 = arith.constant 256 : index
  %a = memref.view %arena[%0][] : memref<256xi8> to memref<64xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%a : memref<64xf32>)
  func.return
}

// -----

// CHECK: plan of @unaligned: %a at [4, 260) is not aligned to 256 bytes
func.func @unaligned(%x: memref<64xf32>, %arena: memref<512xi8>) attributes {lamella.memory = {}} {
  %0 = arith.constant 4 : index
  %a = memref.view %arena[%0][] : memref<512xi8> to memref<64xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%a : memref<64xf32>)
  func.return
}

// -----

// CHECK: plan of @unwritten: %a is read before anything is written to it
func.func @unwritten(%x: memref<64xf32>, %arena: memref<512xi8>) attributes {lamella.memory = {}} {
  %0 = arith.constant 0 : index
  %a = memref.view %arena[%0][] : memref<512xi8> to memref<64xf32>
  host.launch @k grid [1, 1, 1] ins(%a : memref<64xf32>) outs(%x : memref<64xf32>)
  func.return
}

// -----

// CHECK: plan of @claims: lamella.memory says buffers = 0, but there are 256 bytes
func.func @claims(%x: memref<64xf32>, %arena: memref<512xi8>) attributes {lamella.memory = {buffers = 0 : i64}} {
  %0 = arith.constant 0 : index
  %a = memref.view %arena[%0][] : memref<512xi8> to memref<64xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%a : memref<64xf32>)
  func.return
}

// -----

// CHECK: memref.alloc: an allocation outside of the arena in plan of @left
func.func @left(%arena: memref<512xi8>) attributes {lamella.memory = {}} {
  %a = memref.alloc() : memref<64xf32>
  func.return
}

// -----

// CHECK: plan of @none: the last argument is no arena, expected memref<BYTESxi8>
func.func @none(%x: memref<512xf32>) attributes {lamella.memory = {}} {
  func.return
}

// -----

// CHECK: plan of @limit: lamella.memory says limit = 256, but the arena has 512 bytes
func.func @limit(%x: memref<64xf32>, %arena: memref<512xi8>) attributes {lamella.memory = {arena = 512 : i64, limit = 256 : i64}} {
  %0 = arith.constant 256 : index
  %a = memref.view %arena[%0][] : memref<512xi8> to memref<64xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%a : memref<64xf32>)
  func.return
}

// -----

// CHECK: plan of @decode: tile.fused at q is a call of a library in a decode step
func.func @decode(%x: memref<5x8xbf16>, %w: memref<3x8xbf16>, %arena: memref<256xi8>) attributes {lamella.memory = {}, lamella.bucket = {advance = true}, lamella.library = {tokens = 1 : i64}} {
  %0 = arith.constant 0 : index
  %y = memref.view %arena[%0][] : memref<256xi8> to memref<5x3xbf16>
  tile.fused schedule <library, {}> ins(%x, %w : memref<5x8xbf16>, memref<3x8xbf16>) outs(%y : memref<5x3xbf16>) attributes {loc = "q"} {
  ^bb0(%a: tensor<5x8xbf16>, %b: tensor<3x8xbf16>):
    %c = tile.contract %a, %b {implementation = "library"} : tensor<5x8xbf16>, tensor<3x8xbf16> -> tensor<5x3xf32>
    %d = tile.cast %c : tensor<5x3xf32> -> tensor<5x3xbf16>
    tile.yield %d : tensor<5x3xbf16>
  }
  func.return
}

// -----

// CHECK: plan of @few: tile.fused at q is a call of a library for 5 rows, expected at least 512
func.func @few(%x: memref<5x8xbf16>, %w: memref<3x8xbf16>, %arena: memref<256xi8>) attributes {lamella.memory = {}, lamella.library = {tokens = 512 : i64}} {
  %0 = arith.constant 0 : index
  %y = memref.view %arena[%0][] : memref<256xi8> to memref<5x3xbf16>
  tile.fused schedule <library, {}> ins(%x, %w : memref<5x8xbf16>, memref<3x8xbf16>) outs(%y : memref<5x3xbf16>) attributes {loc = "q"} {
  ^bb0(%a: tensor<5x8xbf16>, %b: tensor<3x8xbf16>):
    %c = tile.contract %a, %b {implementation = "library"} : tensor<5x8xbf16>, tensor<3x8xbf16> -> tensor<5x3xf32>
    %d = tile.cast %c : tensor<5x3xf32> -> tensor<5x3xbf16>
    tile.yield %d : tensor<5x3xbf16>
  }
  func.return
}
