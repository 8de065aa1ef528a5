;; Matrix product for the transformer and the image decoder of the live page: y += x w, in float32.
;;
;; x has rows of `inner` values. w is stored in panels of 16 columns: a panel holds `inner` rows of 16 neighbouring
;; values. A pass over a panel updates two rows of y, so that each value of w that is loaded is used twice. Strides are in
;; bytes. `wat2wasm kernel.wat` of the package wabt writes kernel.wasm.
(module
  (memory (export "memory") 1024 1024) ;; pages of 64 KiB. The size never changes, because views of it would become invalid
  (func (export "multiply_add")
    (param $x i32) (param $x_stride i32)
    (param $w i32) (param $panel_stride i32)
    (param $y i32) (param $y_stride i32)
    (param $rows i32) (param $inner i32) (param $panels i32)
    (local $row i32) (local $step i32)
    (local $x0 i32) (local $x1 i32) (local $y0 i32) (local $y1 i32) (local $at i32)
    (local $value v128) (local $w0 v128) (local $w1 v128) (local $w2 v128) (local $w3 v128)
    (local $a0 v128) (local $a1 v128) (local $a2 v128) (local $a3 v128) ;; 16 values of the first row
    (local $b0 v128) (local $b1 v128) (local $b2 v128) (local $b3 v128) ;; 16 values of the second row
    (block $done
      (loop $next_panel
        (br_if $done (i32.eqz (local.get $panels)))
        (local.set $row (i32.const 0))
        (loop $next_rows
          (local.set $x0 (i32.add (local.get $x) (i32.mul (local.get $row) (local.get $x_stride))))
          (local.set $y0 (i32.add (local.get $y) (i32.mul (local.get $row) (local.get $y_stride))))
          (local.set $row (i32.add (local.get $row) (i32.const 1)))
          ;; A last row without a partner is computed twice.
          (local.set $x1 (select (i32.add (local.get $x0) (local.get $x_stride)) (local.get $x0)
            (i32.lt_u (local.get $row) (local.get $rows))))
          (local.set $y1 (select (i32.add (local.get $y0) (local.get $y_stride)) (local.get $y0)
            (i32.lt_u (local.get $row) (local.get $rows))))
          (local.set $row (i32.add (local.get $row) (i32.const 1)))
          (local.set $a0 (v128.load (local.get $y0)))
          (local.set $a1 (v128.load offset=16 (local.get $y0)))
          (local.set $a2 (v128.load offset=32 (local.get $y0)))
          (local.set $a3 (v128.load offset=48 (local.get $y0)))
          (local.set $b0 (v128.load (local.get $y1)))
          (local.set $b1 (v128.load offset=16 (local.get $y1)))
          (local.set $b2 (v128.load offset=32 (local.get $y1)))
          (local.set $b3 (v128.load offset=48 (local.get $y1)))
          (local.set $at (local.get $w))
          (local.set $step (local.get $inner))
          (loop $next_step
            (local.set $w0 (v128.load (local.get $at)))
            (local.set $w1 (v128.load offset=16 (local.get $at)))
            (local.set $w2 (v128.load offset=32 (local.get $at)))
            (local.set $w3 (v128.load offset=48 (local.get $at)))
            (local.set $value (v128.load32_splat (local.get $x0)))
            (local.set $a0 (f32x4.add (local.get $a0) (f32x4.mul (local.get $value) (local.get $w0))))
            (local.set $a1 (f32x4.add (local.get $a1) (f32x4.mul (local.get $value) (local.get $w1))))
            (local.set $a2 (f32x4.add (local.get $a2) (f32x4.mul (local.get $value) (local.get $w2))))
            (local.set $a3 (f32x4.add (local.get $a3) (f32x4.mul (local.get $value) (local.get $w3))))
            (local.set $value (v128.load32_splat (local.get $x1)))
            (local.set $b0 (f32x4.add (local.get $b0) (f32x4.mul (local.get $value) (local.get $w0))))
            (local.set $b1 (f32x4.add (local.get $b1) (f32x4.mul (local.get $value) (local.get $w1))))
            (local.set $b2 (f32x4.add (local.get $b2) (f32x4.mul (local.get $value) (local.get $w2))))
            (local.set $b3 (f32x4.add (local.get $b3) (f32x4.mul (local.get $value) (local.get $w3))))
            (local.set $x0 (i32.add (local.get $x0) (i32.const 4)))
            (local.set $x1 (i32.add (local.get $x1) (i32.const 4)))
            (local.set $at (i32.add (local.get $at) (i32.const 64)))
            (br_if $next_step (local.tee $step (i32.sub (local.get $step) (i32.const 1)))))
          (v128.store (local.get $y0) (local.get $a0))
          (v128.store offset=16 (local.get $y0) (local.get $a1))
          (v128.store offset=32 (local.get $y0) (local.get $a2))
          (v128.store offset=48 (local.get $y0) (local.get $a3))
          (v128.store (local.get $y1) (local.get $b0))
          (v128.store offset=16 (local.get $y1) (local.get $b1))
          (v128.store offset=32 (local.get $y1) (local.get $b2))
          (v128.store offset=48 (local.get $y1) (local.get $b3))
          (br_if $next_rows (i32.lt_u (local.get $row) (local.get $rows))))
        (local.set $w (i32.add (local.get $w) (local.get $panel_stride)))
        (local.set $y (i32.add (local.get $y) (i32.const 64)))
        (local.set $panels (i32.sub (local.get $panels) (i32.const 1)))
        (br $next_panel)))))
