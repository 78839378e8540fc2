//! Computes a range of the result's columns, sixteen at a time: the products, then the steps after
//! them. The element type of the call determines only the type of scales and results, so the
//! products are compiled once for all types.

use std::marker::PhantomData;
use std::ops::Range;

use super::finish::{Finish, swiglu};
use super::operands::{BLOCKS, Kind, MOST_ROWS, Operands};
use super::prepare::Prepared;
use super::{Call, Join};
use crate::element::{Element, Float, with_element};
use crate::linear::together::BAND;
use crate::simd::{F32x16, Kernel, LANES, Lines};

/// A way to multiply rows of packed weights with prepared rows of x.
pub(super) trait Dots: Sized {
    const BITS: usize;
    /// Whether each group has a scale and a bias, of the element type of the call or, for K-quants,
    /// in blocks. Otherwise a group has a scale of one byte.
    const AFFINE: bool;
    /// The element type of the call, if these products support only one type.
    const ELEMENT: Option<Element> = None;
    /// Whether [`many`](Self::many) multiplies every band of several rows.
    const BANDED: bool = false;
    /// Whether the products multiply bytes.
    const BYTES: bool = false;

    /// Multiplies one row of weights with `M` rows of x; each product is the sum of sixteen lanes.
    ///
    /// # Safety
    /// The operands belong to a row of the call, and are prepared in the order of these products.
    unsafe fn dot<V: F32x16, const M: usize>(row: Operands, rows: [usize; M]) -> [V; M];

    /// Multiplies `count` rows of weights, at most sixteen, with a band of several rows of x, and
    /// returns true. Returns false if x is not laid out in bands for these products.
    ///
    /// # Safety
    /// The contract of [`dot`](Self::dot) holds for each of the rows; `to` has a row for each row
    /// of x.
    #[inline(always)]
    unsafe fn many<V: F32x16>(
        _first: Operands,
        _count: usize,
        _band: Range<usize>,
        _to: *mut [f32; LANES],
    ) -> bool {
        false
    }

    /// Multiplies `count` rows of weights, at most sixteen, with row `m` of x. The result has a
    /// lane for each row of weights.
    ///
    /// # Safety
    /// The contract of [`dot`](Self::dot) holds for each of the rows from `first` on.
    #[inline(always)]
    unsafe fn block<V: F32x16>(first: Operands, m: usize, count: usize) -> V {
        let mut sums = [V::splat(0.0); LANES];
        for (column, sum) in sums.iter_mut().enumerate().take(count) {
            // SAFETY: the caller's contract.
            [*sum] = unsafe { Self::dot::<V, 1>(first.below(column), [m]) };
        }
        V::reduce_add_each(sums)
    }
}

pub(super) struct Columns<'a> {
    pub call: &'a Call<'a>,
    pub prepared: &'a Prepared,
    pub finish: &'a Finish<'a>,
    pub range: Range<usize>,
}

impl Columns<'_> {
    /// Computes the columns of the range.
    ///
    /// # Safety
    /// The contract of [`super::quantized_matmul`] holds; no other thread writes these columns.
    #[inline(always)]
    pub unsafe fn run<V: F32x16, D: Dots>(&self) {
        let (bits, affine, element) = (D::BITS, D::AFFINE, D::ELEMENT);
        let kind = Kind { bits, affine, element, band: BAND, multiply: multiply::<V, D> };
        // SAFETY: the caller's contract.
        unsafe { self.run_by::<V>(kind) };
    }

    /// Computes the columns with the products of `kind`.
    ///
    /// # Safety
    /// The contracts of [`run`](Self::run) and of `kind.multiply` hold.
    #[inline(always)]
    pub unsafe fn run_by<V: F32x16>(&self, kind: Kind) {
        // SAFETY: the caller's contract.
        unsafe { V::part(Bands { columns: self, kind }) };
    }
}

/// Computes the columns for one band of rows of x after another. All types of [`Dots`] share this
/// function.
struct Bands<'a> {
    columns: &'a Columns<'a>,
    kind: Kind,
}

