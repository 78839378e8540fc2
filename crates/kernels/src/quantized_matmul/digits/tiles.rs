//! Multiplies several rows of x, whose digits (the signed bytes of its elements) fill tiles. Words
//! of sixteen rows of weights are transposed, so that each lane is an output.

use std::marker::PhantomData;
use std::ops::Range;

use super::layout::{APART, BYTES, TOKENS, WORD, weights};
use crate::element::Float;
use crate::quantized_matmul::format::{Format, Scales};
use crate::quantized_matmul::operands::{BLOCKS, MOST_ROWS, Operands};
use crate::simd::tiles::{DIGITS, DigitTiles};
use crate::simd::{F32x16, Kernel, LANES, Lines, prefetch_far};

/// The number of weights of a row that are transposed at a time. Their products stay in the
/// first-level cache.
const PART: usize = 512;
/// The largest number of tiles that are multiplied together.
const TOGETHER: usize = 4;
/// The kernel prefetches weights this many bytes ahead of its loads.
const AHEAD: usize = 1024;
/// The number of floats in a tile of sums.
const SUMS: usize = LANES * LANES;

/// Multiplies `count` rows of weights, at most [`BLOCKS`] blocks, with a band of rows of x.
///
/// Each lane takes one row of weights in each of several passes, and the rows of a lane are
/// consecutive. The reason is that processors prefetch data of a page that is read in ascending
/// order. If the lanes took neighboring rows instead, one row of x would take 1.4 times as long.
pub(super) struct Rows<'a, T, F> {
    pub first: Operands<'a>,
    pub count: usize,
    pub band: Range<usize>,
    /// For each block, sixteen columns for each row of the band.
    pub to: *mut f32,
    pub types: PhantomData<(T, F)>,
}

impl<T: Float, F: Format> Kernel for Rows<'_, T, F> {
    const BF16: bool = true;
    const ONLY_BF16: bool = true;
    const BYTES: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { first, count, band, to, .. } = self;
        let (passes, rows) = (count.div_ceil(LANES), band.len());
        let mut all = Lines::<{ BLOCKS * MOST_ROWS * LANES }>::uninit();
        let all = all.as_mut_ptr();
        // SAFETY: the caller's contract; there is room for the sums of each pass.
        unsafe {
            for pass in 0..passes {
                let to = if passes == 1 { to } else { all.add(pass * rows * LANES) };
                let (count, band) = ((count - pass).div_ceil(passes), band.clone());
                let (first, bf16, format) = (first.below(pass), T::IS_BF16, PhantomData::<F>);
                V::part(Block { first, pass, passes, count, band, to, bf16, format });
            }
            if passes == 1 {
                return;
            }
            for row in 0..rows {
                let mut square = [V::splat(0.0); LANES];
                for (pass, square) in square.iter_mut().enumerate().take(passes) {
                    *square = V::load(all.add((pass * rows + row) * LANES));
                }
                let mut line = [0.0f32; LANES * (LANES + 1)];
                for (lane, columns) in V::transpose(square).into_iter().enumerate() {
                    columns.store(line.as_mut_ptr().add(lane * passes));
                }
                for block in 0..passes {
                    let from = V::load(line.as_ptr().add(block * LANES));
                    from.store(to.add((block * rows + row) * LANES));
                }
            }
        }
    }
}

/// Multiplies a row of weights for each of `count` lanes, `passes` rows apart, with a band of rows
/// of x. While some tiles are multiplied, the kernel scales and adds up the sums of the tiles
/// before them.
struct Block<'a, F> {
    first: Operands<'a>,
    pass: usize,
    passes: usize,
    count: usize,
    band: Range<usize>,
    /// A vector for each row of the band.
    to: *mut f32,
    /// Whether the scales are bf16; otherwise they are f16.
    bf16: bool,
    format: PhantomData<F>,
}

