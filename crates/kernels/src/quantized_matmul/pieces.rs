//! Products with the rows of a prompt in float32, by tiles of bf16.
//!
//! A float32 is the sum of three bf16, and a code of at most eight bits is a bf16, once half of the
//! codes' range is taken from it. So a group's sum of products of codes is three products of tiles,
//! the smallest parts first. It is multiplied by the scale of the weights, to which the bias times
//! the sum of x is added. No factor is rounded: the error is that of sums in float32.
//!
//! Tiles take subnormal numbers as zero, so each row of a group is divided by a power of two that
//! leaves its largest element between one and two. Elements that are 2^-110 of the largest lose
//! bits then, which are less than what a sum in float32 rounds off the largest. A group with an
//! infinity or a NaN yields NaN. A row's bits depend on that row alone.

use std::ops::Range;

use super::finish::Finish;
use super::format::{Affine, Floats, Format, Scales};
use super::k_quant::Blocks;
use super::prefill;
use super::{Call, Mode, with_format};
use crate::element::Element;
use crate::linear::arithmetic::InF32;
use crate::linear::gemm::{EXTRA, Pass, STRIDE, SUMS, WORDS, Weights, multiply};
use crate::linear::interleaved::Interleaved;
use crate::linear::workspace;
use crate::simd::tiles::{PIECES, TILE_PANELS, TILE_ROWS, TileProduct};
use crate::simd::{F32x16, Kernel, LANES, Lines};
use crate::{Machine, Shared};

/// Weights in a word.
const PAIR: usize = 2;
/// The most groups of a row in a tile, which has scales, then biases.
const GROUPS: usize = WORDS * PAIR / 16;
const _: () = assert!(2 * GROUPS <= EXTRA);

/// Whether a call's products are those of this module.
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
    let (panels, groups) = (m.div_ceil(LANES), k / call.group);
    let words = panels * LANES * k / PAIR * PIECES;
    // SAFETY: the caller's contract; the workspace holds the parts of x, and a scale and a sum for
    // each of its groups, in whole panels.
    unsafe {
        prefill::normalized::<f32>(machine, call, &|x| {
            workspace::with(words + 2 * panels * groups * LANES, &|room| {
                let step = step(call);
                let split =
                    Split { words: room, scales: room.wrapping_add(words), k, step, groups };
                let from = Shared(x.cast_mut());
                machine.pool.for_each(panels, 5 * LANES * k, &|panels| {
                    let x = from.get().cast_const();
                    machine.level.run(Fill { x, m, group: call.group, to: &split, panels });
                });
                let finish = Finish::new::<f32>(machine, call);
                prefill::each_product::<f32>(call, &finish, |weights, epilogue| {
                    let w = Codes { call, weights, x: &split };
                    let x = Interleaved::<InF32>::elsewhere([m, k / PAIR]);
                    multiply(machine, &x, weights.columns, &w, epilogue);
                });
            });
        });
    }
}

/// Words that are one tile.
fn step(call: &Call) -> usize {
    LANES.min(call.group / PAIR)
}

/// x in parts: for each panel of sixteen rows and each `step` words, the interleaved words of the
/// small parts, then those of the other parts. Then, for each panel and group, the power of two of
/// each row and the sum of its elements over that power.
struct Split {
    words: *mut f32,
    scales: *mut f32,
    k: usize,
    step: usize,
    groups: usize,
}

// SAFETY: written by `Fill` alone, each panel by one thread, before anyone reads.
unsafe impl Sync for Split {}

impl Split {
    /// The parts of a panel from word `at` on, which begins a tile.
    #[inline(always)]
    fn panel(&self, panel: usize, at: usize) -> *mut f32 {
        self.words.wrapping_add((panel * (self.k / PAIR) + at) * PIECES * LANES)
    }

    /// Sixteen powers of two, then sixteen sums.
    #[inline(always)]
    fn scales(&self, panel: usize, group: usize) -> *mut f32 {
        self.scales.wrapping_add((panel * self.groups + group) * 2 * LANES)
    }
}

/// Splits panels of x.
struct Fill<'a> {
    x: *const f32,
    m: usize,
    group: usize,
    to: &'a Split,
    panels: Range<usize>,
}

