//! Products of tokens of 16-bit x with weights of two, four or eight bits, in integers.
//!
//! Within a group of weights, x is `unit * (65536 a + 256 b + c)` with signed bytes a, b and c, and
//! a power of two that suits the group's largest element. bf16 elements down to 2^-14 of it are
//! exact, f16 elements down to 2^-11, and smaller ones are off by at most 2^-22 of it. Products of
//! bytes are added up as integers, which loses nothing, before a conversion to f32 rounds them.

mod split;

use std::marker::PhantomData;
use std::ops::Range;

use super::Call;
use super::columns::{Dots, Operands};
use super::format::{Format, Scales};
use crate::Machine;
use crate::element::{Element, Float};
use crate::simd::transpose::numbers;
use crate::simd::{F32x16, LANES, prefetch_far};
pub(super) use split::prepare;

/// The bytes of an element.
const DIGITS: usize = 3;
/// The bytes of a vector.
const BYTES: usize = 4 * LANES;
/// Rows of weights that share the loads of x and are read as parallel streams.
const TOGETHER: usize = 4;
/// In rows of fewer bytes, the next block's weights are prefetched instead of the next row's.
const SHORT: usize = 1024;

/// Whether these products support a call on this machine.
pub(super) fn takes(machine: Machine, call: &Call) -> bool {
    // Both words of eight bytes that add up in the same lanes are of one group.
    let whole = call.group * call.bits as usize >= 2 * 64;
    machine.level.adds_digits() && whole
}

/// Whether these products support the types.
pub(super) const fn support<T: Float, F: Format>() -> bool {
    F::AFFINE && F::BITS.is_power_of_two() && size_of::<T>() == 2
}

/// Elements of two chunks.
const fn pair<F: Format>() -> usize {
    2 * F::CHUNK
}

/// The group of each lane of [`F32x16::zip_words`] of two chunks, with `2^shift` lanes a group.
#[inline(always)]
fn pair_groups<V: F32x16>(shift: u32) -> V::Int {
    numbers::<V>(|lane| (lane / 4 * 4 + lane / 2 % 2 * LANES) >> shift)
}

/// Adds up products of bytes.
pub(super) struct Digits<T, F>(PhantomData<(T, F)>);

impl<T: Float, F: Format> Dots for Digits<T, F> {
    const BITS: usize = F::BITS as usize;
    const AFFINE: bool = true;
    const ELEMENT: Option<Element> = Some(T::ELEMENT);
    const BYTES: bool = true;

    #[inline(always)]
    unsafe fn dot<V: F32x16, const M: usize>(row: Operands, rows: [usize; M]) -> [V; M] {
        let common = Common::new::<T, F>(&row, rows);
        let ahead = [common.row_bytes, common.scale_bytes];
        // SAFETY: the caller's contract.
        let [sums] = unsafe { Self::dots::<V, 1, M>(&common, row, 1, ahead, None) };
        sums
    }

    /// Rows of x one by one where [`block`](Self::block) adds up in the order of short rows.
    #[inline(always)]
    unsafe fn many<V: F32x16>(
        first: Operands,
        count: usize,
        band: Range<usize>,
        to: *mut [f32; LANES],
    ) -> bool {
        let short = count == LANES && is_short(first.axis / first.group);
        if short {
            for (i, m) in band.enumerate() {
                // SAFETY: the caller's contract.
                unsafe { Self::block::<V>(first, m, count).store(to.add(i).cast()) };
            }
        }
        short
    }

