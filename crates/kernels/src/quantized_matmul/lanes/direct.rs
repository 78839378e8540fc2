//! Products of bytes with one row of x. Transposing codes would take longer than their products,
//! so codes are multiplied in the order of memory, and the sums of sixteen weights, or of 32 if two
//! codes share a byte, are transposed.

use std::array::from_fn;
use std::marker::PhantomData;

use super::block::{Block, Part};
use super::bytes::added;
use super::words::{AHEAD, BYTES, LINE, PART, before_odd, load_codes, splits_pairs};
use crate::quantized_matmul::format::Format;
use crate::quantized_matmul::operands::Operands;
use crate::simd::transpose::numbers;
use crate::simd::{F32x16, Kernel, LANES, Lines, prefetch_far};

/// Whether these products are compiled for a format. Sums of sixteen bits have no room for the
/// products of codes of eight bits.
pub const fn supports<V: F32x16, F: Format>() -> bool {
    F::AFFINE && !(V::ADDS_PAIRS && F::BITS == 8)
}

/// Adds the products of a part with the only row of the band to its sums.
///
/// # Safety
/// The contract of [`Block`], and [`supports`] holds; the scales are written, and the machine has
/// the features of the vectors.
pub unsafe fn products<V: F32x16, F: Format>(part: &Part) {
    // SAFETY: the caller's contract.
    unsafe { V::part(Direct::<F>(part, PhantomData)) }
}

/// How many rows ahead of their products weights are prefetched. On a Zen 3 with AVX2, products of
/// 4-bit weights took 0.9 of the time with 16 rows as with 32. With AVX-512, they took as long with
/// either number on a Xeon. A Zen 5 was not tried, but transposed codes take longer there with 16.
const fn ahead<V: F32x16>() -> usize {
    if V::ONE_REGISTER { AHEAD } else { LANES }
}

struct Direct<'a, F>(&'a Part<'a>, PhantomData<F>);

impl<F: Format> Kernel for Direct<'_, F> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;
    const DOTS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Part { block, ref groups, words, .. } = *self.0;
        let Block { first, band, to, bias_factor, .. } = block;
        let Operands { axis, group, prepared, .. } = *first;
        debug_assert!(LANES * group / Self::QUARTER <= PART / BYTES);
        let padded = (axis / group).next_multiple_of(LANES);
        // SAFETY: the caller's contract.
        unsafe {
            self.sums_of_quarters::<V>(prepared.row(band.start), words);
            let of_x = prepared.sums(band.start).add(groups.start);
            let (mut sums, mut quarters) = (V::load(*to), words.cast_const());
            let factor = V::splat(*bias_factor);
            for index in 0..groups.len() {
                let mut total = V::splat_int(0);
                for _ in 0..group / Self::QUARTER {
                    total = V::add_int(total, V::load(quarters).to_bits());
                    quarters = quarters.add(LANES);
                }
                let of_x = of_x.add(index);
                let of_x = [V::splat(*of_x.add(padded)), V::splat(*of_x)];
                let scale = self.0.scales::<V>(index);
                let bias = match *bias_factor == 1.0 {
                    true => self.0.biases::<V>(index),
                    false => scale * factor,
                };
                sums = added(total, [scale, bias], of_x, sums);
            }
            sums.store(*to);
        }
    }
}

