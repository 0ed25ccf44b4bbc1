// RUN: lamella-opt %s -p 'canonicalize,cse' | filecheck %s
// RUN: lamella-opt %s | lamella-opt | filecheck %s --check-prefix=SAME
// RUN: lamella-opt %s -p 'canonicalize,cse' --print-between-passes | filecheck %s --check-prefix=BETWEEN
// RUN: lamella-opt %s -p 'canonicalize,cse' --time-passes -o /dev/null 2>&1 | filecheck %s --check-prefix=TIME
// RUN: lamella-opt %s -p 'cse' --print-op-generic | filecheck %s --check-prefix=GENERIC

// CHECK:      func.func @twice(%{{.*}}: i32) -> i32 {
// CHECK-NEXT:   %{{.*}} = arith.addi
// CHECK-NEXT:   %{{.*}} = arith.muli
// CHECK-NEXT:   func.return

// SAME:       arith.addi
// SAME-NEXT:  arith.addi
// SAME-NEXT:  arith.muli

// BETWEEN:      // IR after canonicalize:
// BETWEEN-NEXT: builtin.module {
// BETWEEN:        arith.addi
// BETWEEN-NEXT:   arith.addi
// BETWEEN:      builtin.module {
// BETWEEN:        arith.addi
// BETWEEN-NEXT:   arith.muli

// TIME:      canonicalize: {{[0-9.]+}} s
// TIME-NEXT: cse: {{[0-9.]+}} s

// GENERIC: "func.func"() <{
func.func @twice(%a: i32) -> i32 {
  %b = arith.addi %a, %a : i32
  %c = arith.addi %a, %a : i32
  %d = arith.muli %b, %c : i32
  func.return %d : i32
}
