//! Products with many rows of x, rounded to eight bits in the weights' groups: products of bytes
//! are added up as integers within a group and then scaled. The GEMM of `linear` moves words of
//! four bytes like floats.
//!
//! x is about `s * q` with q in -127..=127 and s the group's largest magnitude over 127, and a
//! weight is `scale * p + bias` with p of at most eight bits. So a group adds
//! `s * scale * sum(q * p) + bias * s * sum(q)`.

mod pairs;
mod rounded;

use self::rounded::{Round, Rounded};
use super::finish::Finish;
use super::format::{Affine, Floats, Format, Scales};
use super::k_quant::Blocks;
use super::prefill;
use super::{Call, Mode, with_format};
use crate::element::Float;
use crate::linear::arithmetic::InF32;
use crate::linear::gemm::{EXTRA, Pass, STRIDE, SUMS, WORDS, Weights, multiply};
use crate::linear::interleaved::interleaved;
use crate::linear::workspace;
use crate::simd::tiles::{TILE_PANELS, TILE_ROWS, TileProduct};
use crate::simd::{F32x16, LANES, Lines};
use crate::{Machine, Shared};

/// Bytes in a word.
const BYTES: usize = 4;
/// The most groups of a row in a tile that have biases too.
const GROUPS: usize = WORDS * BYTES / 32;
/// Groups of 16 have scales alone, and codes around 32.
const _: () = assert!(2 * GROUPS <= EXTRA && WORDS * BYTES / 16 <= EXTRA);

/// Whether a call can use products of bytes, and gains time by them. 8-bit floats are not integers,
/// and a tile has room for the scales of groups of 16, but not for biases too. Sums of sixteen bits
/// hold products with weights of at most six bits. Tiles of bytes are summed up to the end of a
/// group, then stored and scaled: in groups of 128 that took as long as exact products in tiles of
/// bf16 with 128 rows and longer with 512, and shorter groups end more often.
pub(super) fn takes<T: Float>(machine: Machine, call: &Call) -> bool {
    let in_tiles = T::IS_BF16 && machine.level.multiplies_tiles();
    let bytes = machine.level.dots_bytes();
    (bytes || machine.level.adds_pairs_of_bytes() && call.bits <= 6)
        && !in_tiles
        && matches!(call.mode, Mode::Affine | Mode::Mxfp4 | Mode::KQuant)
        && call.low_rank.is_none()
}

