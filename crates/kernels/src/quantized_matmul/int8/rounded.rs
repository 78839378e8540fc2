//! The rows of x in bytes.

use std::ops::Range;

use crate::element::Float;
use crate::simd::{F32x16, Kernel, LANES};

/// x in bytes, `[m, k]`, then sixteen scales for each panel and group, then sums laid out alike.
pub(super) struct Rounded {
    pub words: *mut f32,
    pub scales: *mut f32,
    /// Scales in all.
    pub count: usize,
    pub panels: usize,
    /// Groups in a row.
    pub groups: usize,
}

// SAFETY: written by `Round` alone, each panel by one thread, before anyone reads.
unsafe impl Sync for Rounded {}

impl Rounded {
    /// Scales of a panel's sixteen rows for one group.
    #[inline(always)]
    fn scales(&self, panel: usize, group: usize) -> *mut f32 {
        self.scales.wrapping_add((panel * self.groups + group) * LANES)
    }

    /// Scaled sums of the rounded x of a panel's sixteen rows for one group.
    #[inline(always)]
    fn sums(&self, panel: usize, group: usize) -> *mut f32 {
        self.scales(panel, group).wrapping_add(self.count)
    }

    /// The scales and the scaled sums of a panel's rows for one group.
    ///
    /// # Safety
    /// The panel and the group exist, and are written.
    #[inline(always)]
    pub unsafe fn group<V: F32x16>(&self, panel: usize, group: usize) -> [V; 2] {
        // SAFETY: the caller's contract; each is sixteen floats.
        unsafe { [V::load(self.scales(panel, group)), V::load(self.sums(panel, group))] }
    }
}

/// Rounds panels of x.
pub(super) struct Round<'a, T> {
    pub x: *const T,
    pub m: usize,
    pub k: usize,
    pub group: usize,
    pub to: &'a Rounded,
    pub panels: Range<usize>,
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

/// Writes a group as signed bytes; returns their scale and their scaled sum. If an element is not
/// finite, neither are the scale and the products of the group.
#[inline(always)]
unsafe fn round<V: F32x16, T: Float>(x: *const T, group: usize, to: *mut u8) -> (f32, f32) {
    let mut most = V::splat(0.0);
    let mut sum = V::splat(0.0);
    // SAFETY: the caller's group, of a multiple of sixteen elements.
    unsafe {
        for at in (0..group).step_by(LANES) {
            most = most.max(T::load::<V>(x.add(at)).abs());
        }
        let most = most.reduce_max();
        // The smallest numbers, whose inverse would be infinite, become zero.
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