    #[inline(always)]
    unsafe fn block<V: F32x16>(first: Operands, m: usize, count: usize) -> V {
        let mut sums = [V::splat(0.0); LANES];
        // SAFETY: the caller's contract.
        unsafe {
            if count < LANES {
                for (column, sum) in sums.iter_mut().enumerate().take(count) {
                    [*sum] = Self::dot::<V, 1>(first.below(column), [m]);
                }
                return V::reduce_add_each(sums);
            }
            let common = Common::new::<T, F>(&first, [m]);
            if is_short(common.groups) {
                return Self::short_rows(&common, first);
            }
            // Each stream has four rows, and goes on in the next block.
            const STREAM: usize = LANES / TOGETHER;
            let mut row = first;
            for i in 0..STREAM {
                let next = if common.row_bytes < SHORT {
                    LANES
                } else if i + 1 < STREAM {
                    1
                } else {
                    LANES - STREAM + 1
                };
                // The scales of all rows lie side by side.
                let scales = (LANES + (TOGETHER - 1) * i) * common.scale_bytes;
                let ahead = [next * common.row_bytes, scales];
                let dots = Self::dots::<V, TOGETHER, 1>(&common, row, STREAM, ahead, None);
                for (stream, [sum]) in dots.into_iter().enumerate() {
                    sums[stream * STREAM + i] = sum;
                }
                row = row.below(1);
            }
        }
        V::reduce_add_each(sums)
    }
}

/// Whether the scales of four rows of this number of groups are one vector.
const fn is_short(groups: usize) -> bool {
    groups * TOGETHER == LANES
}

/// Sizes and addresses that are common to all rows of weights when they are multiplied with `M`
/// rows of x. They are computed once, since the compiler does not move them across a prefetch.
struct Common<const M: usize> {
    groups: usize,
    /// A group has `2^shift` lanes of a chunk.
    shift: u32,
    row_bytes: usize,
    scale_bytes: usize,
    /// Bytes of each digit of x.
    padded: usize,
    x: [*const u8; M],
    /// The groups' sums, followed by their units.
    sums: [*const f32; M],
}

impl<const M: usize> Common<M> {
    #[inline(always)]
    fn new<T: Float, F: Format>(row: &Operands, of_x: [usize; M]) -> Self {
        let groups = row.axis / row.group;
        let (mut x, mut sums) = ([std::ptr::null(); M], [std::ptr::null(); M]);
        for m in 0..M {
            (x[m], sums[m]) = (row.prepared.row(of_x[m]), row.prepared.sums(of_x[m]));
        }
        Self {
            groups,
            shift: (row.group / F::PER_LANE).trailing_zeros(),
            row_bytes: row.axis * F::BITS as usize / 8,
            scale_bytes: groups * size_of::<T>(),
            padded: row.axis.next_multiple_of(pair::<F>()),
            x,
            sums,
        }
    }
}

impl<T: Float, F: Format> Digits<T, F> {
    /// Multiplies sixteen rows of four groups: the scales of four rows are one vector.
    ///
    /// # Safety
    /// The contract of [`Dots::block`].
    #[inline(always)]
    unsafe fn short_rows<V: F32x16>(common: &Common<1>, mut row: Operands) -> V {
        let [of_x] = common.sums;
        let mut sums = [V::splat(0.0); LANES / TOGETHER];
        // SAFETY: the caller's contract; the scales and biases of four rows lie side by side.
        unsafe {
            let again = numbers::<V>(|lane| lane % (LANES / TOGETHER));
            let unit = V::load(of_x.add(LANES)).permute(again);
            let of_x = V::load(of_x).permute(again);
            for sums in &mut sums {
                let Scales { scales, biases, .. } = row.scales::<Self>();
                let (scales, biases) = (T::load::<V>(scales.cast()), T::load::<V>(biases.cast()));
                let ahead = [LANES * common.row_bytes, LANES * common.scale_bytes];
                let scales = scales * unit;
                let each = [
                    scales,
                    scales.permute(numbers::<V>(|lane| (lane + 4) % LANES)),
                    scales.permute(numbers::<V>(|lane| (lane + 8) % LANES)),
                    scales.permute(numbers::<V>(|lane| (lane + 12) % LANES)),
                ];
                let [[a], [b], [c], [d]] = Self::dots(common, row, 1, ahead, Some(each));
                *sums = biases.mul_add(of_x, V::quarters([a, b, c, d]));
                row = row.below(TOGETHER);
            }
            let order = numbers::<V>(|lane| lane % TOGETHER * TOGETHER + lane / TOGETHER);
            V::within_quarters(sums).permute(order)
        }
    }

