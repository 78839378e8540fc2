//! Divides each row of x by a power of two, and splits it into parts of bf16.
//!
//! The largest element of a row becomes at least 2^24, unless it was smaller than 2^-102. Elements
//! that are smaller than 2^-127 times the largest element lose bits. The lost bits are worth less
//! than 2^-150 times the largest element. A smaller exponent than 24 would lose more bits, and a
//! larger one would leave less room for sums with large weights.

use std::ops::Range;

use super::super::Call;
use crate::simd::tiles::PIECES;
use crate::simd::{F32x16, Kernel, LANES};

/// The number of weights in a word.
pub(super) const PAIR: usize = 2;

/// The exponent of the largest element of a row after the division, in most rows.
const LARGEST: u32 = 24;

/// x in parts, in three arrays. The first has, for each panel of sixteen rows and each `step`
/// words, the interleaved words of the smallest parts, then of the larger parts. The second has,
/// for each panel and group, the sum of the elements of each row, divided by the power of the row.
/// The third has the powers of the rows of each panel.
pub struct Split {
    words: *mut f32,
    sums: *mut f32,
    k: usize,
    step: usize,
    groups: usize,
    panels: usize,
}

// SAFETY: only `Fill` writes; each panel is written by one thread, before any read.
unsafe impl Sync for Split {}

impl Split {
    /// The number of floats that the three arrays take for the x of a call.
    pub fn floats(call: &Call) -> usize {
        let panels = call.rows.div_ceil(LANES);
        panels * LANES * (call.axis / PAIR * PIECES + call.axis / call.group + 1)
    }

    /// Lays out the three arrays for the x of a call in `room`, with tiles of `step` words.
    pub fn new(call: &Call, room: *mut f32, step: usize) -> Self {
        let (k, panels) = (call.axis, call.rows.div_ceil(LANES));
        let sums = room.wrapping_add(panels * LANES * (k / PAIR * PIECES));
        Self { words: room, sums, k, step, groups: k / call.group, panels }
    }

    /// The address of the parts of a panel from word `at` on. A tile begins at this word.
    #[inline(always)]
    pub fn panel(&self, panel: usize, at: usize) -> *mut f32 {
        self.words.wrapping_add((panel * (self.k / PAIR) + at) * PIECES * LANES)
    }

    /// The sums of a panel's sixteen rows for one group.
    #[inline(always)]
    pub fn sums(&self, panel: usize, group: usize) -> *mut f32 {
        self.sums.wrapping_add((panel * self.groups + group) * LANES)
    }

    /// The powers of two of a panel's sixteen rows; NaN for a row that has an infinity or a NaN.
    #[inline(always)]
    pub fn powers(&self, panel: usize) -> *mut f32 {
        self.sums.wrapping_add((self.panels * self.groups + panel) * LANES)
    }

    /// Whether all elements of a row are finite.
    ///
    /// # Safety
    /// The row exists and is filled.
    pub unsafe fn is_finite(&self, row: usize) -> bool {
        // SAFETY: the caller's contract.
        unsafe { !(*self.powers(row / LANES).add(row % LANES)).is_nan() }
    }
}

/// Splits panels of x.
pub struct Fill<'a> {
    pub x: *const f32,
    pub m: usize,
    pub group: usize,
    pub to: &'a Split,
    pub panels: Range<usize>,
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
            let x = x.wrapping_add(panel * LANES * to.k);
            let (mut power, mut inverse) = ([0.0f32; LANES], [0.0f32; LANES]);
            for row in 0..rows {
                // SAFETY: the row exists.
                (power[row], inverse[row]) = unsafe { powers::<V>(x.add(row * to.k), to.k) };
            }
            // SAFETY: the panel has a power for each lane.
            unsafe { to.powers(panel).copy_from_nonoverlapping(power.as_ptr(), LANES) };
            for index in 0..to.groups {
                let mut sums = [0.0f32; LANES];
                let first = x.wrapping_add(index * group);
                // SAFETY: the rows and the group exist, and the parts have room for them.
                unsafe {
                    for row in 0..rows {
                        let x = first.add(row * to.k);
                        let mut sum = V::splat(0.0);
                        for at in (0..group).step_by(LANES) {
                            sum = V::load(x.add(at)).mul_add(V::splat(inverse[row]), sum);
                        }
                        sums[row] = sum.reduce_add();
                    }
                    to.sums(panel, index).copy_from_nonoverlapping(sums.as_ptr(), LANES);
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

/// Returns the power of two by which a row is divided, and its inverse. If an element is not
/// finite, the power is NaN and the inverse is zero.
#[inline(always)]
unsafe fn powers<V: F32x16>(x: *const f32, count: usize) -> (f32, f32) {
    let (mut most, mut zeros) = (V::splat(0.0), V::splat(0.0));
    for at in (0..count).step_by(LANES) {
        // SAFETY: the caller's row has a multiple of sixteen elements.
        let x = unsafe { V::load(x.add(at)) };
        most = most.max(x.abs());
        zeros = x.mul_add(V::splat(0.0), zeros);
    }
    if zeros.reduce_add() != 0.0 {
        return (f32::NAN, 0.0);
    }
    let exponent = (most.reduce_max().to_bits() >> 23).saturating_sub(LARGEST).max(1);
    (f32::from_bits(exponent << 23), f32::from_bits((254 - exponent) << 23))
}
