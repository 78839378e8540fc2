//! Multiplies many rows of x that are rounded to eight bits. x has the same groups as the weights,
//! and each group of x has a scale. Products of bytes are added up as integers within a group, and
//! the sum is scaled. The GEMM of `linear` moves words of four bytes as if they were floats.
//!
//! x is about `s * q` with q in -127..=127 and s the group's largest magnitude divided by 127,
//! and a weight is `scale * p + bias` with p of at most eight bits. So a group adds
//! `s * scale * sum(q * p) + bias * s * sum(q)`.

mod pairs;
mod rounded;

use std::ops::Range;

use super::finish::Finish;
use super::format::{Affine, Floats, Format, Scales};
use super::k_quant::Blocks;
use super::prefill;
use super::{Call, Mode, with_format};
use crate::element::Float;
use crate::linear::arithmetic::InF32;
use crate::linear::gemm::{Pass, STRIDE, SUMS, WORDS, Weights, multiply};
use crate::linear::interleaved::interleaved;
use crate::linear::workspace;
use crate::simd::tiles::{TILE_PANELS, TILE_ROWS, TileProduct};
use crate::simd::{F32x16, Kernel, LANES, Lines};
use crate::{Machine, Shared};
use rounded::{BYTES, GROUPS, Rounded, scaled};

/// Whether a call can use products of bytes and saves time with them. `Mxfp8` cannot, since 8-bit
/// floats are not integers. `Nvfp4` cannot, since a tile has room for the scales of groups of 16,
/// but not for biases too. If a CPU adds up products of bytes in sums of sixteen bits, weights can
/// have at most six bits, since products with larger weights would overflow. If x is bf16 and the
/// CPU has tile instructions, bytes are not faster, because their sums are stored and scaled at the
/// end of each group. With groups of 128, products of bytes took as long as exact products for 128
/// rows, and longer for 512 rows. Shorter groups end more often.
pub(super) fn takes<T: Float>(machine: Machine, call: &Call) -> bool {
    let in_tiles = T::IS_BF16 && machine.level.multiplies_tiles();
    let bytes = machine.level.dots_bytes();
    (bytes || machine.level.adds_pairs_of_bytes() && call.bits <= 6)
        && !in_tiles
        && matches!(call.mode, Mode::Affine | Mode::Mxfp4 | Mode::KQuant)
        && call.low_rank.is_none()
}

/// # Safety
/// The contract of [`super::quantized_matmul`]; the mode is affine, mxfp4 or K-quant, and the call
/// has no low-rank correction.
pub unsafe fn run<T: Float>(machine: Machine, call: &Call) {
    let (m, k) = (call.rows, call.axis);
    let (panels, groups) = (m.div_ceil(LANES), k / call.group);
    let scales = panels * groups * LANES;
    // SAFETY: the caller's contract; the workspace holds x in bytes, and a scale and a sum for each
    // of its groups, in full panels.
    unsafe {
        prefill::normalized::<T>(machine, call, &|x| {
            workspace::with(m * k / BYTES + 2 * scales, &|room| {
                let scales_at = room.wrapping_add(m * k / BYTES);
                let centered = call.mode == Mode::KQuant && call.group < 32;
                let (words, count) = (room, scales);
                let x8 = Rounded { words, scales: scales_at, count, panels, groups, centered };
                let from = Shared(x.cast_mut());
                machine.pool.for_each(panels, 5 * LANES * k, &|panels| {
                    let x = from.get().cast_const();
                    machine.level.run(Round { x, m, k, group: call.group, to: &x8, panels });
                });
                interleaved::<InF32, f32>(machine, [m, k / BYTES], x8.words, &|x| {
                    let finish = Finish::new::<T>(machine, call);
                    prefill::each_product::<T>(call, &finish, |weights, epilogue| {
                        let w = Bytes { call, weights, x: &x8 };
                        multiply(machine, x, weights.columns, &w, epilogue);
                    });
                });
            });
        });
    }
}

/// Rounds panels of x.
struct Round<'a, T> {
    x: *const T,
    m: usize,
    k: usize,
    group: usize,
    to: &'a Rounded,
    panels: Range<usize>,
}