    /// Multiplies `R` rows of weights, `first` and those `apart` rows below each other, with `M`
    /// rows of x. It prefetches the weights that are `ahead[0]` bytes below each row, and the
    /// scales and biases of `R` rows that lie side by side, the first one `ahead[1]` bytes below
    /// `first`. If it is `given` each row's scales times units, of at most sixteen groups, it
    /// leaves the biases out.
    ///
    /// # Safety
    /// The contract of [`Dots::dot`].
    #[inline(always)]
    unsafe fn dots<V: F32x16, const R: usize, const M: usize>(
        common: &Common<M>,
        first: Operands,
        apart: usize,
        ahead: [usize; 2],
        given: Option<[V; R]>,
    ) -> [[V; M]; R] {
        let &Common { groups, shift, row_bytes, scale_bytes, padded, mut x, sums: of_x } = common;
        // Offsets from one row's pointer need fewer registers than a pointer for each row.
        let (bytes_apart, scales_apart) = (apart * row_bytes, apart * scale_bytes);
        let first_groups = pair_groups::<V>(shift);
        let step = V::splat_int((2 * LANES as i32) >> shift);
        let mut packed = first.packed;
        let mut sums = [[V::splat(0.0); M]; R];
        for at in (0..groups).step_by(LANES) {
            let count = LANES.min(groups - at);
            let offset = at * size_of::<T>();
            let Scales { scales: scale, biases: bias, .. } = first.scales::<Self>().after(offset);
            let next = ahead[1] + (R - 1) * offset;
            prefetch_far(scale.wrapping_add(next), R * LANES * size_of::<T>());
            prefetch_far(bias.wrapping_add(next), R * LANES * size_of::<T>());
            let mut scales = [[V::splat(0.0); M]; R];
            // SAFETY: the groups from `at` on belong to each row, and so do their weights; the
            // prepared rows cover whole chunks, their sums and units whole vectors.
            unsafe {
                for (r, scales) in scales.iter_mut().enumerate() {
                    if let Some(given) = given {
                        *scales = [given[r]; M];
                        continue;
                    }
                    let scale = scale.wrapping_add(r * scales_apart);
                    let bias = bias.wrapping_add(r * scales_apart);
                    let scale = T::load_first::<V>(scale.cast(), count);
                    let bias = T::load_first::<V>(bias.cast(), count);
                    for m in 0..M {
                        let of_group = of_x[m].add(at);
                        let unit = of_group.add(groups.next_multiple_of(LANES));
                        scales[m] = scale * V::load(unit);
                        sums[r][m] = bias.mul_add(V::load(of_group), sums[r][m]);
                    }
                }
                let lanes = count << shift;
                let mut index = first_groups;
                for lane in (0..lanes).step_by(2 * LANES) {
                    let left = lanes - lane;
                    let weights = if left >= 2 * LANES {
                        Self::load::<V, R, true>(packed, left, bytes_apart, ahead[0])
                    } else {
                        Self::load::<V, R, false>(packed, left, bytes_apart, ahead[0])
                    };
                    let products = Self::products::<V, R, M>(weights, x, padded);
                    for r in 0..R {
                        for m in 0..M {
                            let scale = scales[r][m].permute(index);
                            sums[r][m] = products[r][m].mul_add(scale, sums[r][m]);
                        }
                    }
                    packed = packed.wrapping_add(2 * BYTES);
                    index = V::add_int(index, step);
                    for x in &mut x {
                        *x = x.add(pair::<F>());
                    }
                }
            }
        }
        sums
    }

