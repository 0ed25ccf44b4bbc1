// RUN: echo '[{"action": "forbid", "producer": "gate", "consumer": "up"}]' > %t.json
// RUN: lamella-opt %s -p 'fuse-regions{policy="%t.json"}' --split-input-file | filecheck %s --check-prefix=FORBID
// RUN: echo '[{"action": "force", "producer": "norm", "consumer": "q"}]' > %t.json
// RUN: lamella-opt %s -p 'fuse-regions{policy="%t.json"}' --split-input-file | filecheck %s --check-prefix=FORCE
// RUN: echo '[{"action": "force", "producer": "gate*", "consumer": "tile.contract"}]' > %t.json
// RUN: not lamella-opt %s -p 'fuse-regions{policy="%t.json"}' --split-input-file 2>&1 | filecheck %s --check-prefix=INFEASIBLE
// RUN: echo '[{"action": "forbid", "producer": "gate"}]' > %t.json
// RUN: not lamella-opt %s -p 'fuse-regions{policy="%t.json"}' --split-input-file 2>&1 | filecheck %s --check-prefix=FIELD
// RUN: not lamella-opt %s -p 'fuse-regions{policy="nowhere.json"}' --split-input-file 2>&1 | filecheck %s --check-prefix=MISSING

// Patterns name ops by location, by name or by kind. A forbidden pair stays apart, whichever step would join it.
// FORBID-LABEL: func.func @ffn
// FORBID:         %g = tile.fused ins(%x, %wg :
// FORBID:         tile.fused
// FORBID-SAME:    reason = "the policy says forbid gate -> up"
// INFEASIBLE:   lamella-opt: error: policy: force gate* -> tile.contract: tile.map at gated and tile.contract at down cannot be one launch: contract: down needs a whole row of x
// FIELD:        rule 0: field 'consumer' is no text, got null
// MISSING:      lamella-opt: error: nowhere.json: cannot read the policy: No such file or directory
func.func @ffn(%x: tensor<1x8xf32>, %wg: tensor<512x8xf32>, %wu: tensor<512x8xf32>, %wd: tensor<8x512xf32>) -> tensor<1x8xf32> {
  %g = tile.contract %x, %wg {loc = "gate"} : tensor<1x8xf32>, tensor<512x8xf32> -> tensor<1x512xf32>
  %u = tile.contract %x, %wu {loc = "up"} : tensor<1x8xf32>, tensor<512x8xf32> -> tensor<1x512xf32>
  %h = tile.map "mul"(%g, %u) {loc = "gated"} : tensor<1x512xf32>, tensor<1x512xf32> -> tensor<1x512xf32>
  %d = tile.contract %h, %wd {loc = "down"} : tensor<1x512xf32>, tensor<8x512xf32> -> tensor<1x8xf32>
  func.return %d : tensor<1x8xf32>
}

// -----

// A forced pair joins whatever it costs: by itself the pass leaves this norm a launch of its own.
// FORCE-LABEL: func.func @norm
// FORCE-NEXT:    %c = tile.fused ins(%x, %w :
// FORCE-SAME:    reason = "the policy says force norm -> q"
// FORCE:           = tile.reduce "sum"
// FORCE:           = tile.contract
func.func @norm(%x: tensor<2048x1024xbf16>, %w: tensor<4096x1024xbf16>) -> tensor<2048x4096xf32> {
  %xf = tile.cast %x {loc = "norm"} : tensor<2048x1024xbf16> -> tensor<2048x1024xf32>
  %s = tile.reduce "sum" %xf {loc = "norm"} : tensor<2048x1024xf32> -> tensor<2048x1xf32>
  %xm = tile.map "mul"(%xf, %s) {loc = "norm"} : tensor<2048x1024xf32>, tensor<2048x1xf32> -> tensor<2048x1024xf32>
  %xb = tile.cast %xm {loc = "norm"} : tensor<2048x1024xf32> -> tensor<2048x1024xbf16>
  %c = tile.contract %xb, %w {loc = "q"} : tensor<2048x1024xbf16>, tensor<4096x1024xbf16> -> tensor<2048x4096xf32>
  func.return %c : tensor<2048x4096xf32>
}
