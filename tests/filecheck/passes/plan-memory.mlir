// RUN: lamella-opt %s -p plan-memory | filecheck %s
// RUN: lamella-opt %s -p 'plan-memory,check-plan' | filecheck %s
// RUN: lamella-opt %s -p 'plan-memory{reuse=false},check-plan' | filecheck %s --check-prefix=APART

// APART-LABEL: func.func @chain
// APART-SAME:    {arena = 768 : i64, buffers = 768 : i64, launches = 3 : i64, max_live = 512 : i64, strategy = "no-reuse"}

// %a and %b are live together at launch 1, %b and %c at launch 2; %c takes the place of %a. The result stays to the end.
// CHECK-LABEL: func.func @chain
// CHECK-SAME:    (%x: memref<64xf32>, %arena: memref<512xi8>) -> memref<64xf32> attributes {lamella.memory = {arena = 512 : i64, buffers = 768 : i64, launches = 3 : i64, max_live = 512 : i64, strategy = "by-size"}} {
// CHECK-NEXT:    %[[ZERO:.*]] = arith.constant 0 : index
// CHECK-NEXT:    %[[NEXT:.*]] = arith.constant 256 : index
// CHECK-NEXT:    %a = memref.view %arena[%[[ZERO]]][] : memref<512xi8> to memref<64xf32>
// CHECK-NEXT:    host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%a : memref<64xf32>)
// CHECK-NEXT:    %b = memref.view %arena[%[[NEXT]]][] : memref<512xi8> to memref<64xbf16>
// CHECK-NEXT:    host.launch @k grid [1, 1, 1] ins(%a : memref<64xf32>) outs(%b : memref<64xbf16>)
// CHECK-NEXT:    %c = memref.view %arena[%[[ZERO]]][] : memref<512xi8> to memref<64xf32>
// CHECK-NEXT:    host.launch @k grid [1, 1, 1] ins(%b : memref<64xbf16>) outs(%c : memref<64xf32>)
// CHECK-NEXT:    func.return %c : memref<64xf32>
func.func @chain(%x: memref<64xf32>) -> memref<64xf32> {
  %a = memref.alloc() : memref<64xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%a : memref<64xf32>)
  %b = memref.alloc() : memref<64xbf16>
  host.launch @k grid [1, 1, 1] ins(%a : memref<64xf32>) outs(%b : memref<64xbf16>)
  %c = memref.alloc() : memref<64xf32>
  host.launch @k grid [1, 1, 1] ins(%b : memref<64xbf16>) outs(%c : memref<64xf32>)
  func.return %c : memref<64xf32>
}

// A view keeps its root alive: %b must not take the place of %a. An allocation that nobody accesses gets no place.
// CHECK-LABEL: func.func @views
// CHECK:         %a = memref.view %arena[%[[A:.*]]][]
// CHECK:         memref.collapse_shape %a
// CHECK:         %b = memref.view %arena[%{{.*}}][]
// CHECK-NOT:     memref.alloc
// CHECK:         func.return
func.func @views(%x: memref<4x16xf32>, %y: memref<64xf32>) {
  %a = memref.alloc() : memref<4x16xf32>
  %unused = memref.alloc() : memref<4096xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<4x16xf32>) outs(%a : memref<4x16xf32>)
  %flat = memref.collapse_shape %a [[0 : i64, 1 : i64]] : memref<4x16xf32> into memref<64xf32>
  %b = memref.alloc() : memref<64xf32>
  host.launch @k grid [1, 1, 1] ins(%y : memref<64xf32>) outs(%b : memref<64xf32>)
  host.launch @k grid [1, 1, 1] ins(%b, %flat : memref<64xf32>, memref<64xf32>) outs(%y : memref<64xf32>)
  func.return
}

// A function without buffers has an empty arena, so that all functions are called alike.
// CHECK-LABEL: func.func @nothing
// CHECK-SAME:    (%x: memref<4xf32>, %arena: memref<0xi8>) attributes {lamella.memory = {arena = 0 : i64, buffers = 0 : i64, launches = 0 : i64, max_live = 0 : i64, strategy = "by-size"}}
func.func @nothing(%x: memref<4xf32>) {
  func.return
}