impl<F: Format> Kernel for Block<'_, F> {
    const BF16: bool = true;
    const ONLY_BF16: bool = true;
    const BYTES: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { first, ref band, to, .. } = self;
        let mut words = Lines::<{ PART * LANES / WORD }>::uninit();
        let words = words.as_mut_ptr();
        let mut sums = Lines::<{ 2 * TOGETHER * SUMS }>::uninit();
        let sums = sums.as_mut_ptr();
        let mut scales = Lines::<{ 2 * LANES * LANES }>::uninit();
        let scales = scales.as_mut_ptr();
        let mut totals = Lines::<{ APART * MOST_ROWS * LANES }>::uninit();
        let totals = totals.as_mut_ptr();
        let (groups, group) = (first.axis / first.group, first.group);
        let digits = first.prepared.row::<u8>(DIGITS * band.start);
        let stride = first.prepared.row::<u8>(DIGITS * band.start + 1).addr() - digits.addr();
        let tiles = band.len().div_ceil(TOKENS);
        let few = tiles == 1;
        let each = DigitTiles {
            x: digits,
            x_stride: stride,
            x_next: if few { group } else { DIGITS * TOKENS * stride },
            rows: DIGITS * band.len().min(TOKENS),
            w: words,
            w_next: if few { group / WORD * LANES } else { 0 },
            words: group / WORD,
            step: LANES.min(group / WORD),
            narrow: F::BITS < 8,
            count: 0,
            sums,
        };
        // SAFETY: the caller's contract; there is room for a part of sixteen rows, and for the sums
        // of `2 * TOGETHER` tiles.
        unsafe {
            totals.write_bytes(0, APART * band.len() * LANES);
            let (mut odd, mut waiting) = (false, None);
            for at in (0..groups).step_by(LANES) {
                let here = LANES.min(groups - at);
                self.scales::<V>(at, scales);
                let part = (PART / group).min(here);
                for start in (at..at + here).step_by(part) {
                    let count = part.min(at + here - start);
                    self.words::<V>(start * group, count * group, words);
                    let (mut index, mut tile) = (0, 0);
                    while index < count {
                        let x = digits.add((start + index) * group + tile * each.x_next);
                        let w = words.add(index * group / WORD * LANES);
                        let together = if few { count - index } else { tiles - tile };
                        let together = together.min(TOGETHER);
                        let sums = sums.add(if odd { TOGETHER * SUMS } else { 0 });
                        V::tiles_of_digits(&DigitTiles { x, w, count: together, sums, ..each });
                        let scales = scales.add((start + index - at) * LANES);
                        let group = start + index;
                        let count = together;
                        let now = Waiting { sums, scales, totals, group, tile, count, few };
                        if let Some(before) = waiting.replace(now) {
                            self.add::<V>(before, groups);
                        }
                        odd = !odd;
                        (index, tile) = match few {
                            true => (index + together, 0),
                            false if tile + together < tiles => (index, tile + together),
                            false => (index + 1, 0),
                        };
                    }
                }
                if let Some(last) = waiting.take() {
                    self.add::<V>(last, groups);
                }
            }
            let apart = band.len() * LANES;
            for at in (0..apart).step_by(LANES) {
                let from = totals.add(at);
                let first = V::load(from) + V::load(from.add(apart));
                let rest = V::load(from.add(2 * apart)) + V::load(from.add(3 * apart));
                (first + rest).store(to.add(at));
            }
        }
    }
}

/// Products of tiles that are not yet added up. If all rows of x are one tile, these are the
/// products of this tile for the groups from `group` on. Otherwise they are the products of one
/// group for the tiles from `tile` on.
struct Waiting {
    sums: *const f32,
    scales: *const f32,
    /// Sums of sixteen outputs for each row of x, in [`APART`] sets. Group `g` is added to set
    /// `g % APART`.
    totals: *mut f32,
    group: usize,
    tile: usize,
    count: usize,
    few: bool,
}

