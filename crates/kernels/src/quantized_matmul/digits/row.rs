//! Products of one row of x, which is split into signed bytes (the digits). A vector of sums has a
//! quarter for each of four rows of weights. The integers in the lanes of a group are added up
//! before they are scaled, so that the sums equal the sums of tiles.

use std::marker::PhantomData;

use super::layout::{APART, BYTES, pair, weights as of_position};
use crate::element::Float;
use crate::quantized_matmul::format::{Format, Scales};
use crate::quantized_matmul::operands::Operands;
use crate::simd::tiles::DIGITS;
use crate::simd::transpose::numbers;
use crate::simd::{F32x16, Kernel, LANES, prefetch_far};

/// The number of rows of weights that share the loads of x and are read as parallel streams. Each
/// stream reads four rows, one after another.
const STREAMS: usize = 4;
/// If a row has fewer bytes than this, the next block's weights are prefetched instead of the next
/// row's weights.
const SHORT: usize = 1024;

/// Multiplies `count` rows of weights with the only row of x.
///
/// # Safety
/// The contract of [`super::multiply`] holds.
pub(super) unsafe fn multiply<V: F32x16, T: Float, F: Format>(
    first: Operands,
    count: usize,
    to: *mut [f32; LANES],
) {
    let types = PhantomData::<(T, F)>;
    // SAFETY: the caller's contract. Sixteen lanes add up two chunks, and `is_whole` allows only
    // these numbers of lanes for a group.
    unsafe {
        match first.group / F::PER_LANE / 2 {
            2 if F::BITS < 8 => V::part(Row::<T, F, 2> { first, count, to: to.cast(), types }),
            4 => V::part(Row::<T, F, 4> { first, count, to: to.cast(), types }),
            8 if F::BITS > 2 => V::part(Row::<T, F, 8> { first, count, to: to.cast(), types }),
            16 if F::BITS > 4 => V::part(Row::<T, F, 16> { first, count, to: to.cast(), types }),
            _ => {}
        }
    }
}

/// Multiplies rows of weights. Each group uses `L` of the sixteen lanes that add up two chunks.
struct Row<'a, T, F, const L: usize> {
    first: Operands<'a>,
    count: usize,
    /// Sixteen columns for each block.
    to: *mut f32,
    types: PhantomData<(T, F)>,
}

impl<T: Float, F: Format, const L: usize> Kernel for Row<'_, T, F, L> {
    const BF16: bool = true;
    const ONLY_BF16: bool = true;
    const BYTES: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for at in (0..self.count).step_by(LANES) {
            let mut sums = [V::splat(0.0); STREAMS];
            for (i, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the caller's contract.
                *sums = unsafe { self.streams::<V>(at + i, i + 1 == STREAMS) };
            }
            let [a, b, c, d] = sums;
            let sums = add_neighbors::<V>(add_neighbors::<V>(a, b), add_neighbors::<V>(c, d));
            // SAFETY: `to` has room for the block.
            unsafe { sums.store(self.to.add(at)) };
        }
    }
}

/// Returns, in each quarter of the result, the sums of neighboring lanes of `a`, then of `b`.
#[inline(always)]
fn add_neighbors<V: F32x16>(a: V, b: V) -> V {
    let [even, odd] = V::unzip_lanes(a.to_bits(), b.to_bits());
    V::from_bits(even) + V::from_bits(odd)
}

#[inline(always)]
fn add_lanes<V: F32x16>(a: V::Int, b: V::Int) -> V::Int {
    let [even, odd] = V::unzip_lanes(a, b);
    V::add_int(even, odd)
}

#[inline(always)]
fn add_quarters<V: F32x16>(a: V::Int, b: V::Int) -> V::Int {
    let [even, odd] = V::unzip_quarters(a, b);
    V::add_int(even, odd)
}

