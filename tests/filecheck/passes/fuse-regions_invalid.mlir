// RUN: not lamella-opt %s -p 'fuse-regions{arch=sm_91}' 2>&1 | filecheck %s --check-prefix=ARCH
// RUN: not lamella-opt %s -p 'fuse-regions{depth=4}' 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not lamella-opt %s -p 'fuse-regions{prologue=perhaps}' 2>&1 | filecheck %s --check-prefix=VALUE

// ARCH: lamella-opt: error: target: unknown architecture, got sm_91 (nearest: sm_90, sm_80)
// OPTION: lamella-opt: error: pass 'fuse-regions': unknown option 'depth' (known options: arch, epilogue, horizontal, max-depth, max-registers, policy, prologue, shared, siblings, vertical)
// VALUE: lamella-opt: error: pass 'fuse-regions': bad value for option 'prologue', expected bool, got perhaps
func.func @forward(%x: tensor<3x8xf32>) -> tensor<3x8xf32> {
  %y = tile.map "silu"(%x) : tensor<3x8xf32> -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}
