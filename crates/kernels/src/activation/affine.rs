//! Multiplies each element by a scale and adds a shift.

use std::ops::Range;

use super::BLOCK;
use crate::element::{Element, Float, with_element};
use crate::output::Output;
use crate::simd::{F32x16, Kernel, LANES};
use crate::{Machine, Shared};

/// The sizes of the arrays of [`affine`]. `scale` and `shift` each have either one column or all
/// columns.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AffineShape {
    pub rows: usize,
    pub columns: usize,
    pub scale_columns: usize,
    pub shift_columns: usize,
}

/// Computes `x * scale + shift`. Rounds the product to the element type before adding.
///
/// # Safety
/// `x` and `out` must hold `rows * columns` elements. `scale` and `shift` must have the number of
/// columns in the shape. All must be aligned to the element type. `out` must be `x` or must not
/// overlap any input.
pub unsafe fn affine(
    element: Element,
    x: *const u8,
    scale: *const u8,
    shift: *const u8,
    out: *mut u8,
    shape: &AffineShape,
) {
    let machine = Machine::current();
    // SAFETY: the caller keeps the contract, and `machine` describes this machine.
    with_element!(element, T => unsafe {
        affine_on::<T>(machine, x.cast(), scale.cast(), shift.cast(), out.cast(), shape)
    })
}

pub unsafe fn affine_on<T: Float>(
    machine: Machine,
    x: *const T,
    scale: *const T,
    shift: *const T,
    out: *mut T,
    shape: &AffineShape,
) {
    let mut shape = *shape;
    if shape.scale_columns == 1 && shape.shift_columns == 1 {
        // If scale and shift are scalars, row boundaries do not matter. So each item of the job is
        // a block of `BLOCK` elements.
        let size = shape.rows * shape.columns;
        (shape.rows, shape.columns) = (size.div_ceil(BLOCK), BLOCK);
        let out = Output::new(out, &[x], size, BLOCK);
        let x = Shared(x.cast_mut());
        let (scale, shift) = (Shared(scale.cast_mut()), Shared(shift.cast_mut()));
        machine.pool.for_each(shape.rows, BLOCK, &|rows| {
            let flat = rows.start * BLOCK..size.min(rows.end * BLOCK);
            let count = flat.len();
            // SAFETY: the range is within the buffers, and the ranges of different items are
            // disjoint.
            unsafe {
                let (x, out) = (x.get().add(flat.start), out.add(flat.start));
                let one = AffineShape { rows: 1, columns: count, ..shape };
                let (scale, shift) = (scale.get(), shift.get());
                machine.level.run(Affine { x, scale, shift, out, rows: 0..1, shape: one });
            }
        });
        return;
    }
    let out = Output::new(out, &[x], shape.rows * shape.columns, shape.columns);
    let x = Shared(x.cast_mut());
    let (scale, shift) = (Shared(scale.cast_mut()), Shared(shift.cast_mut()));
    machine.pool.for_each(shape.rows, shape.columns, &|rows| {
        let kernel =
            Affine { x: x.get(), scale: scale.get(), shift: shift.get(), out, rows, shape };
        // SAFETY: the caller keeps the contract, and the ranges of rows are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct Affine<T> {
    x: *const T,
    scale: *const T,
    shift: *const T,
    out: Output<T>,
    rows: Range<usize>,
    shape: AffineShape,
}

impl<T: Float> Kernel for Affine<T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let columns = self.shape.columns;
        for row in self.rows.clone() {
            for at in (0..columns).step_by(LANES) {
                let count = LANES.min(columns - at);
                // SAFETY: every access is within the row, and the code reads elements before it
                // overwrites them.
                unsafe {
                    let x: V = T::load_mixed_block(self.x.add(row * columns + at), count);
                    let scale = self.factor::<V>(self.scale, self.shape.scale_columns, at, count);
                    let shift = self.factor::<V>(self.shift, self.shape.shift_columns, at, count);
                    let y = T::round_number(x * scale) + shift;
                    let at = row * columns + at;
                    if count == LANES {
                        self.out.put_mixed(y, at);
                    } else {
                        self.out.put_first(y, at, count);
                    }
                }
            }
        }
    }
}

impl<T: Float> Affine<T> {
    #[inline(always)]
    unsafe fn factor<V: F32x16>(&self, of: *const T, columns: usize, at: usize, count: usize) -> V {
        // SAFETY: `of` points to one element, or to as many elements as a row has.
        unsafe {
            if columns == 1 {
                let mut first = [0.0; LANES];
                T::load_first::<V>(of, 1).store(first.as_mut_ptr());
                return V::splat(first[0]);
            }
            T::load_mixed_block(of.add(at), count)
        }
    }
}