impl<T: Float, F: Format, const L: usize> Row<'_, T, F, L> {
    /// The smallest number of pairs of chunks that hold four groups.
    const PAIRS: usize = if L < 4 { 1 } else { L / 4 };
    /// The number of sets of four groups that `PAIRS` pairs of chunks hold.
    const QUADS: usize = if L < 4 { 2 } else { 1 };

    /// Computes the sums of four rows of weights: `row`, and the rows 4, 8 and 12 after it. Each
    /// row has a quarter of the result, with [`APART`] sums. With `last`, the rows are the last
    /// ones of their streams, so the weights of the next block follow them.
    #[inline(always)]
    unsafe fn streams<V: F32x16>(&self, row: usize, last: bool) -> V {
        let first = self.first;
        let groups = first.axis / first.group;
        // These loops are not closures, because closures would be compiled without the CPU
        // features.
        let (mut rows, mut packed) = ([row; STREAMS], [first.packed; STREAMS]);
        for (stream, (row, packed)) in rows.iter_mut().zip(&mut packed).enumerate() {
            *row = (*row + stream * STREAMS).min(self.count - 1);
            *packed = packed.wrapping_add(*row * first.bytes);
        }
        let next = match first.bytes < SHORT {
            true => LANES,
            false if last => LANES - STREAMS + 1,
            false => 1,
        };
        let padded = first.axis.next_multiple_of(pair::<F>());
        let read = Read { padded, ahead: next * first.bytes };
        let digits = first.prepared.row::<u8>(0);
        let of_x = first.prepared.sums(0);
        let units = of_x.wrapping_add(groups.next_multiple_of(LANES));
        let of_quad = numbers::<V>(|lane| lane % APART);
        let in_order = order::<V, L>();
        let (mut total, mut done) = (V::splat(0.0), 0);
        for at in (0..groups).step_by(LANES) {
            let count = LANES.min(groups - at);
            // SAFETY: the caller's contract; sums and units cover full vectors of groups.
            unsafe {
                let [scales, biases] = self.scales::<V>(rows, at, V::load(units.add(at)));
                let sums = V::load(of_x.add(at));
                let mut quad = 0;
                while quad * APART < count {
                    let mut pairs = [[[V::splat_int(0); 2]; 4]; 2];
                    let [of_a, of_low] = &mut pairs;
                    let both = of_a.iter_mut().zip(of_low);
                    for (of_a, of_low) in both.take(Self::PAIRS) {
                        let left = first.axis.saturating_sub(done) / F::PER_LANE;
                        if left > 0 {
                            let sums = self.products::<V>(packed, digits.add(done), left, read);
                            [*of_a, *of_low] = sums;
                        }
                        for packed in &mut packed {
                            *packed = packed.wrapping_add(2 * BYTES);
                        }
                        done += pair::<F>();
                    }
                    for part in 0..Self::QUADS {
                        let a = of_groups::<V, L>(&pairs[0], part);
                        let low = of_groups::<V, L>(&pairs[1], part);
                        let product = V::from_int(a).mul_add(V::splat(65536.0), V::from_int(low));
                        let index = V::add_int(of_quad, V::splat_int((quad * APART) as i32));
                        total = biases[quad % 4].mul_add(sums.permute(index), total);
                        total = product.permute(in_order).mul_add(scales[quad % 4], total);
                        quad += 1;
                    }
                }
            }
        }
        total
    }

    /// The scales of sixteen groups of four rows, multiplied by the units of x, and the biases. The
    /// scales and the biases have four vectors each, with a quarter for each row. Values beyond the
    /// last group are zeros.
    #[inline(always)]
    unsafe fn scales<V: F32x16>(&self, rows: [usize; 4], at: usize, units: V) -> [[V; 4]; 2] {
        let count = LANES.min(self.first.axis / self.first.group - at);
        let ahead = LANES * self.first.scale_bytes;
        let mut all = [[V::splat(0.0); 4]; 2];
        for (i, row) in rows.into_iter().enumerate() {
            let of_row = self.first.below(row).scales(Some(T::ELEMENT));
            let Scales { scales, biases, .. } = of_row.after(at * size_of::<T>());
            prefetch_far(scales.wrapping_add(ahead), 1);
            prefetch_far(biases.wrapping_add(ahead), 1);
            // SAFETY: the row has the groups.
            unsafe {
                all[0][i] = T::load_block::<V>(scales.cast(), count) * units;
                let bias = T::load_block::<V>(biases.cast(), count);
                all[1][i] = bias * V::splat(self.first.bias_factor);
            }
        }
        [by_quarters(all[0]), by_quarters(all[1])]
    }

    /// Multiplies two chunks of each row with the highest digits of x, then with the other digits.
    /// From the first chunk on, a row has `left` words. Each of the two results has the sums of
    /// neighboring lanes of the first two rows in one vector, and of the last two rows in another.
    #[inline(always)]
    unsafe fn products<V: F32x16>(
        &self,
        packed: [*const u8; 4],
        x: *const u8,
        left: usize,
        Read { padded, ahead }: Read,
    ) -> [[V::Int; 2]; 2] {
        let positions = 8 / F::BITS as usize;
        let mut weights = [[V::splat_int(0); 2]; 4];
        for (weights, row) in weights.iter_mut().zip(packed) {
            let (first, second) = (row.cast(), row.wrapping_add(BYTES).cast());
            prefetch_far(row.wrapping_add(ahead), 2 * BYTES);
            // SAFETY: the row has the words. Masked loads are avoided where possible, since they
            // take a port of the core that the products need.
            let [one, two] = unsafe {
                if left >= 2 * LANES {
                    [V::load(first), V::load(second)]
                } else {
                    let count = LANES.min(left);
                    [V::load_first(first, count), V::load_first(second, left - count)]
                }
            };
            *weights = V::zip_words(one.to_bits(), two.to_bits());
        }
        let mut sums = [[V::splat_int(0); 4]; 2];
        for digit in 0..DIGITS {
            let sums = &mut sums[digit.min(1)];
            if digit == DIGITS - 1 {
                for sum in sums.iter_mut() {
                    *sum = V::shift_left::<8>(*sum);
                }
            }
            for part in 0..2 * positions {
                // SAFETY: x has two chunks of each digit; `load` does not change their bits.
                let x = unsafe { V::load(x.add(digit * padded + part * BYTES).cast()) };
                for (sum, weights) in sums.iter_mut().zip(weights) {
                    let weights = of_position::<V, F>(weights[part / positions], part % positions);
                    *sum = match F::BITS {
                        8 => V::dot_bytes(*sum, weights, x.to_bits()),
                        _ => V::dot_low_bytes(*sum, weights, x.to_bits()),
                    };
                }
            }
        }
        let [a, low] = sums;
        [
            [add_lanes::<V>(a[0], a[1]), add_lanes::<V>(a[2], a[3])],
            [add_lanes::<V>(low[0], low[1]), add_lanes::<V>(low[2], low[3])],
        ]
    }
}

