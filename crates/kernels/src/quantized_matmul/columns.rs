//! Computes a range of the result's columns, sixteen at a time: the products, then the steps that
//! follow them.

use std::marker::PhantomData;
use std::ops::Range;

use super::finish::{Finish, swiglu};
use super::prepare::Prepared;
use super::{Call, Join, Weights};
use crate::element::Float;
use crate::linear::together::BAND;
use crate::simd::{F32x16, Kernel, LANES, prefetch_far};

/// Blocks of sixteen columns that one call computes, since a call takes about 60 ns (Zen 4).
const BLOCKS: usize = 8;

/// One row of weights, and the prepared rows of x.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub packed: *const u8,
    pub scales: *const u8,
    pub biases: *const u8,
    pub axis: usize,
    pub group: usize,
    pub prepared: &'a Prepared,
}

/// How many bytes ahead of the loads weights are prefetched; scales are prefetched equally far.
const AHEAD: usize = 8192;

impl Operands<'_> {
    /// The row that is `rows` rows below.
    #[inline(always)]
    pub fn below<D: Dots>(mut self, rows: usize) -> Self {
        let scales = rows * (self.axis / self.group) * D::SCALE_BYTES;
        self.packed = self.packed.wrapping_add(rows * (self.axis * D::BITS / 8));
        self.scales = self.scales.wrapping_add(scales);
        self.biases = self.biases.wrapping_add(scales);
        self
    }

    /// Prefetches the scales and biases that belong to weights `AHEAD` bytes after the groups from
    /// `at` on, since hardware prefetchers do not follow two more streams this slow.
    #[inline(always)]
    pub fn prefetch_scales<D: Dots>(&self, at: usize) {
        let ahead = at + AHEAD * 8 / (self.group * D::BITS);
        prefetch_far(self.scales.wrapping_add(ahead * D::SCALE_BYTES), 1);
        prefetch_far(self.biases.wrapping_add(ahead * D::SCALE_BYTES), 1);
    }
}

/// Prefetches the weights `AHEAD` bytes after a chunk, for a chunk of `bytes` bytes.
#[inline(always)]
pub(super) fn prefetch_weights(chunk: *const u8, bytes: usize) {
    prefetch_far(chunk.wrapping_add(AHEAD), bytes);
}

/// How a row of weights is multiplied.
pub(super) trait Dots: Sized {
    const BITS: usize;
    const SCALE_BYTES: usize;
    /// Whether it multiplies bytes.
    const BYTES: bool = false;

    /// Multiplies one row of weights with `M` rows of x; each product is the sum of sixteen lanes.
    ///
    /// # Safety
    /// The operands belong to a row of the call, and are prepared in this trait's order.
    unsafe fn dot<V: F32x16, const M: usize>(row: Operands, rows: [usize; M]) -> [V; M];

    /// Multiplies `count` rows of weights, at most sixteen, with a band of several rows of x, if
    /// there is a way that decodes weights once for all of them.
    ///
    /// # Safety
    /// The contract of [`dot`](Self::dot), for each of the rows; `to` has a row for each of x.
    #[inline(always)]
    unsafe fn many<V: F32x16>(
        _first: Operands,
        _count: usize,
        _band: Range<usize>,
        _to: *mut [f32; LANES],
    ) -> bool {
        false
    }

    /// Multiplies `count` rows of weights, at most sixteen, with row `m` of x: a lane for each.
    ///
    /// # Safety
    /// The contract of [`dot`](Self::dot), for each of the rows from `first` on.
    #[inline(always)]
    unsafe fn block<V: F32x16>(first: Operands, m: usize, count: usize) -> V {
        let mut sums = [V::splat(0.0); LANES];
        for (column, sum) in sums.iter_mut().enumerate().take(count) {
            // SAFETY: the caller's contract.
            [*sum] = unsafe { Self::dot::<V, 1>(first.below::<Self>(column), [m]) };
        }
        V::reduce_add_each(sums)
    }
}

pub(super) struct Columns<'a, T> {
    pub call: &'a Call<'a>,
    pub prepared: &'a Prepared,
    pub finish: &'a Finish<'a, T>,
    pub range: Range<usize>,
}

impl<T: Float> Columns<'_, T> {
    /// Computes the columns without closures, since a closure that is not inlined would be compiled
    /// without the level's features.
    ///
    /// # Safety
    /// The contract of [`super::quantized_matmul`]; no other thread writes these columns.
    #[inline(always)]
    pub unsafe fn run<V: F32x16, D: Dots>(&self) {
        let rows = self.call.rows;
        // SAFETY: the caller's contract; the bands hold each row once.
        unsafe {
            if rows == 1 || V::SMALL {
                for row in 0..rows {
                    self.band::<V, D, 1>(row..row + 1);
                }
                return;
            }
            for top in (0..rows).step_by(BAND) {
                self.band::<V, D, BAND>(top..rows.min(top + BAND));
            }
        }
    }

    /// Computes the range's columns of up to `B` rows.
    #[inline(always)]
    unsafe fn band<V: F32x16, D: Dots, const B: usize>(&self, band: Range<usize>) {
        let call = self.call;
        let mut first = 0;
        for (index, weights) in call.weights.iter().enumerate() {
            if call.join == Join::Swiglu && index > 0 {
                break;
            }
            let end = self.range.end.min(first + weights.columns);
            for at in (self.range.start.max(first)..end).step_by(BLOCKS * LANES) {
                let count = (end - at).min(BLOCKS * LANES);
                // SAFETY: the caller's contract; these columns are some of this range.
                unsafe {
                    let mut sums = [[[0.0f32; LANES]; B]; BLOCKS];
                    self.products::<V, D, B>(weights, at - first, count, &band, &mut sums);
                    let mut ups = None;
                    if call.join == Join::Swiglu {
                        let sums = ups.insert([[[0.0f32; LANES]; B]; BLOCKS]);
                        self.products::<V, D, B>(&call.weights[1], at, count, &band, sums);
                    }
                    V::part(Write {
                        finish: self.finish,
                        band: band.clone(),
                        at,
                        count,
                        sums: sums.as_flattened(),
                        ups: ups.as_ref().map(|ups| ups.as_flattened()),
                        rows: B,
                    });
                }
            }
            first += weights.columns;
        }
    }

    /// Computes up to `BLOCKS` blocks of columns of a band of rows.
    #[inline(always)]
    unsafe fn products<V: F32x16, D: Dots, const B: usize>(
        &self,
        weights: &Weights,
        at: usize,
        count: usize,
        band: &Range<usize>,
        to: &mut [[[f32; LANES]; B]; BLOCKS],
    ) {
        let first = Operands {
            packed: weights.packed,
            scales: weights.scales,
            biases: weights.biases,
            axis: self.call.axis,
            group: self.call.group,
            prepared: self.prepared,
        };
        let (operands, band) = (first.below::<D>(at), band.clone());
        // SAFETY: the caller's contract.
        unsafe { V::part(Products::<D, B> { operands, count, band, to, dots: PhantomData }) };
    }
}

