// RUN: lamella-opt %s -p 'check-plan{report=true}' | filecheck %s

// CHECK: // @shares: arena 512 bytes, buffers 768, max live 512
// CHECK: func.func @shares
func.func @shares(%x: memref<64xf32>, %arena: memref<512xi8>) -> memref<64xf32> attributes {lamella.memory = {arena = 512 : i64, buffers = 768 : i64}} {
  %0 = arith.constant 0 : index
  %1 = arith.constant 256 : index
  %a = memref.view %arena[%0][] : memref<512xi8> to memref<64xf32>
  %b = memref.view %arena[%1][] : memref<512xi8> to memref<64xbf16>
  %c = memref.view %arena[%0][] : memref<512xi8> to memref<64xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%a : memref<64xf32>)
  host.launch @k grid [1, 1, 1] ins(%a : memref<64xf32>) outs(%b : memref<64xbf16>)
  host.launch @k grid [1, 1, 1] ins(%b : memref<64xbf16>) outs(%c : memref<64xf32>)
  func.return %c : memref<64xf32>
}