impl Kernel for Fill<'_> {
    const BF16: bool = true;
    const ONLY_BF16: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { x, m, group, to, .. } = self;
        let upper = V::splat_int(0xffff_0000_u32 as i32);
        for panel in self.panels {
            let rows = (m - panel * LANES).min(LANES);
            for index in 0..to.groups {
                let mut inverse = [0.0; LANES];
                let mut both = [0.0f32; 2 * LANES];
                let first = x.wrapping_add(panel * LANES * to.k + index * group);
                // SAFETY: the rows and the group exist, and the parts have room for them.
                unsafe {
                    for row in 0..rows {
                        let x = first.add(row * to.k);
                        let power;
                        (power, inverse[row]) = powers::<V>(x, group);
                        let mut sum = V::splat(0.0);
                        for at in (0..group).step_by(LANES) {
                            sum = V::load(x.add(at)).mul_add(V::splat(inverse[row]), sum);
                        }
                        (both[row], both[LANES + row]) = (power, sum.reduce_add());
                    }
                    let scales = to.scales(panel, index);
                    scales.copy_from_nonoverlapping(both.as_ptr(), 2 * LANES);
                    for start in (0..group).step_by(PAIR * to.step) {
                        let mut parts = [[[0u16; PAIR * LANES]; LANES]; PIECES];
                        for row in 0..rows {
                            for at in (0..PAIR * to.step).step_by(LANES) {
                                let x = V::load(first.add(row * to.k + start + at));
                                let mut rest = x * V::splat(inverse[row]);
                                for part in parts.iter_mut().rev() {
                                    let bits = V::and_int(rest.to_bits(), upper);
                                    let half = V::narrow(V::shift_right::<16>(bits));
                                    V::store_half(half, part[row].as_mut_ptr().add(at));
                                    rest = rest - V::from_bits(bits);
                                }
                            }
                        }
                        let out = to.panel(panel, (index * group + start) / PAIR);
                        for (piece, part) in parts.iter().enumerate() {
                            let mut square = [V::splat(0.0); LANES];
                            for (words, row) in square.iter_mut().zip(part) {
                                *words = V::load(row.as_ptr().cast());
                            }
                            let columns = V::transpose(square).into_iter();
                            for (j, lanes) in columns.enumerate().take(to.step) {
                                lanes.store(out.add((piece * to.step + j) * LANES));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The power of two at or below the largest magnitude of a group, and its inverse. If an element is
/// not finite, the first is NaN.
#[inline(always)]
unsafe fn powers<V: F32x16>(x: *const f32, group: usize) -> (f32, f32) {
    let (mut most, mut zeros) = (V::splat(0.0), V::splat(0.0));
    for at in (0..group).step_by(LANES) {
        // SAFETY: the caller's group, of a multiple of sixteen elements.
        let x = unsafe { V::load(x.add(at)) };
        most = most.max(x.abs());
        zeros = x.mul_add(V::splat(0.0), zeros);
    }
    if zeros.reduce_add() != 0.0 {
        return (f32::NAN, 0.0);
    }
    let exponent = (most.reduce_max().to_bits() >> 23).max(1);
    let inverse = match 254 - exponent {
        0 => 1 << 22,
        exponent => exponent << 23,
    };
    (f32::from_bits(exponent << 23), f32::from_bits(inverse))
}

/// One matrix of a call, for the x of that call.
struct Codes<'a> {
    call: &'a Call<'a>,
    weights: &'a super::Weights,
    x: &'a Split,
}

// SAFETY: only read.
unsafe impl Sync for Codes<'_> {}

impl Codes<'_> {
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
        // and behind them for twice `GROUPS` floats.
        unsafe {
            for at in (0..len).step_by(LANES) {
                let code = F::in_order::<V>(packed.add(at / 8 * F::BITS as usize)) - half;
                let code = V::narrow(V::shift_right::<16>(code.to_bits()));
                V::store_half(code, out.cast::<u16>().add(at));
            }
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
                // SAFETY: the rows and words exist and `out` has room for them, the caller says.
                unsafe { self.unpack_row::<V, F>(row + i, k, len, out.add(i * stride)) }
            }
        })
    }

    /// All products are those of tiles.
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
        Pass { panel, at, words, .. }: Pass<TILE_PANELS>,
        tile: *const f32,
        sums: *mut f32,
    ) {
        const WIDTH: usize = TILE_PANELS * LANES;
        let mut totals = Lines::<{ TILE_ROWS * WIDTH }>::uninit();
        let totals = totals.as_mut_ptr();
        let per_group = self.call.group / PAIR;
        let last = self.call.rows.div_ceil(LANES) - 1;
        let panels = [panel, (panel + 1).min(last)];
        // SAFETY: the panels and the tile hold the words, after which the tile has scales and
        // biases of their groups; x has scales and sums of every panel and group, and `totals` has
        // room for all sums.
        unsafe {
            for start in (0..words).step_by(per_group) {
                let group = at % WORDS / per_group + start / per_group;
                V::tiles_of_pieces(&TileProduct {
                    w: tile.add(group * per_group),
                    w_stride: STRIDE,
                    x: panels.map(|panel| self.x.panel(panel, at + start).cast_const()),
                    words: per_group,
                    step: self.step(),
                    sums: totals,
                    sums_stride: WIDTH,
                });
                let index = (at + start) / per_group;
                for (p, &panel) in panels.iter().enumerate() {
                    let x = self.x.scales(panel, index);
                    let (power, sum) = (V::load(x), V::load(x.add(LANES)));
                    for r in 0..TILE_ROWS {
                        let to = sums.add(r * SUMS + p * LANES);
                        let scale = tile.add(r * STRIDE + WORDS + group);
                        let (scale, bias) = (V::splat(*scale), V::splat(*scale.add(GROUPS)));
                        let total = V::load(totals.add(r * WIDTH + p * LANES));
                        let total = total.mul_add(scale, bias * sum);
                        let before = if index > 0 { V::load(to) } else { V::splat(0.0) };
                        total.mul_add(power, before).store(to);
                    }
                }
            }
        }
    }
}