/// Finishes columns of a band of rows and writes them.
struct Write<'a, T> {
    finish: &'a Finish<'a, T>,
    band: Range<usize>,
    at: usize,
    count: usize,
    /// Block after block, `rows` rows of sixteen columns.
    sums: &'a [[f32; LANES]],
    /// The second factors of swiglu.
    ups: Option<&'a [[f32; LANES]]>,
    rows: usize,
}

impl<T: Float> Kernel for Write<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for (block, from) in (0..self.count).step_by(LANES).enumerate() {
            let count = (self.count - from).min(LANES);
            for (i, m) in self.band.clone().enumerate() {
                // SAFETY: the caller's contract; each is sixteen floats.
                unsafe {
                    let at = block * self.rows + i;
                    let mut y = V::load(self.sums[at].as_ptr());
                    if let Some(ups) = self.ups {
                        let up = V::load(ups[at].as_ptr());
                        y = swiglu::<V, T>(T::round(y), T::round(up));
                    }
                    self.finish.write(T::round(y), m, self.at + from, count);
                }
            }
        }
    }
}

/// Multiplies `count` rows of weights, at most `BLOCKS` blocks, with a band of up to `B` rows of x.
struct Products<'a, D, const B: usize> {
    operands: Operands<'a>,
    count: usize,
    band: Range<usize>,
    to: &'a mut [[[f32; LANES]; B]; BLOCKS],
    dots: PhantomData<D>,
}

impl<D: Dots, const B: usize> Kernel for Products<'_, D, B> {
    const BF16: bool = false;
    const BYTES: bool = D::BYTES;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for (to, from) in self.to.iter_mut().zip((0..self.count).step_by(LANES)) {
            let (operands, count) =
                (self.operands.below::<D>(from), (self.count - from).min(LANES));
            // SAFETY: the caller's contract.
            unsafe { block::<V, D, B>(operands, count, self.band.clone(), to) };
        }
    }
}

/// Multiplies `count` rows of weights, at most sixteen, with a band of rows of x.
///
/// # Safety
/// The contract of [`Dots::dot`], for each of the rows.
#[inline(always)]
unsafe fn block<V: F32x16, D: Dots, const B: usize>(
    operands: Operands,
    count: usize,
    band: Range<usize>,
    to: &mut [[f32; LANES]; B],
) {
    if B == 1 || V::SMALL {
        // SAFETY: the rows are some of the weights', the row of x is the call's; sixteen floats.
        unsafe {
            D::block::<V>(operands, band.start, count).store(to[0].as_mut_ptr());
        }
        return;
    }
    // SAFETY: the caller's contract.
    if unsafe { D::many::<V>(operands, count, band.clone(), to.as_mut_ptr()) } {
        return;
    }
    // These rows of x stay in the first-level cache while all columns are computed.
    let mut m = band.start;
    while m < band.end {
        let to = &mut to[m - band.start..];
        // SAFETY: the caller's contract.
        m += unsafe {
            match band.end - m {
                1 => together::<V, D, 1>(operands, count, m..m + 1, to),
                _ => together::<V, D, 4>(operands, count, m..band.end, to),
            }
        };
    }
}

/// Multiplies `count` rows of weights, at most sixteen, with the first `M` rows of x, or those that
/// there are: fewer rows cost as much, since decoding dominates. Returns their number.
///
/// # Safety
/// The contract of [`Dots::dot`], for each of the rows.
#[inline(always)]
unsafe fn together<V: F32x16, D: Dots, const M: usize>(
    operands: Operands,
    count: usize,
    rows: Range<usize>,
    to: &mut [[f32; LANES]],
) -> usize {
    let mut numbers = [rows.end - 1; M];
    for (number, row) in numbers.iter_mut().zip(rows.clone()) {
        *number = row;
    }
    let mut sums = [[V::splat(0.0); LANES]; M];
    for column in 0..count {
        // SAFETY: the row is one of the weights', the rows of x are the call's.
        let dots = unsafe { D::dot::<V, M>(operands.below::<D>(column), numbers) };
        for (sums, dot) in sums.iter_mut().zip(dots) {
            sums[column] = dot;
        }
    }
    // By reference, since a copy of the sums would take longer than their additions.
    for (to, sums) in to.iter_mut().zip(&sums).take(rows.len()) {
        // SAFETY: sixteen floats.
        unsafe { V::reduce_add_each(*sums).store(to.as_mut_ptr()) };
    }
    rows.len().min(M)
}
