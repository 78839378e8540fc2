//! Products of the float32 rows of a prompt with packed weights, by tile instructions for bf16.
//!
//! A float32 is the sum of three bf16 numbers, its parts. A code of at most eight bits, minus half
//! of the range of the codes, is a bf16 number. So the sum of the products of codes in a group is
//! added up from three products of tiles, beginning with the smallest parts of x. The sum is
//! multiplied by the scale of the weights. Then the sum of x is added, times `bias + scale * half`,
//! where `half` is half of the range of the codes. Only elements far smaller than the largest one
//! of their row lose bits ([`split`]). All other errors are from operations in float32.
//!
//! Tile instructions treat subnormal numbers as zero. So each row of x is divided by a power of
//! two, and its sums are multiplied by this power at the end. A row with an infinity or a NaN is
//! multiplied without tiles. The result of a row does not depend on other rows.

mod split;

use std::slice;

use super::finish::Finish;
use super::format::{Affine, Floats, Format, Scales};
use super::k_quant::Blocks;
use super::prefill;
#[cfg(target_arch = "x86_64")]
use super::unpack;
use super::{Call, Mode, with_format};
use crate::element::Element;
use crate::linear::arithmetic::InF32;
use crate::linear::gemm::{EXTRA, Pass, STRIDE, SUMS, WORDS, Weights, multiply};
use crate::linear::interleaved::Interleaved;
use crate::linear::workspace;
use crate::simd::tiles::{TILE_PANELS, TILE_ROWS, TileProduct};
use crate::simd::{F32x16, LANES, Lines};
use crate::{Machine, Shared};
use split::{Fill, PAIR, Split};

/// The largest number of groups of a row in a tile. The tile has their scales, then their biases.
const GROUPS: usize = WORDS * PAIR / 16;
const _: () = assert!(2 * GROUPS <= EXTRA);
/// The number of groups whose products are scaled together, so that their sums are loaded and
/// stored once.
const TOGETHER: usize = 4;
/// The number of lanes in a row of a product of tiles.
const WIDTH: usize = TILE_PANELS * LANES;

/// Whether this module computes the products of a call.
pub(super) fn takes(machine: Machine, call: &Call) -> bool {
    machine.level.multiplies_tiles()
        && call.element == Element::F32
        && matches!(call.mode, Mode::Affine | Mode::KQuant)
        && call.low_rank.is_none()
}

/// # Safety
/// The contract of [`super::quantized_matmul`]; [`takes`] holds.
pub(super) unsafe fn run(machine: Machine, call: &Call) {
    let (m, k) = (call.rows, call.axis);
    // SAFETY: the caller's contract; the workspace has the room that the parts of x need.
    unsafe {
        prefill::normalized::<f32>(machine, call, &|x| {
            workspace::with(Split::floats(call), &|room| {
                let split = Split::new(call, room, step(call));
                let from = Shared(x.cast_mut());
                machine.pool.for_each(m.div_ceil(LANES), 5 * LANES * k, &|panels| {
                    let x = from.get().cast_const();
                    machine.level.run(Fill { x, m, group: call.group, to: &split, panels });
                });
                // First compute the rows that cannot use tiles. They need the residual, and the
                // products below may write the output over it.
                let (others, results) = without_tiles(machine, call, x, &split);
                let finish = Finish::new::<f32>(machine, call);
                prefill::each_product::<f32>(call, &finish, |weights, epilogue| {
                    let w = Codes { call, weights, x: &split };
                    let x = Interleaved::<InF32>::elsewhere([m, k / PAIR]);
                    multiply(machine, &x, weights.columns, &w, epilogue);
                });
                let columns = call.columns();
                for (&row, result) in others.iter().zip(results.chunks_exact(columns.max(1))) {
                    let to = finish.place::<f32>(row, 0);
                    to.copy_from_nonoverlapping(result.as_ptr(), columns);
                }
            });
        });
    }
}

