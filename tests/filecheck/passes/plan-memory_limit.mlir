// RUN: lamella-opt %s -p 'plan-memory{max-arena=2048},check-plan{max-arena=2048}' | filecheck %s
// RUN: lamella-opt %s -p plan-memory | filecheck %s --check-prefix FREE

// Placed by size, %early comes last and finds %giant and %late side by side before it; placed by time it fares no better.
// Under a limit what sticks out goes first, and the plan reaches what is live at once.
// CHECK-LABEL: func.func @squeezed
// CHECK-SAME:    %arena: memref<2048xi8>) attributes {lamella.memory = {arena = 2048 : i64, buffers = 3840 : i64, launches = 5 : i64, limit = 2048 : i64, max_live = 2048 : i64, strategy = "squeezed"}}
// FREE-LABEL: func.func @squeezed
// FREE-SAME:    lamella.memory = {arena = 2560 : i64, buffers = 3840 : i64, launches = 5 : i64, max_live = 2048 : i64, strategy = "by-size"}
func.func @squeezed(%x: memref<64xf32>) {
  %last = memref.alloc() : memref<320xf32>
  %giant = memref.alloc() : memref<320xf32>
  %late = memref.alloc() : memref<192xf32>
  %early = memref.alloc() : memref<128xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%early : memref<128xf32>)
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%x : memref<64xf32>)
  host.launch @k grid [1, 1, 1] ins(%early : memref<128xf32>) outs(%giant : memref<320xf32>)
  host.launch @k grid [1, 1, 1] ins(%early : memref<128xf32>) outs(%late : memref<192xf32>)
  host.launch @k grid [1, 1, 1] ins(%late : memref<192xf32>) outs(%last : memref<320xf32>)
  func.return
}

// What fits is planned as without a limit.
// CHECK-LABEL: func.func @fits
// CHECK-SAME:    lamella.memory = {arena = 256 : i64, buffers = 256 : i64, launches = 1 : i64, limit = 2048 : i64, max_live = 256 : i64, strategy = "by-size"}
// FREE-LABEL: func.func @fits
func.func @fits(%x: memref<64xf32>) {
  %a = memref.alloc() : memref<64xf32>
  host.launch @k grid [1, 1, 1] ins(%x : memref<64xf32>) outs(%a : memref<64xf32>)
  func.return
}