    /// Two chunks of `R` rows of weights in bytes, `bytes_apart`. With `WHOLE` false it loads only
    /// the first `left` words, by masks, which take a port that the products need. Prefetches the
    /// weights that are `ahead`.
    ///
    /// # Safety
    /// In each row the words of two chunks are readable, or with `WHOLE` false the first `left`.
    #[inline(always)]
    unsafe fn load<V: F32x16, const R: usize, const WHOLE: bool>(
        packed: *const u8,
        left: usize,
        bytes_apart: usize,
        ahead: usize,
    ) -> [[[V::Int; 4]; 2]; R] {
        let mut weights = [[[V::splat_int(0); 4]; 2]; R];
        for (r, weights) in weights.iter_mut().enumerate() {
            let row = packed.wrapping_add(r * bytes_apart);
            let (first, second) = (row.cast(), row.wrapping_add(BYTES).cast());
            prefetch_far(row.wrapping_add(ahead), 2 * BYTES);
            // SAFETY: the caller's contract.
            let [one, two] = unsafe {
                if WHOLE {
                    [V::load(first), V::load(second)]
                } else {
                    let count = LANES.min(left);
                    [V::load_first(first, count), V::load_first(second, left - count)]
                }
            };
            let [even, odd] = V::zip_words(one.to_bits(), two.to_bits());
            *weights = [Self::parts::<V>(even), Self::parts::<V>(odd)];
        }
        weights
    }

    /// The weights of a vector in bytes: the first of each byte, then the second, and so on.
    #[inline(always)]
    fn parts<V: F32x16>(weights: V::Int) -> [V::Int; 4] {
        let part = V::byte_fields;
        match Self::BITS {
            2 => {
                [part(weights, 0, 2), part(weights, 2, 2), part(weights, 4, 2), part(weights, 6, 2)]
            }
            4 => [part(weights, 0, 4), part(weights, 4, 4), weights, weights],
            _ => [weights; 4],
        }
    }

    /// The sums of each lane's products of two chunks of `R` rows of weights and `M` rows of x,
    /// whose digits are `padded` bytes apart.
    ///
    /// # Safety
    /// Two chunks are readable at each of the digits.
    #[inline(always)]
    unsafe fn products<V: F32x16, const R: usize, const M: usize>(
        weights: [[[V::Int; 4]; 2]; R],
        x: [*const u8; M],
        padded: usize,
    ) -> [[V; M]; R] {
        // A digit's products are added to 256 times the sum of those before. A number of 23 bits
        // and a sign times sixteen weights of 4 bits is below 2^31.
        let mut sums = [[V::splat_int(0); M]; R];
        let mut high = sums;
        let positions = 8 / Self::BITS;
        for digit in 0..DIGITS {
            if Self::BITS == 8 && digit + 1 == DIGITS {
                // Eight products of 8 and 24 bits would overflow, but of 8 and 16 bits do not.
                std::mem::swap(&mut high, &mut sums);
            } else if digit > 0 {
                for sum in sums.as_flattened_mut() {
                    *sum = V::shift_left::<8>(*sum);
                }
            }
            for part in 0..2 * positions {
                for m in 0..M {
                    // SAFETY: the caller's contract; `load` takes any bits as they are.
                    let x = unsafe { V::load(x[m].add(digit * padded + part * BYTES).cast()) };
                    for r in 0..R {
                        let weights = weights[r][part / positions][part % positions];
                        sums[r][m] = if Self::BITS == 8 {
                            V::dot_bytes(sums[r][m], weights, x.to_bits())
                        } else {
                            V::dot_low_bytes(sums[r][m], weights, x.to_bits())
                        };
                    }
                }
            }
        }
        let mut products = [[V::splat(0.0); M]; R];
        for r in 0..R {
            for m in 0..M {
                let low = V::from_int(sums[r][m]);
                products[r][m] = if Self::BITS == 8 {
                    V::from_int(high[r][m]).mul_add(V::splat(256.0), low)
                } else {
                    low
                };
            }
        }
        products
    }
}