/// Computes the outputs of the rows of x that have an infinity or a NaN, by multiply-adds instead
/// of tiles. Returns the indices of these rows, and the outputs.
///
/// # Safety
/// The contract of [`run`] holds, `x` is normalized, and `split` holds the parts of `x`.
unsafe fn without_tiles(
    machine: Machine,
    call: &Call,
    x: *const f32,
    split: &Split,
) -> (Vec<usize>, Vec<f32>) {
    // SAFETY: the caller's contract; the rows of x and of the residual exist.
    unsafe {
        let rows: Vec<usize> = (0..call.rows).filter(|&row| !split.is_finite(row)).collect();
        if rows.is_empty() {
            return Default::default();
        }
        let gather = |from: *const f32, width: usize| -> Vec<f32> {
            let row = |&row: &usize| slice::from_raw_parts(from.add(row * width), width);
            rows.iter().flat_map(row).copied().collect()
        };
        let columns = call.columns();
        let x = gather(x, call.axis);
        let mut results = vec![0.0f32; rows.len() * columns];
        let mut some = Call { rows: rows.len(), norm: None, ..*call };
        (some.x, some.out) = (x.as_ptr().cast(), results.as_mut_ptr().cast());
        let residual;
        if !call.residual.is_null() {
            residual = gather(call.residual.cast(), columns);
            some.residual = residual.as_ptr().cast();
        }
        prefill::run::<f32>(machine, &some);
        (rows, results)
    }
}

/// The number of words of a row that one tile instruction multiplies.
fn step(call: &Call) -> usize {
    LANES.min(call.group / PAIR)
}

/// One of the weight matrices of a call, and the x of the call.
struct Codes<'a> {
    call: &'a Call<'a>,
    weights: &'a super::Weights,
    x: &'a Split,
}

// SAFETY: only read.
unsafe impl Sync for Codes<'_> {}

impl Codes<'_> {
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
        let (at, len) = (row * axis + k * PAIR, len * PAIR);
        let packed = self.weights.packed.wrapping_add(at / 8 * F::BITS as usize);
        let blocks = Blocks::of_call(self.call).filter(|_| F::IN_BLOCKS);
        let first = match blocks {
            Some(_) => Blocks::bytes(at),
            None => at / group * element.bytes(),
        };
        let super::Weights { scales, biases, .. } = *self.weights;
        let scales = Scales { element, scales, biases }.after(first);
        let half = V::splat((1 << (F::BITS - 1)) as f32);
        // SAFETY: the weights and groups belong to this row; a tile's row has room for the words
        // and, after them, for twice `GROUPS` floats.
        unsafe {
            codes::<V, F>(packed, len, out.cast());
            let (groups, to) = (len / group, out.add(WORDS));
            if let Some(blocks) = blocks {
                blocks.write::<V>(scales.scales, len, to, to.add(GROUPS));
            }
            for at in (0..groups).step_by(LANES) {
                let count = LANES.min(groups - at);
                let [scale, bias] = match blocks {
                    Some(_) => [V::load(to.add(at)), V::load(to.add(GROUPS + at))],
                    None => F::scales::<V>(&scales, at, count),
                };
                scale.store(to.add(at));
                scale.mul_add(half, bias).store(to.add(GROUPS + at));
            }
        }
    }

    /// Adds the products of `G` groups, from group `first` of the pass on.
    ///
    /// # Safety
    /// The contract of [`Weights::add_in_tiles`]; `totals` has room for `G` products of tiles.
    #[inline(always)]
    unsafe fn add_groups<V: F32x16, const G: usize>(
        &self,
        Pass { panel, at, .. }: Pass<TILE_PANELS>,
        first: usize,
        tile: *const f32,
        totals: *mut f32,
        sums: *mut f32,
    ) {
        let per_group = self.call.group / PAIR;
        let index = at / per_group + first;
        let within = at % WORDS / per_group + first;
        let last = self.call.rows.div_ceil(LANES) - 1;
        let panels = [panel, (panel + 1).min(last)];
        let mut of_x = [[V::splat(0.0); TILE_PANELS]; G];
        // SAFETY: the panels and the tile hold the words; after the words the tile has the scales
        // and biases of their groups; x has sums of every panel and group, and powers of every
        // panel.
        unsafe {
            for (g, of_x) in of_x.iter_mut().enumerate() {
                let start = (index + g) * per_group;
                V::tiles_of_pieces(&TileProduct {
                    w: tile.add((within + g) * per_group),
                    w_stride: STRIDE,
                    x: panels.map(|panel| self.x.panel(panel, start).cast_const()),
                    words: per_group,
                    step: self.step(),
                    sums: totals.add(g * TILE_ROWS * WIDTH),
                    sums_stride: WIDTH,
                    fresh: true,
                });
                for (of_x, panel) in of_x.iter_mut().zip(panels) {
                    *of_x = V::load(self.x.sums(panel, index + g));
                }
            }
            let mut powers = [V::splat(1.0); TILE_PANELS];
            if (index + G) * self.call.group == self.call.axis {
                for (power, panel) in powers.iter_mut().zip(panels) {
                    *power = V::load(self.x.powers(panel));
                }
            }
            for r in 0..TILE_ROWS {
                let to = sums.add(r * SUMS);
                let scales = tile.add(r * STRIDE + WORDS + within);
                let mut all = [V::splat(0.0); TILE_PANELS];
                if index > 0 {
                    all = [V::load(to), V::load(to.add(LANES))];
                }
                for (g, of_x) in of_x.iter().enumerate() {
                    let scale = V::splat(*scales.add(g));
                    let bias = V::splat(*scales.add(GROUPS + g));
                    for p in 0..TILE_PANELS {
                        let total = totals.add((g * TILE_ROWS + r) * WIDTH + p * LANES);
                        all[p] = V::load(total).mul_add(scale, of_x[p].mul_add(bias, all[p]));
                    }
                }
                for p in 0..TILE_PANELS {
                    (all[p] * powers[p]).store(to.add(p * LANES));
                }
            }
        }
    }
}