impl Kernel for Bands<'_> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let rows = self.columns.call.rows;
        let most = if V::SMALL { 1 } else { self.kind.band };
        for top in (0..rows).step_by(most) {
            let end = rows.min(top + most);
            // SAFETY: the caller's contract; each row is in one band.
            unsafe { self.band::<V>(top..end) };
        }
    }
}

impl Bands<'_> {
    /// Computes the columns of the range for the rows of a band.
    #[inline(always)]
    unsafe fn band<V: F32x16>(&self, band: Range<usize>) {
        let Columns { call, prepared, finish, ref range } = *self.columns;
        let (mut sums, mut ups) = (Sums::uninit(), Sums::uninit());
        let (sums, ups) = (sums.as_mut_ptr().cast(), ups.as_mut_ptr().cast());
        let mut first = 0;
        let step = BLOCKS * LANES;
        for (index, weights) in call.weights.iter().enumerate() {
            let joined = call.join == Join::Swiglu;
            if joined && index > 0 {
                break;
            }
            let second = if joined { &call.weights[1] } else { weights };
            let end = range.end.min(first + weights.columns);
            for at in (range.start.max(first)..end).step_by(step) {
                let count = (end - at).min(step);
                let places = [(weights, at - first, sums), (second, at, ups)];
                // SAFETY: the caller's contract; these columns are within the range.
                unsafe {
                    for (weights, at, to) in places.into_iter().take(1 + usize::from(joined)) {
                        let operands =
                            Operands::first(self.kind, call, weights, prepared).below(at);
                        (self.kind.multiply)(operands, count, band.clone(), to);
                    }
                    let band = band.clone();
                    let (sums, ups) = (sums.cast_const(), joined.then_some(ups.cast_const()));
                    with_element!(self.kind.element.unwrap_or(call.element), T => {
                        let element = PhantomData::<T>;
                        V::part(Write { finish, band, at, count, sums, ups, element });
                    });
                }
            }
            first += weights.columns;
        }
    }
}

/// Multiplies `count` rows of weights, in blocks of sixteen, with a band of rows of x.
///
/// # Safety
/// The machine has the features of the vectors, and the contract of [`Dots::dot`] holds for each of
/// the rows. `to` has the layout of [`Sums`].
unsafe fn multiply<V: F32x16, D: Dots>(
    operands: Operands,
    count: usize,
    band: Range<usize>,
    to: *mut [f32; LANES],
) {
    let dots = PhantomData::<D>;
    // SAFETY: the caller's contract.
    unsafe {
        if const { V::SMALL } || band.len() == 1 {
            V::part(Row { operands, count, m: band.start, to, dots });
        } else {
            V::part(Band { operands, count, band, to, dots });
        }
    }
}

/// Room for the sums of blocks of columns, one block after another. A block has sixteen columns for
/// each row of a band.
type Sums = Lines<{ BLOCKS * MOST_ROWS * LANES }>;

/// Finishes columns of a band of rows and writes them.
struct Write<'a, T> {
    finish: &'a Finish<'a>,
    band: Range<usize>,
    at: usize,
    count: usize,
    /// The sums, in the layout of [`Sums`].
    sums: *const [f32; LANES],
    /// The sums of the second factors of swiglu.
    ups: Option<*const [f32; LANES]>,
    element: PhantomData<T>,
}

impl<T: Float> Kernel for Write<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let rows = self.band.len();
        for (block, from) in (0..self.count).step_by(LANES).enumerate() {
            let count = (self.count - from).min(LANES);
            for (i, m) in self.band.clone().enumerate() {
                // SAFETY: the caller's contract; each block of sums has sixteen floats.
                unsafe {
                    let at = block * rows + i;
                    let mut y = T::round(V::load(self.sums.add(at).cast()));
                    if let Some(ups) = self.ups {
                        let up = V::load(ups.add(at).cast());
                        y = swiglu::<V, T>(y, T::round(up));
                    }
                    self.finish.write::<V, T>(y, m, self.at + from, count);
                }
            }
        }
    }
}

