// RUN: lamella-opt %s -p fuse-regions | filecheck %s --check-prefix=ALL
// RUN: lamella-opt %s -p 'fuse-regions{prologue=false}' | filecheck %s --check-prefix=PROLOGUE
// RUN: lamella-opt %s -p 'fuse-regions{epilogue=false}' | filecheck %s --check-prefix=EPILOGUE
// RUN: lamella-opt %s -p 'fuse-regions{horizontal=false}' | filecheck %s --check-prefix=HORIZONTAL
// RUN: lamella-opt %s -p 'fuse-regions{vertical=false prologue=false}' | filecheck %s --check-prefix=VERTICAL
// RUN: lamella-opt %s -p 'fuse-regions{vertical=false horizontal=false epilogue=false prologue=false shared=false siblings=false}' | filecheck %s --check-prefix=NONE
// RUN: lamella-opt %s -p 'fuse-regions{max-depth=0}' | filecheck %s --check-prefix=NONE
// RUN: lamella-opt %s -p 'fuse-regions{max-depth=0}' | filecheck %s --check-prefix=DEPTH0
// RUN: lamella-opt %s -p 'fuse-regions{max-depth=1}' | filecheck %s --check-prefix=DEPTH1
// RUN: lamella-opt %s -p 'fuse-regions{max-depth=2}' | filecheck %s --check-prefix=DEPTH2
// RUN: lamella-opt %s -p 'fuse-regions{max-depth=5}' | filecheck %s --check-prefix=ALL
// RUN: lamella-opt %s -p 'fuse-regions{max-registers=20}' | filecheck %s --check-prefix=REGISTERS
// RUN: lamella-opt %s -p 'fuse-regions{arch=sm_80}' | filecheck %s --check-prefix=ALL

// Each option takes one step away. All of them: the norm, both contractions and the activation are one region.
// ALL:      tile.fused
// ALL-NOT:  tile.fused
// ALL:      func.return

// PROLOGUE:      %normal = tile.fused ins(%x :
// PROLOGUE:        = tile.map "mul"
// PROLOGUE-NEXT:   tile.yield
// PROLOGUE:      %y = tile.fused ins(%normal, %w, %v :
// PROLOGUE-NOT:  tile.fused
// PROLOGUE:      func.return

// EPILOGUE:      %c, %d = tile.fused ins(%x, %w, %v :
// EPILOGUE:      %y = tile.fused ins(%c, %d :
// EPILOGUE-NOT:  tile.fused
// EPILOGUE:      func.return

// Without the joint contraction the norm has two consumers, and so is no prologue.
// HORIZONTAL:      %normal = tile.fused ins(%x :
// HORIZONTAL:      %c = tile.fused ins(%normal, %w :
// HORIZONTAL:      %y = tile.fused ins(%normal, %v, %c :
// HORIZONTAL-NOT:  tile.fused
// HORIZONTAL:      func.return

// VERTICAL:      lamella.idle = [{pass = "fuse-regions", reason = "no pair to consider", step = "shared, siblings"}]
// VERTICAL:      = tile.reduce "sum"
// VERTICAL-NEXT: tile.yield
// VERTICAL:      %normal = tile.fused
// VERTICAL-SAME: #tile.ledger<refused, {consumer = "tile.map at norm", kind = "vertical", producer = "tile.reduce at norm", reason = "vertical is off"}>
// VERTICAL-NEXT: ^bb0
// VERTICAL-NEXT: = tile.map "mul"
// VERTICAL-NEXT: tile.yield
// VERTICAL:      func.return

// NONE-COUNT-6: tile.fused
// NONE-NOT:     tile.fused
// NONE:         func.return

// Nothing joins, not even the contractions on one x; every edge says so.
// DEPTH0: reason = "max-depth is 0: every op is its own launch"

// Side by side is no deeper: the contractions join, and so do ops that nothing orders.
// DEPTH1:      %c, %d = tile.fused ins(%normal, %w, %v :
// DEPTH1:      %a = tile.fused ins(%c :
// DEPTH1-SAME: reason = "max-depth is 1, the region would be 2 deep"
// DEPTH1:      func.return

// Regions grow from the end: the two maps join before either meets the contractions.
// DEPTH2:      %normal = tile.fused ins(%x :
// DEPTH2:        = tile.reduce
// DEPTH2:        = tile.map "mul"
// DEPTH2:      %c, %d = tile.fused ins(%normal, %w, %v :
// DEPTH2:      %y = tile.fused ins(%c, %d :
// DEPTH2:        = tile.map "silu"
// DEPTH2:        = tile.map "mul"
// DEPTH2:      func.return

// A region that would need more registers is not grown, and the reason has the estimate.
// REGISTERS: #tile.ledger<refused, {{.*}}reason = "about {{[0-9]+}} registers a thread, at most 20: it would spill"
func.func @forward(%x: tensor<1x512xf32>, %w: tensor<1024x512xf32>, %v: tensor<1024x512xf32>) -> tensor<1x1024xf32> {
  %s = tile.reduce "sum" %x {loc = "norm"} : tensor<1x512xf32> -> tensor<1x1xf32>
  %normal = tile.map "mul"(%x, %s) {loc = "norm"} : tensor<1x512xf32>, tensor<1x1xf32> -> tensor<1x512xf32>
  %c = tile.contract %normal, %w {loc = "gate"} : tensor<1x512xf32>, tensor<1024x512xf32> -> tensor<1x1024xf32>
  %d = tile.contract %normal, %v {loc = "up"} : tensor<1x512xf32>, tensor<1024x512xf32> -> tensor<1x1024xf32>
  %a = tile.map "silu"(%c) {loc = "activation"} : tensor<1x1024xf32> -> tensor<1x1024xf32>
  %y = tile.map "mul"(%a, %d) {loc = "gated"} : tensor<1x1024xf32>, tensor<1x1024xf32> -> tensor<1x1024xf32>
  func.return %y : tensor<1x1024xf32>
}