/// Adds a group's product to the sums of sixteen outputs. `[a, b, c]` are the sums of weights times
/// digits of x, the highest digit first. `scales` has the scales of [`LANES`] groups, and then the
/// biases. `[unit, sum]` are the unit of x in this group and the sum of x in this group.
#[inline(always)]
unsafe fn add<V: F32x16>(
    total: V,
    [a, b, c]: [V::Int; DIGITS],
    scales: *const f32,
    [unit, sum]: [f32; 2],
) -> V {
    // SAFETY: the caller ensures that the vectors exist.
    let [scale, bias] = unsafe { [V::load(scales), V::load(scales.add(LANES * LANES))] };
    // Sums of 128 products of bytes have 22 bits and a sign.
    let low = V::from_int(V::add_int(V::shift_left::<8>(b), c));
    let product = V::from_int(a).mul_add(V::splat(65536.0), low);
    product.mul_add(scale * V::splat(unit), bias.mul_add(V::splat(sum), total))
}

impl<F: Format> Block<'_, F> {
    /// Writes the scales of up to sixteen groups, from `at` on: for each group, a vector with one
    /// lane for each of sixteen rows of weights. Then writes the biases in the same way.
    #[inline(always)]
    unsafe fn scales<V: F32x16>(&self, at: usize, to: *mut f32) {
        let Scales { scales, biases, .. } = self.first.scales(None);
        let (count, groups) = (self.count, self.first.axis / self.first.group);
        let offset = at * size_of::<u16>();
        let (scales, biases) = (scales.wrapping_add(offset), biases.wrapping_add(offset));
        let next = self.passes * self.first.scale_bytes;
        let (groups, bf16, bias_factor) = (groups - at, self.bf16, self.first.bias_factor);
        let of_groups = OfGroups { scales, biases, bias_factor, next, count, groups, to, bf16 };
        // SAFETY: the caller's contract.
        unsafe { V::part(of_groups) };
    }

    /// Adds products of tiles to the sums of their rows of x.
    #[inline(always)]
    unsafe fn add<V: F32x16>(&self, products: Waiting, groups: usize) {
        let Waiting { mut sums, mut scales, totals, mut group, mut tile, count, few } = products;
        let padded = groups.next_multiple_of(LANES);
        for _ in 0..count {
            let top = tile * TOKENS;
            let end = self.band.len().min(top + TOKENS);
            let mut digits = sums;
            // SAFETY: the sums of the products, of the rows and of the group exist.
            unsafe {
                let mut of_x = self.first.prepared.sums(self.band.start + top).add(group);
                let next = self.first.prepared.sums(1).offset_from(self.first.prepared.sums(0));
                let mut to = totals.add((group % APART * self.band.len() + top) * LANES);
                for _ in top..end {
                    // This is a loop, since a closure would be compiled without the CPU features.
                    let mut all = [V::splat_int(0); DIGITS];
                    for (digit, all) in all.iter_mut().enumerate() {
                        *all = V::load(digits.add(digit * LANES)).to_bits();
                    }
                    add(V::load(to), all, scales, [*of_x.add(padded), *of_x]).store(to);
                    (digits, to) = (digits.add(DIGITS * LANES), to.add(LANES));
                    of_x = of_x.offset(next);
                }
            }
            sums = sums.wrapping_add(SUMS);
            if few {
                (group, scales) = (group + 1, scales.wrapping_add(LANES));
            } else {
                tile += 1;
            }
        }
    }

    /// Writes `len` weights of sixteen rows, from the weight `at` on. For each word of digits of x
    /// it writes a vector with a word of each row.
    #[inline(always)]
    unsafe fn words<V: F32x16>(&self, at: usize, len: usize, mut to: *mut f32) {
        let bits = F::BITS as usize;
        let (first, bytes) = (at * bits / 8, len * bits / 8);
        for start in (0..bytes).step_by(BYTES) {
            let left = BYTES.min(bytes - start);
            // SAFETY: the rows and weights exist, and there is room for their words.
            unsafe {
                let lanes = self.transposed::<V>(first + start, left);
                for lanes in lanes.into_iter().take(left / WORD) {
                    for position in 0..8 / bits {
                        V::from_bits(weights::<V, F>(lanes.to_bits(), position)).store(to);
                        to = to.add(LANES);
                    }
                }
            }
        }
    }

    /// Loads `len` bytes of sixteen rows, from the byte `at` on: a vector for each word of four
    /// bytes.
    #[inline(always)]
    unsafe fn transposed<V: F32x16>(&self, at: usize, len: usize) -> [V; LANES] {
        let (first, row_bytes) = (self.first.packed.wrapping_add(at), self.first.bytes);
        let next = self.passes * row_bytes;
        // After its last row, a lane continues in the next block.
        let ends = (self.pass * row_bytes + at + AHEAD) >= next;
        let ahead = AHEAD + if ends { (LANES - 1) * next } else { 0 };
        let mut square = [V::splat(0.0); LANES];
        // This is a separate case, so that the square stays in registers.
        if self.count == LANES && len == BYTES {
            for (row, square) in square.iter_mut().enumerate() {
                let from = first.wrapping_add(row * next);
                // SAFETY: the row has the bytes.
                *square = unsafe { V::load(from.cast()) };
                prefetch_far(from.wrapping_add(ahead), 1);
            }
        } else {
            for (row, square) in square.iter_mut().enumerate().take(self.count) {
                let from = first.wrapping_add(row * next);
                // SAFETY: the row has the bytes.
                *square = unsafe { V::load_first(from.cast(), len / WORD) };
            }
        }
        V::transpose(square)
    }
}