/// Multiplies `count` rows of weights, in blocks of sixteen, with row `m` of x.
/// [`Band`] is a separate kernel: if one function did the work of both, the compiler would load
/// constants again for each chunk of weights.
struct Row<'a, D> {
    operands: Operands<'a>,
    count: usize,
    m: usize,
    /// Sixteen columns for each block.
    to: *mut [f32; LANES],
    dots: PhantomData<D>,
}

impl<D: Dots> Kernel for Row<'_, D> {
    const BF16: bool = false;
    const BYTES: bool = D::BYTES;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for (block, from) in (0..self.count).step_by(LANES).enumerate() {
            let (operands, count) = (self.operands.below(from), (self.count - from).min(LANES));
            // SAFETY: the caller's contract; the rows belong to the weights, and the row of x
            // belongs to the call.
            unsafe { D::block::<V>(operands, self.m, count).store(self.to.add(block).cast()) };
        }
    }
}

/// Multiplies `count` rows of weights, in blocks of sixteen, with several rows of x.
struct Band<'a, D> {
    operands: Operands<'a>,
    count: usize,
    band: Range<usize>,
    /// The sums, in the layout of [`Sums`].
    to: *mut [f32; LANES],
    dots: PhantomData<D>,
}

impl<D: Dots> Kernel for Band<'_, D> {
    const BF16: bool = false;
    const BYTES: bool = D::BYTES;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for (block, from) in (0..self.count).step_by(LANES).enumerate() {
            let (operands, count) = (self.operands.below(from), (self.count - from).min(LANES));
            let to = self.to.wrapping_add(block * self.band.len());
            // SAFETY: the caller's contract; the rows belong to the weights, and the rows of x
            // belong to the call.
            unsafe {
                if D::many::<V>(operands, count, self.band.clone(), to) {
                    continue;
                }
                // These rows of x stay in the first-level cache while all columns are computed.
                let all = self.band.clone();
                for m in all.step_by(if D::BANDED { 1 } else { TOGETHER }) {
                    let (rows, to) =
                        (m..self.band.end.min(m + TOGETHER), to.add(m - self.band.start));
                    if const { D::BANDED } || rows.len() == 1 {
                        V::part(Row { operands, count, m, to, dots: self.dots });
                    } else {
                        together::<V, D>(operands, count, rows, to);
                    }
                }
            }
        }
    }
}

/// The number of rows of x that share the decoded weights.
const TOGETHER: usize = 4;

/// Multiplies `count` rows of weights, at most sixteen, with up to [`TOGETHER`] rows of x. If there
/// are fewer rows, repeats the last one. Decoding takes most of the time, so this is not slow.
///
/// # Safety
/// The contract of [`Dots::dot`] holds for each of the rows; `to` has a row for each row of x.
#[inline(always)]
unsafe fn together<V: F32x16, D: Dots>(
    operands: Operands,
    count: usize,
    rows: Range<usize>,
    to: *mut [f32; LANES],
) {
    let mut numbers = [rows.end - 1; TOGETHER];
    for (number, row) in numbers.iter_mut().zip(rows.clone()) {
        *number = row;
    }
    let mut sums = [[V::splat(0.0); LANES]; TOGETHER];
    for column in 0..count {
        // SAFETY: the row belongs to the weights, and the rows of x belong to the call.
        let dots = unsafe { D::dot::<V, TOGETHER>(operands.below(column), numbers) };
        for (sums, dot) in sums.iter_mut().zip(dots) {
            sums[column] = dot;
        }
    }
    // Iterate by reference, since a copy of the sums would take longer than their additions.
    for (i, sums) in sums.iter().enumerate().take(rows.len()) {
        // SAFETY: each row has sixteen floats.
        unsafe { V::reduce_add_each(*sums).store(to.add(i).cast()) };
    }
}