impl<F: Format> Direct<'_, F> {
    /// Whether a byte has the codes of two neighbors.
    const APART: bool = splits_pairs(F::AFFINE, F::BITS);
    /// The number of weights whose products are in a quarter of a vector.
    const QUARTER: usize = if Self::APART { 32 } else { 16 };
    /// The number of weights of a row that are loaded at once, and their number of bytes.
    const WIDE: usize = 4 * Self::QUARTER;
    const WIDE_BYTES: usize = Self::WIDE / 8 * F::BITS as usize;

    /// Multiplies the weights of the part with a row of x. Writes a vector of integers, with the
    /// sums of sixteen rows of weights, for each [`QUARTER`](Self::QUARTER) weights of a row.
    ///
    /// # Safety
    /// The contract of [`products`]; there is room for full vectors of quarters.
    #[inline(always)]
    unsafe fn sums_of_quarters<V: F32x16>(&self, x: *const u8, mut to: *mut f32) {
        let Part { block: Block { first, .. }, rows, ref groups, .. } = *self.0;
        let end = groups.end * first.group;
        let mut copy = Lines::<{ LANES * LANES }>::uninit();
        let copy = copy.as_mut_ptr();
        let copies = from_fn(|row| copy.cast_const().wrapping_add(row * LANES).cast());
        for at in (groups.start * first.group..end).step_by(Self::WIDE) {
            let (mut packed, mut offset) = (&rows.packed, at / 8 * F::BITS as usize);
            let count = Self::WIDE.min(end - at);
            prefetch_far(
                rows.later(const { ahead::<V>() }).wrapping_add(LANES * offset),
                LANES * Self::WIDE_BYTES,
            );
            // SAFETY: the caller's contract; 32 weights are `BITS` words, and words after the last
            // one are zeros. Loads of x end at most a line after its row. There the next row
            // begins, or the sums, which are at least two lines.
            unsafe {
                if count < Self::WIDE {
                    for (row, packed) in packed.iter().enumerate() {
                        let from = packed.wrapping_add(offset).cast();
                        let words = count / 32 * F::BITS as usize;
                        V::load_first(from, words).store(copy.add(row * LANES));
                    }
                    (packed, offset) = (&copies, 0);
                }
                let x = Self::of_x::<V>(x.add(at));
                let mut fours = [V::splat_int(0); 4];
                for (four, packed) in fours.iter_mut().zip(packed.as_chunks::<4>().0) {
                    let mut rows = [V::splat_int(0); 4];
                    for (row, packed) in rows.iter_mut().zip(packed) {
                        *row = Self::sums::<V>(load_codes::<V, F>(packed.add(offset)), x);
                    }
                    *four = V::sums_of_quarters(rows);
                }
                // Vector i gets quarter i of each four rows.
                let [a, b, c, d] = fours;
                let [even, odd] = V::unzip_quarters(a, b);
                let [next_even, next_odd] = V::unzip_quarters(c, d);
                let [first, third] = V::unzip_quarters(even, next_even);
                let [second, fourth] = V::unzip_quarters(odd, next_odd);
                for quarter in [first, second, third, fourth] {
                    V::from_bits(quarter).store(to);
                    to = to.add(LANES);
                }
            }
        }
    }

    /// Loads bytes of x for [`WIDE`](Self::WIDE) weights: if a byte of weights has two codes, first
    /// the bytes for the lower codes.
    ///
    /// # Safety
    /// Two lines of x are readable.
    #[inline(always)]
    unsafe fn of_x<V: F32x16>(x: *const u8) -> [V::Int; 2] {
        // SAFETY: the caller's contract.
        let [low, high] = unsafe { [V::load(x.cast()), V::load(x.add(LINE).cast())] };
        if !Self::APART {
            return [low.to_bits(), high.to_bits()];
        }
        // In x, words with the bytes for lower codes and for upper codes alternate.
        let order = numbers::<V>(before_odd);
        V::unzip_quarters(low.permute(order).to_bits(), high.permute(order).to_bits())
    }

    #[inline(always)]
    fn sums<V: F32x16>(codes: V::Int, x: [V::Int; 2]) -> V::Int {
        let sums = V::splat_int(0);
        if !Self::APART {
            return V::add_pairs(sums, codes, x[0]);
        }
        let sums = V::add_pairs(sums, V::byte_fields(codes, 0, F::BITS), x[0]);
        V::add_pairs(sums, V::byte_fields(codes, 4, F::BITS), x[1])
    }
}