/// Writes the scales and biases of up to sixteen groups in each of `count` rows of weights.
struct OfGroups {
    scales: *const u8,
    biases: *const u8,
    /// As in [`Operands`](crate::quantized_matmul::operands::Operands).
    bias_factor: f32,
    /// The number of bytes from the scales of a row to the scales of the next row.
    next: usize,
    count: usize,
    groups: usize,
    to: *mut f32,
    bf16: bool,
}

impl Kernel for OfGroups {
    const BF16: bool = true;
    const ONLY_BF16: bool = true;
    const BYTES: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { scales, biases, bias_factor, next, count, groups, to, bf16 } = self;
        // A word has the scales of two groups. The square has eight words of scales, then eight
        // words of biases.
        let mut square = [V::splat(0.0); LANES];
        // SAFETY: the rows' groups exist, and there is room for sixteen groups.
        unsafe {
            if count == LANES && groups >= LANES {
                for (row, square) in square.iter_mut().enumerate() {
                    let of_row = |from: *const u8| from.wrapping_add(row * next).cast();
                    *square = V::load_halves(of_row(scales), of_row(biases));
                }
            } else {
                let bytes = groups.min(LANES) * size_of::<u16>();
                for (row, square) in square.iter_mut().enumerate().take(count) {
                    let mut both = [[0u8; 2 * LANES]; 2];
                    for (from, both) in [scales, biases].into_iter().zip(&mut both) {
                        let from = from.wrapping_add(row * next);
                        both.as_mut_ptr().copy_from_nonoverlapping(from, bytes);
                    }
                    *square = V::load(both.as_ptr().cast());
                }
            }
            for row in 0..LANES {
                prefetch_far(scales.wrapping_add((LANES + row) * next), 1);
                prefetch_far(biases.wrapping_add((LANES + row) * next), 1);
            }
            for (i, words) in V::transpose(square).into_iter().enumerate() {
                let to = to.add((i / 8 * LANES + i % 8 * 2) * LANES);
                let [even, odd] = halves::<V>(words.to_bits(), bf16);
                let factor = V::splat(if i < 8 { 1.0 } else { bias_factor });
                (even * factor).store(to);
                (odd * factor).store(to.add(LANES));
            }
        }
    }
}

/// Converts the 16-bit elements in the lower halves of words, and in the upper halves, to floats.
#[inline(always)]
fn halves<V: F32x16>(words: V::Int, bf16: bool) -> [V; 2] {
    let (even, odd) = (V::and_int(words, V::splat_int(0xffff)), V::shift_right::<16>(words));
    if bf16 {
        let odd = V::and_int(words, V::splat_int(!0xffff));
        [V::from_bits(V::shift_left::<16>(words)), V::from_bits(odd)]
    } else {
        [V::from_f16(V::narrow(even)), V::from_f16(V::narrow(odd))]
    }
}