/// The distances between digits of x, and between weights and the weights to prefetch.
#[derive(Clone, Copy)]
struct Read {
    /// The number of bytes from one digit to the next.
    padded: usize,
    /// The number of bytes from a row of weights to the weights that are prefetched.
    ahead: usize,
}

/// Returns the sums of four groups for four rows of weights, in [`order`]. If a group has two
/// lanes, `part` selects the first or the second four groups.
#[inline(always)]
fn of_groups<V: F32x16, const L: usize>(pairs: &[[V::Int; 2]; 4], part: usize) -> V::Int {
    let &[[first, second], ..] = pairs;
    match L {
        2 => V::unzip_lanes(first, second)[part],
        4 => add_quarters::<V>(first, second),
        8 => add_quarters::<V>(of_pair::<V>(pairs[0]), of_pair::<V>(pairs[1])),
        _ => {
            let even = add_quarters::<V>(of_pair::<V>(pairs[0]), of_pair::<V>(pairs[1]));
            let odd = add_quarters::<V>(of_pair::<V>(pairs[2]), of_pair::<V>(pairs[3]));
            add_lanes::<V>(even, odd)
        }
    }
}

#[inline(always)]
fn of_pair<V: F32x16>([first, second]: [V::Int; 2]) -> V::Int {
    add_quarters::<V>(first, second)
}

/// Returns the lane in which [`of_groups`] has the sum, for each row of weights and each of four
/// groups.
#[inline(always)]
fn order<V: F32x16, const L: usize>() -> V::Int {
    numbers::<V>(|to| {
        let (row, group) = (to / APART, to % APART);
        let (quarter, lane) = match L {
            2 => (group, row),
            4 => (row / 2 * 2 + group % 2, row % 2 * 2 + group / 2),
            8 => (group / 2 * 2 + row / 2, row % 2 * 2 + group % 2),
            _ => (group % 2 * 2 + row / 2, group / 2 * 2 + row % 2),
        };
        4 * quarter + lane
    })
}

/// Transposes quarters: vector i of the result has quarter i of each row.
#[inline(always)]
fn by_quarters<V: F32x16>([a, b, c, d]: [V; 4]) -> [V; 4] {
    let [even, odd] = V::unzip_quarters(a.to_bits(), b.to_bits());
    let [next_even, next_odd] = V::unzip_quarters(c.to_bits(), d.to_bits());
    let [first, third] = V::unzip_quarters(even, next_even);
    let [second, fourth] = V::unzip_quarters(odd, next_odd);
    [V::from_bits(first), V::from_bits(second), V::from_bits(third), V::from_bits(fourth)]
}