impl<T: Float> Kernel for Round<'_, T> {
    const BF16: bool = true;
    const ONLY_BF16: bool = Self::BF16;
    const BYTES: bool = true;
    const PAIRS: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for panel in self.panels {
            for lane in 0..LANES {
                let row = panel * LANES + lane;
                for group in 0..self.to.groups {
                    // SAFETY: the group lies within its row, and every lane has a scale and a sum.
                    unsafe {
                        let (mut scale, mut sum) = (0.0, 0.0);
                        if row < self.m {
                            let at = row * self.k + group * self.group;
                            let bytes = self.to.words.cast::<u8>().add(at);
                            (scale, sum) = round::<V, T>(self.x.add(at), self.group, bytes);
                        }
                        *self.to.scales(panel, group).add(lane) = scale;
                        *self.to.sums(panel, group).add(lane) = sum;
                    }
                }
            }
        }
    }
}

/// Writes a group as signed bytes. Returns the scale of the bytes, and the sum of the bytes times
/// the scale. If an element is not finite, the sum is NaN, and so are the products of the group.
#[inline(always)]
unsafe fn round<V: F32x16, T: Float>(x: *const T, group: usize, to: *mut u8) -> (f32, f32) {
    let mut most = V::splat(0.0);
    let mut sum = V::splat(0.0);
    // SAFETY: the caller's group has a multiple of sixteen elements.
    unsafe {
        for at in (0..group).step_by(LANES) {
            most = most.max(T::load::<V>(x.add(at)).abs());
        }
        let most = most.reduce_max();
        // If the largest magnitude is so small that the quotient is infinite, the largest float
        // takes its place. Then the bytes are smaller than 127, or zero.
        let inverse = if most > 0.0 { (127.0 / most).min(f32::MAX) } else { 0.0 };
        for at in (0..group).step_by(LANES) {
            let rounded = (T::load::<V>(x.add(at)) * V::splat(inverse)).round();
            V::store_bytes(rounded.to_int(), to.add(at));
            sum = sum + rounded;
        }
        let scale = most / 127.0;
        (scale, scale * sum.reduce_add())
    }
}

/// One of the weight matrices of a call, and the x of the call.
struct Bytes<'a> {
    call: &'a Call<'a>,
    weights: &'a super::Weights,
    x: &'a Rounded,
}

// SAFETY: only read.
unsafe impl Sync for Bytes<'_> {}

impl Bytes<'_> {
    /// Unpacks words `k..k + len` of a row to `out`, and writes the scales and biases of their
    /// groups at `out + WORDS`.
    ///
    /// # Safety
    /// The words exist, and `out` has room for them, the scales and the biases.
    #[inline(always)]
    unsafe fn unpack_row<V: F32x16, F: Format>(
        &self,
        row: usize,
        k: usize,
        len: usize,
        out: *mut f32,
    ) {
        let Call { axis, group, .. } = *self.call;
        let element = self.call.of_scales;
        let scale_bytes = if F::AFFINE { element.bytes() } else { 1 };
        let blocks = Blocks::of_call(self.call).filter(|_| F::IN_BLOCKS);
        let first = match blocks {
            Some(_) => Blocks::bytes(row * axis + k * BYTES),
            None => (row * axis + k * BYTES) / group * scale_bytes,
        };
        let packed =
            self.weights.packed.wrapping_add((row * axis + k * BYTES) / 8 * F::BITS as usize);
        let scales = self.weights.scales.wrapping_add(first);
        let scales = Scales { element, scales, biases: self.weights.biases.wrapping_add(first) };
        // SAFETY: the weights and groups belong to this row; a tile's row has room for the words
        // and, after them, for twice `GROUPS` floats.
        unsafe {
            codes::<V, F>(packed, len * BYTES, out.cast());
            let groups = len * BYTES / group;
            let to = out.add(WORDS);
            if let Some(blocks) = blocks {
                let no_biases = self.x.centered;
                let biases = if no_biases { std::ptr::null_mut() } else { to.add(GROUPS) };
                return blocks.write::<V>(scales.scales, len * BYTES, to, biases);
            }
            for at in (0..groups).step_by(LANES) {
                let count = LANES.min(groups - at);
                let [mut scale, mut bias] = F::scales::<V>(&scales, at, count);
                if !F::AFFINE {
                    // The code of a 4-bit float is twice its value, plus twelve.
                    scale = scale * V::splat(0.5);
                    bias = scale * V::splat(-12.0);
                }
                scale.store(to.add(at));
                bias.store(to.add(GROUPS + at));
            }
        }
    }
}

