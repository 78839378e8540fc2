//! Products of a chunk: its weights are decoded in registers for a few rows of x at a time.

use std::marker::PhantomData;

use super::super::columns::Dots;
use super::super::format::Format;
use crate::linear::arithmetic::Arithmetic;
use crate::linear::together::PITCH;
use crate::simd::{F32x16, Kernel, LANES, Register};

/// Rows of weights that share the loads of x.
const TOGETHER: usize = 2;

/// Weights that are decoded a chunk at a time.
pub trait Chunks: Dots {
    type Format: Format;
    type Arithmetic: Arithmetic;
    /// Vectors of a decoded chunk.
    const STEPS: usize;
    /// Vectors of x for a chunk, of which each is multiplied with one of the weights', or two.
    const VECTORS: usize;

    /// Loads `lanes` lanes of a chunk, then zeros.
    ///
    /// # Safety
    /// `from` is readable for the lanes.
    unsafe fn load<V: F32x16>(from: *const u8, lanes: usize) -> V::Int;

    /// The vector of weights for a step.
    fn weights<V: F32x16>(lanes: V::Int, step: usize) -> V;

    /// Shifts the weights of a step out of each lane.
    fn rest<V: F32x16>(lanes: V::Int) -> V::Int;
}

/// Adds the products of a chunk of `count` rows of weights with `rows` rows of x.
pub struct Chunk<D> {
    pub packed: *const u8,
    pub row_bytes: usize,
    /// Lanes of the chunk that exist.
    pub lanes: usize,
    pub count: usize,
    /// A vector of each row, and `apart` floats after it the next one of each.
    pub x: *const f32,
    pub apart: usize,
    pub rows: usize,
    /// For each row of weights a [`PITCH`], and there a vector for each row of x.
    pub sums: *mut f32,
    /// A vector of each row of weights.
    pub scales: *const f32,
    pub dots: PhantomData<D>,
}

/// The most rows of x in a tile.
pub const fn most<V: F32x16, D: Chunks>() -> usize {
    Part::<V, D>::DECODED_ROWS
}

pub type Part<V, D> = <<D as Chunks>::Arithmetic as Arithmetic>::Register<V>;

impl<D: Chunks> Kernel for Chunk<D> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let tiles = self.rows.div_ceil(most::<V, D>());
        let (least, more) = (self.rows / tiles, self.rows % tiles);
        for column in (0..self.count).step_by(TOGETHER) {
            let mut row = 0;
            for tile in 0..tiles {
                // SAFETY: the caller's contract; a row beyond the last one repeats it.
                row += unsafe {
                    match least + usize::from(tile < more) {
                        6 if const { most::<V, D>() >= 6 } => self.tile::<V, 6>(column, row),
                        5 if const { most::<V, D>() >= 6 } => self.tile::<V, 5>(column, row),
                        4 => self.tile::<V, 4>(column, row),
                        3 => self.tile::<V, 3>(column, row),
                        2 => self.tile::<V, 2>(column, row),
                        _ => self.tile::<V, 1>(column, row),
                    }
                };
            }
        }
    }
}

impl<D: Chunks> Chunk<D> {
    /// Multiplies [`TOGETHER`] rows of weights with `R` rows of x; returns `R`.
    #[inline(always)]
    unsafe fn tile<V: F32x16, const R: usize>(&self, column: usize, row: usize) -> usize {
        // SAFETY: the caller's contract.
        unsafe {
            self.part::<V, R, 0>(column, row);
            if Part::<V, D>::LANES <= LANES / 2 {
                self.part::<V, R, 1>(column, row);
            }
            if Part::<V, D>::LANES <= LANES / 4 {
                self.part::<V, R, 2>(column, row);
                self.part::<V, R, 3>(column, row);
            }
        }
        R
    }

    /// Computes register `P` of a tile. Decoding yields others too, which the compiler leaves out.
    #[inline(always)]
    unsafe fn part<V: F32x16, const R: usize, const P: usize>(&self, column: usize, row: usize) {
        let part = P * Part::<V, D>::LANES;
        let mut sums = [[Part::<V, D>::zero(); R]; TOGETHER];
        let mut lanes = [V::splat_int(0); TOGETHER];
        let mut x = self.x.wrapping_add(row * LANES + part);
        // SAFETY: the caller's contract.
        unsafe {
            for (c, lanes) in lanes.iter_mut().enumerate() {
                let below = (column + c).min(self.count - 1) * self.row_bytes;
                *lanes = D::load::<V>(self.packed.wrapping_add(below), self.lanes);
            }
            for step in 0..D::STEPS {
                let mut weights = [Part::<V, D>::zero(); TOGETHER];
                for (weights, lanes) in weights.iter_mut().zip(&mut lanes) {
                    *weights = D::Arithmetic::register::<V, P>(D::weights::<V>(*lanes, step));
                    *lanes = D::rest::<V>(*lanes);
                }
                for r in 0..R {
                    let of_x = Register::read(x.add(r * LANES));
                    for (sums, weights) in sums.iter_mut().zip(weights) {
                        sums[r] = D::Arithmetic::add_product::<V>(sums[r], weights, of_x);
                    }
                }
                if D::STEPS == D::VECTORS || step % 2 == 1 {
                    x = x.wrapping_add(self.apart);
                }
            }
            for (c, sums) in sums.into_iter().enumerate() {
                self.add::<V, R>(sums, [column + c, row], part);
            }
        }
    }

    /// Adds the products of a chunk of a row of weights with `R` rows of x, times the scales.
    ///
    /// # Safety
    /// They exist.
    #[inline(always)]
    pub unsafe fn add<V: F32x16, const R: usize>(
        &self,
        products: [Part<V, D>; R],
        [column, row]: [usize; 2],
        part: usize,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            let scale = Register::read(self.scales.add(column * LANES + part));
            let to = self.sums.add(column * PITCH + row * LANES + part);
            for (r, product) in products.into_iter().enumerate() {
                let to = to.add(r * LANES);
                Part::<V, D>::read(to).add_product(product, scale).write(to);
            }
        }
    }
}
