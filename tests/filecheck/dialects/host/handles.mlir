// RUN: lamella-opt %s | lamella-opt | filecheck %s
// RUN: lamella-opt %s --print-op-generic | lamella-opt | filecheck %s

func.func @handles() {
  // CHECK: %w = host.weight "layers.0.attn.v_proj" : memref<8x16xbf16>
  %w = host.weight "layers.0.attn.v_proj" : memref<8x16xbf16>
  // CHECK: %p = host.weight "layers.0.attn.q_proj.paired" : memref<8x16xbf16>
  %p = host.weight "layers.0.attn.q_proj.paired" : memref<8x16xbf16>
  // CHECK: %t = host.constant "rope_table" {op = "transformer.rope_table", arguments = {length = 32 : i64, scaling = {}}} : memref<32x4xf32>
  %t = host.constant "rope_table" {op = "transformer.rope_table", arguments = {length = 32 : i64, scaling = {}}} : memref<32x4xf32>
  func.return
}
