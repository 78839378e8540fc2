//! Products of several rows of x: the weights of a chunk are decoded once for a few rows of a band,
//! in registers, while the band's part of x is in the level-one cache. Every product has the order
//! of [`Dots::dot`].

mod decoded;

use std::marker::PhantomData;
use std::ops::Range;

use super::columns::{Dots, Operands};
use super::format::Format;
use crate::linear::arithmetic::Arithmetic;
use crate::linear::together::PITCH;
use crate::simd::{F32x16, Kernel, LANES, Lines, Register, prefetch, prefetch_far};

/// Rows of weights that share the loads of x.
const TOGETHER: usize = 2;

/// Weights that are decoded a chunk at a time.
pub(super) trait Chunks: Dots {
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

/// The group of each of sixteen lanes, counted from the first group of the chunk, where `2^shift`
/// lanes are a group.
#[inline(always)]
pub(super) fn lane_groups<V: F32x16>(shift: u32) -> V::Int {
    let groups: [u32; LANES] = std::array::from_fn(|lane| lane as u32 >> shift);
    // SAFETY: sixteen words; `load` takes any bits as they are.
    unsafe { V::load(groups.as_ptr().cast()).to_bits() }
}

/// Multiplies `count` rows of weights, at most sixteen, with a band of rows of x.
pub(super) struct Block<'a, D> {
    operands: Operands<'a>,
    count: usize,
    band: Range<usize>,
    /// A row of sixteen columns for each row of the band.
    to: *mut [f32; LANES],
    dots: PhantomData<D>,
}

impl<D: Chunks> Block<'_, D> {
    /// Implements [`Dots::many`], if x is laid out for it.
    ///
    /// # Safety
    /// As for that.
    #[inline(always)]
    pub unsafe fn run_if_banded<V: F32x16>(
        operands: Operands,
        count: usize,
        band: Range<usize>,
        to: *mut [f32; LANES],
    ) -> bool {
        let banded = operands.prepared.apart(band.start) > 1;
        if banded {
            // SAFETY: the caller's contract.
            unsafe { V::part(Block::<D> { operands, count, band, to, dots: PhantomData }) };
        }
        banded
    }
}

impl<D: Chunks> Kernel for Block<'_, D> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { operands, count, band, to, .. } = self;
        let (mut sums, mut biases) =
            (Lines::<{ LANES * PITCH }>::uninit(), Lines::<{ LANES * PITCH }>::uninit());
        let (sums, biases) = (sums.as_mut_ptr(), biases.as_mut_ptr());
        let mut of_groups = Lines::<{ LANES * LANES }>::uninit();
        let of_groups = of_groups.as_mut_ptr();
        let mut of_lanes = Lines::<{ LANES * LANES }>::uninit();
        let of_lanes = of_lanes.as_mut_ptr();
        let (rows, bytes) = (band.len(), D::Format::CHUNK_BYTES);
        let (groups, row_bytes) = (operands.axis / operands.group, operands.axis * D::BITS / 8);
        let shift = (operands.group / D::Format::PER_LANE).trailing_zeros();
        let lane_groups = lane_groups::<V>(shift);
        let apart = operands.prepared.apart(band.start) * LANES;
        let (mut packed, mut x) = (operands.packed, operands.prepared.row::<f32>(band.start));
        // SAFETY: the caller's contract; there is room for sixteen rows of weights.
        unsafe {
            for column in 0..LANES {
                sums.add(column * PITCH).write_bytes(0, rows * LANES);
                biases.add(column * PITCH).write_bytes(0, rows * LANES);
            }
            for at in (0..groups).step_by(LANES) {
                let here = LANES.min(groups - at);
                for column in 0..count {
                    let here_of = operands.below(column).scales::<D>();
                    let here_of = here_of.after(at / LANES * operands.step);
                    operands.prefetch_scales(&here_of);
                    let [scales, bias] = D::Format::scales::<V>(&here_of, 0, here);
                    scales.store(of_groups.add(column * LANES));
                    if D::Format::AFFINE {
                        for (i, m) in band.clone().enumerate() {
                            let to = biases.add(column * PITCH + i * LANES);
                            let of_x = V::load(operands.prepared.sums(m).add(at));
                            bias.mul_add(of_x, V::load(to)).store(to);
                        }
                    }
                }
                let lanes = here << shift;
                for lane in (0..lanes).step_by(LANES) {
                    let place = V::add_int(lane_groups, V::splat_int((lane >> shift) as i32));
                    for column in 0..count.next_multiple_of(decoded::COLUMNS) {
                        let row = column.min(count - 1);
                        let scales = of_groups.add(row * LANES);
                        let scales = if V::IN_PLACE {
                            V::load_each(scales.add(lane >> shift), shift)
                        } else {
                            V::load(scales).permute(place)
                        };
                        scales.store(of_lanes.add(column * LANES));
                        // The next chunk of this row, and this chunk of a row in the next block.
                        let from = packed.wrapping_add(row * row_bytes);
                        prefetch(from.wrapping_add(bytes), bytes);
                        prefetch_far(from.wrapping_add(LANES * row_bytes), bytes);
                    }
                    let chunk = Chunk::<D> {
                        packed,
                        row_bytes,
                        lanes: LANES.min(lanes - lane),
                        count,
                        x,
                        apart,
                        rows,
                        sums,
                        scales: of_lanes,
                        dots: PhantomData,
                    };
                    if const { Part::<V, D>::DECODES_ONCE } && rows > 2 * most::<V, D>() {
                        V::part(decoded::Decoded(chunk));
                    } else {
                        V::part(chunk);
                    }
                    packed = packed.wrapping_add(bytes);
                    x = x.wrapping_add(D::VECTORS * apart);
                }
            }
            for row in 0..rows {
                let mut all = [V::splat(0.0); LANES];
                for (column, all) in all.iter_mut().enumerate().take(count) {
                    let at = column * PITCH + row * LANES;
                    *all = V::load(sums.add(at)) + V::load(biases.add(at));
                }
                V::reduce_add_each(all).store(to.add(row).cast());
            }
        }
    }
}

/// Adds the products of a chunk of `count` rows of weights with `rows` rows of x.
struct Chunk<D> {
    packed: *const u8,
    row_bytes: usize,
    /// Lanes of the chunk that exist.
    lanes: usize,
    count: usize,
    /// A vector of each row, and `apart` floats after it the next one of each.
    x: *const f32,
    apart: usize,
    rows: usize,
    /// For each row of weights a [`PITCH`], and there a vector for each row of x.
    sums: *mut f32,
    /// A vector of each row of weights.
    scales: *const f32,
    dots: PhantomData<D>,
}

/// The most rows of x in a tile.
const fn most<V: F32x16, D: Chunks>() -> usize {
    Part::<V, D>::DECODED_ROWS
}

type Part<V, D> = <<D as Chunks>::Arithmetic as Arithmetic>::Register<V>;

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
    unsafe fn add<V: F32x16, const R: usize>(
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
