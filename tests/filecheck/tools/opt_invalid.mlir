// RUN: lamella-opt %s --split-input-file --verify-diagnostics | filecheck %s
// RUN: not lamella-opt %s -p 'fuse-region' 2>&1 | filecheck %s --check-prefix=PASS
// RUN: not lamella-opt %s -p 'cse{depth=3}' 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not lamella-opt %s --split-input-file 2>&1 | filecheck %s --check-prefix=STOP
// RUN: not lamella-opt %s.missing 2>&1 | filecheck %s --check-prefix=MISSING

// PASS: lamella-opt: error: unknown pass 'fuse-region' (nearest: fuse-regions, split-reductions)
// OPTION: lamella-opt: error: pass 'cse': unknown option 'depth' (it takes no options)
// STOP: lamella-opt: error: {{.*}}opt_invalid.mlir: arith.addi: operand 0 (%b) does not dominate its use
// MISSING: lamella-opt: error: {{.*}}.missing: cannot read: No such file or directory

// CHECK: arith.addi: operand 0 (%b) does not dominate its use
func.func @used_before_it_is_defined() {
  %a = arith.addi %b, %b : i32
  %b = arith.constant 1 : i32
  func.return
}

// -----

// CHECK: {{.*}}opt_invalid.mlir:[[# @LINE + 2]]:{{[0-9]+}}:
func.func @malformed() {
  %a = arith.addi : i32
}

// -----

// CHECK: arith.constant at layers.3: {{.*}}
func.func @breaks_its_verifier() {
  %a = "arith.constant"() {value = 1 : i64, loc = "layers.3"} : () -> i32
  func.return
}

// -----

// CHECK: func.func @sound
func.func @sound() {
  func.return
}