/// Writes the codes of `count` weights as bf16, each minus half of the range of the codes. `count`
/// is a multiple of 32.
///
/// # Safety
/// The weights exist, and there is room for the codes.
#[inline(always)]
unsafe fn codes<V: F32x16, F: Format>(packed: *const u8, count: usize, out: *mut u16) {
    // SAFETY: the caller's contract.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if V::DOTS_BF16 {
            return unpack::codes::<V, F>(packed, count, out);
        }
        let half = V::splat((1 << (F::BITS - 1)) as f32);
        for at in (0..count).step_by(LANES) {
            let code = F::in_order::<V>(packed.add(at / 8 * F::BITS as usize)) - half;
            let code = V::narrow(V::shift_right::<16>(code.to_bits()));
            V::store_half(code, out.add(at));
        }
    }
}

impl Weights<InF32> for Codes<'_> {
    const TILES: bool = true;

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
            if F::AFFINE {
                // SAFETY: the caller ensures that the rows and words exist and that `out` has room.
                unsafe { self.unpack_row::<V, F>(row + i, k, len, out.add(i * stride)) }
            }
        })
    }

    /// Does nothing, since all products use tile instructions.
    #[inline(always)]
    unsafe fn add<V: F32x16, const ROWS: usize, const PANELS: usize>(
        &self,
        _: Pass<PANELS>,
        _: *const f32,
        _: *mut f32,
    ) {
    }

    fn step(&self) -> usize {
        step(self.call)
    }

    #[inline(always)]
    unsafe fn add_in_tiles<V: F32x16>(
        &self,
        pass: Pass<TILE_PANELS>,
        tile: *const f32,
        sums: *mut f32,
    ) {
        let mut totals = Lines::<{ TOGETHER * TILE_ROWS * WIDTH }>::uninit();
        let totals = totals.as_mut_ptr();
        let groups = pass.words / (self.call.group / PAIR);
        let mut group = 0;
        // SAFETY: the caller's contract; the totals have room for the groups.
        unsafe {
            while group + TOGETHER <= groups {
                self.add_groups::<V, TOGETHER>(pass, group, tile, totals, sums);
                group += TOGETHER;
            }
            while group < groups {
                self.add_groups::<V, 1>(pass, group, tile, totals, sums);
                group += 1;
            }
        }
    }
}
