//! Products of several rows of w with several rows of x, so that the products share loads. Every
//! output has a separate vector of sums, whose lanes run along k. So the order of the terms of an
//! output is the same for any number of rows.

use std::marker::PhantomData;

use super::super::simd::{F32x16, Kernel, LANES, Register};
use super::arithmetic::Arithmetic;

/// The number of rows of w that are multiplied together.
pub const COLUMNS: usize = 4;
/// The largest number of rows of x that are multiplied together.
pub const BAND: usize = 16;
/// The distance in floats from the sums of one row of w to the sums of the next row.
pub const PITCH: usize = BAND * LANES;

/// Adds products to the sums of [`COLUMNS`] rows of w and `rows` rows of x, one block of words
/// after another. It runs as a separate function, so that its sums stay in registers.
pub struct Together<A> {
    /// For each step, one block of each row of w.
    pub w: *const f32,
    /// For each step, one block of each row of x.
    pub x: *const f32,
    pub steps: usize,
    pub rows: usize,
    /// For each row of w, [`PITCH`] floats, which hold one block for each row of x.
    pub sums: *mut f32,
    pub arithmetic: PhantomData<A>,
}

impl<A: Arithmetic> Kernel for Together<A> {
    const BF16: bool = A::PAIRS;
    const ONLY_BF16: bool = A::PAIRS;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let most = if V::SMALL { 1 } else { A::Register::<V>::ROWS };
        let mut row = 0;
        while row < self.rows {
            let left = self.rows - row;
            // SAFETY: the caller's contract.
            row += unsafe {
                match if left == most + 1 { left.div_ceil(2) } else { left.min(most) } {
                    4 => self.tile::<V, 4>(row),
                    3 => self.tile::<V, 3>(row),
                    2 => self.tile::<V, 2>(row),
                    _ => self.tile::<V, 1>(row),
                }
            };
        }
    }
}

impl<A: Arithmetic> Together<A> {
    /// Multiplies `R` rows of x, from `row` on, and returns `R`. The distances `COLUMNS` and
    /// `PITCH` are constants, so that they need no registers. With variables, loops took up to
    /// twice as long.
    #[inline(always)]
    unsafe fn tile<V: F32x16, const R: usize>(&self, row: usize) -> usize {
        for part in (0..LANES).step_by(A::Register::<V>::LANES) {
            // SAFETY: the caller's contract.
            unsafe {
                let to = self.sums.add(row * LANES + part);
                let mut sums = [[A::Register::<V>::zero(); R]; COLUMNS];
                for (c, sums) in sums.iter_mut().enumerate() {
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = Register::read(to.add(c * PITCH + r * LANES));
                    }
                }
                let (mut w, mut x) = (self.w.add(part), self.x.add(row * LANES + part));
                for _ in 0..self.steps {
                    let mut of_x = [A::Register::<V>::zero(); R];
                    for (r, of_x) in of_x.iter_mut().enumerate() {
                        *of_x = Register::read(x.add(r * LANES));
                    }
                    for (c, sums) in sums.iter_mut().enumerate() {
                        let w = Register::read(w.add(c * LANES));
                        for (sum, x) in sums.iter_mut().zip(of_x) {
                            *sum = A::add_product::<V>(*sum, x, w);
                        }
                    }
                    w = w.wrapping_add(COLUMNS * LANES);
                    x = x.wrapping_add(self.rows * LANES);
                }
                for (c, sums) in sums.into_iter().enumerate() {
                    for (r, sum) in sums.into_iter().enumerate() {
                        sum.write(to.add(c * PITCH + r * LANES));
                    }
                }
            }
        }
        R
    }
}