/// Writes the codes of `count` weights as bytes. The weights are complete groups. Codes of 4-bit
/// floats become nonnegative integers.
#[inline(always)]
unsafe fn codes<V: F32x16, F: Format>(packed: *const u8, count: usize, out: *mut u8) {
    // SAFETY: the caller provides the weights and the bytes; groups are multiples of 32.
    unsafe {
        if F::BITS == 8 {
            return std::ptr::copy_nonoverlapping(packed, out, count);
        }
        if F::AFFINE && F::BITS == 4 {
            for at in (0..count).step_by(2 * LANES) {
                V::spread_nibbles(packed.add(at / 2), out.add(at));
            }
            return;
        }
        for at in (0..count).step_by(LANES) {
            let mut codes = F::in_order::<V>(packed.add(at / 8 * F::BITS as usize));
            if !F::AFFINE {
                codes = codes.mul_add(V::splat(2.0), V::splat(12.0));
            }
            V::store_bytes(codes.to_int(), out.add(at));
        }
    }
}

impl Weights<InF32> for Bytes<'_> {
    const BYTES: bool = true;

    #[inline(always)]
    unsafe fn unpack<V: F32x16>(
        &self,
        row: usize,
        rows: usize,
        k: usize,
        len: usize,
        out: *mut f32,
        stride: usize,
    ) {
        with_format!(self.call, F => for i in 0..rows {
            // SAFETY: the caller ensures that the rows and words exist and that `out` has room.
            unsafe { self.unpack_row::<V, F>(row + i, k, len, out.add(i * stride)) }
        })
    }

    #[inline(always)]
    unsafe fn add<V: F32x16, const ROWS: usize, const PANELS: usize>(
        &self,
        pass: Pass<PANELS>,
        tile: *const f32,
        sums: *mut f32,
    ) {
        if const { V::ADDS_PAIRS } {
            let (x, per_group) = (self.x, self.call.group / BYTES);
            let most = pairs::most_words(self.call);
            let part = pairs::Pairs::<ROWS, PANELS> { x, per_group, pass, tile, sums, most };
            // SAFETY: the caller's contract.
            return unsafe { V::part(part) };
        }
        let Pass { x, panel, at, words } = pass;
        let per_group = self.call.group / BYTES;
        let first = at / per_group;
        // SAFETY: the panels and the tile hold the words; after the words the tile has the scales
        // and biases of their groups; x has scales and sums of every panel and group.
        unsafe {
            for group in 0..words / per_group {
                let mut total = [[V::splat_int(0); PANELS]; ROWS];
                for at in group * per_group..(group + 1) * per_group {
                    let mut lanes = [V::splat_int(0); PANELS];
                    for (lanes, x) in lanes.iter_mut().zip(x) {
                        *lanes = V::load(x.add(at * LANES)).to_bits();
                    }
                    for (r, total) in total.iter_mut().enumerate() {
                        let word = V::splat(*tile.add(r * STRIDE + at)).to_bits();
                        for (total, lanes) in total.iter_mut().zip(lanes) {
                            *total = V::dot_bytes(*total, word, lanes);
                        }
                    }
                }
                let scales = tile.add(WORDS + group);
                self.x.add_scaled::<V, ROWS, PANELS>(total, panel, first + group, scales, sums);
            }
        }
    }

    fn step(&self) -> usize {
        LANES.min(self.call.group / BYTES)
    }

    #[inline(always)]
    unsafe fn add_in_tiles<V: F32x16>(
        &self,
        Pass { x, panel, at, words }: Pass<TILE_PANELS>,
        tile: *const f32,
        sums: *mut f32,
    ) {
        const WIDTH: usize = TILE_PANELS * LANES;
        let mut totals = Lines::<{ TILE_ROWS * WIDTH }>::uninit();
        let totals = totals.as_mut_ptr();
        let per_group = self.call.group / BYTES;
        // SAFETY: as in `add`; the totals have room for all sums.
        unsafe {
            for start in (0..words).step_by(per_group) {
                let group = at % WORDS / per_group + start / per_group;
                V::add_tiles_bytes(&TileProduct {
                    w: tile.add(group * per_group),
                    w_stride: STRIDE,
                    x: [x[0].add(start * LANES), x[1].add(start * LANES)],
                    words: per_group,
                    step: self.step(),
                    sums: totals,
                    sums_stride: WIDTH,
                    fresh: true,
                });
                let index = (at + start) / per_group;
                for p in 0..TILE_PANELS {
                    let x = self.x.group::<V>((panel + p).min(self.x.panels - 1), index);
                    for r in 0..TILE_ROWS {
                        let to = sums.add(r * SUMS + p * LANES);
                        let total = V::load(totals.add(r * WIDTH + p * LANES)).to_bits();
                        let scale = tile.add(r * STRIDE + WORDS + group);
                        let before = if index > 0 { V::load(to) } else { V::splat(0.0) };
                        scaled(total, scale, self.x.centered, x, before).store(to);
                    }
                }
            }
        }
    }
}