/// # Safety
/// The contract of [`super::quantized_matmul`]; the mode is affine, mxfp4 or that of K-quants, and
/// the call adds no product of low rank.
pub unsafe fn run<T: Float>(machine: Machine, call: &Call) {
    let (m, k) = (call.rows, call.axis);
    let (panels, groups) = (m.div_ceil(LANES), k / call.group);
    let scales = panels * groups * LANES;
    // SAFETY: the caller's contract; the workspace holds x in bytes, and a scale and a sum for each
    // of its groups, in whole panels.
    unsafe {
        prefill::normalized::<T>(machine, call, &|x| {
            workspace::with(m * k / BYTES + 2 * scales, &|room| {
                let scales_at = room.wrapping_add(m * k / BYTES);
                let x8 = Rounded { words: room, scales: scales_at, count: scales, panels, groups };
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

/// One matrix of a call, for the x of that call.
struct Bytes<'a> {
    call: &'a Call<'a>,
    weights: &'a super::Weights,
    x: &'a Rounded,
}

// SAFETY: only read.
unsafe impl Sync for Bytes<'_> {}

impl Bytes<'_> {
    /// Whether groups have no biases, and codes are around 32.
    fn centered(&self) -> bool {
        self.call.mode == Mode::KQuant && self.call.group < 32
    }

    /// Adds the scaled totals of a group to `sums`. The scales of a tile's rows are [`STRIDE`]
    /// apart.
    ///
    /// # Safety
    /// They exist, as do panels and the group; `sums` has sixteen for each panel.
    #[inline(always)]
    unsafe fn add_scaled<V: F32x16, const ROWS: usize, const PANELS: usize>(
        &self,
        totals: [[V::Int; PANELS]; ROWS],
        panel: usize,
        group: usize,
        scales: *const f32,
        sums: *mut f32,
    ) {
        let centered = self.centered();
        for p in 0..PANELS {
            // SAFETY: the caller's contract.
            unsafe {
                let x = self.x.group::<V>(panel + p, group);
                for (r, total) in totals.iter().enumerate() {
                    let to = sums.add(r * SUMS + p * LANES);
                    let before = if group > 0 { V::load(to) } else { V::splat(0.0) };
                    scaled(total[p], scales.add(r * STRIDE), centered, x, before).store(to);
                }
            }
        }
    }

    /// Writes the words `k..k + len` of a row, then its scales and biases behind [`WORDS`].
    ///
    /// # Safety
    /// They exist and `out` has room for them.
    #[inline(always)]
    unsafe fn unpack_row<V: F32x16, F: Format>(
        &self,
        row: usize,
        k: usize,
        len: usize,
        out: *mut f32,
    ) {
        let Call { element, axis, group, .. } = *self.call;
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
        // and behind them for twice `GROUPS` floats.
        unsafe {
            codes::<V, F>(packed, len * BYTES, out.cast());
            let groups = len * BYTES / group;
            let to = out.add(WORDS);
            if let Some(blocks) = blocks {
                let biases = if self.centered() { std::ptr::null_mut() } else { to.add(GROUPS) };
                return blocks.write::<V>(scales.scales, len * BYTES, to, biases);
            }
            for at in (0..groups).step_by(LANES) {
                let count = LANES.min(groups - at);
                let [mut scale, mut bias] = F::scales::<V>(&scales, at, count);
                if !F::AFFINE {
                    // Codes are twice the number plus twelve.
                    scale = scale * V::splat(0.5);
                    bias = scale * V::splat(-12.0);
                }
                scale.store(to.add(at));
                bias.store(to.add(GROUPS + at));
            }
        }
    }
}

/// Writes the codes of `count` weights, in whole groups, as bytes. Codes of 4-bit floats become
/// nonnegative integers.
#[inline(always)]
unsafe fn codes<V: F32x16, F: Format>(packed: *const u8, count: usize, out: *mut u8) {
    // SAFETY: the caller's weights and bytes; groups are multiples of 32.
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
            // SAFETY: the rows and words exist and `out` has room for them, the caller says.
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
            let most = pairs::most_words(self.call);
            // SAFETY: the caller's contract.
            return unsafe {
                V::part(pairs::Pairs::<ROWS, PANELS> { bytes: self, pass, tile, sums, most })
            };
        }
        let Pass { x, panel, at, words } = pass;
        let per_group = self.call.group / BYTES;
        let first = at / per_group;
        // SAFETY: the panels and the tile hold the words, after which the tile has scales and
        // biases of their groups; x has scales and sums of every panel and group.
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
                self.add_scaled::<V, ROWS, PANELS>(total, panel, first + group, scales, sums);
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
        let centered = self.centered();
        // SAFETY: as in `add`; the totals have room for all sums.
        unsafe {
            for start in (0..words).step_by(per_group) {
                let group = at % WORDS / per_group + start / per_group;
                totals.write_bytes(0, TILE_ROWS * WIDTH);
                V::add_tiles_bytes(&TileProduct {
                    w: tile.add(group * per_group),
                    w_stride: STRIDE,
                    x: [x[0].add(start * LANES), x[1].add(start * LANES)],
                    words: per_group,
                    step: self.step(),
                    sums: totals,
                    sums_stride: WIDTH,
                });
                let index = (at + start) / per_group;
                for p in 0..TILE_PANELS {
                    let x = self.x.group::<V>((panel + p).min(self.x.panels - 1), index);
                    for r in 0..TILE_ROWS {
                        let to = sums.add(r * SUMS + p * LANES);
                        let total = V::load(totals.add(r * WIDTH + p * LANES)).to_bits();
                        let scale = tile.add(r * STRIDE + WORDS + group);
                        let before = if index > 0 { V::load(to) } else { V::splat(0.0) };
                        scaled(total, scale, centered, x, before).store(to);
                    }
                }
            }
        }
    }
}

/// Adds the scaled total of a group, for a row of weights whose scale is at `scale`, to `before`.
/// `x` is what [`Rounded::group`] returns.
///
/// # Safety
/// The scale exists, and [`GROUPS`] floats behind it the bias unless the codes are `centered`.
#[inline(always)]
unsafe fn scaled<V: F32x16>(
    total: V::Int,
    scale: *const f32,
    centered: bool,
    x: [V; 2],
    before: V,
) -> V {
    // SAFETY: the caller's contract.
    let (scale, bias) = unsafe {
        let bias = if centered { -32.0 * *scale } else { *scale.add(GROUPS) };
        (V::splat(*scale), V::splat(bias))
    };
    let [of_x, sum_of_x] = x;
    V::from_int(total).mul_add(scale * of_x, bias.mul_add(sum_of_x, before))
}
