//! x in bytes, with the scale and the sum of each group. Also scales the products of a group and
//! adds them up.

use crate::linear::gemm::{EXTRA, STRIDE, SUMS, WORDS};
use crate::simd::{F32x16, LANES};

/// The number of bytes in a word.
pub const BYTES: usize = 4;
/// The largest number of groups of a row in a tile, if the groups have scales and biases.
pub const GROUPS: usize = WORDS * BYTES / 32;
/// Groups of 16 have no biases: they are centered, as `Rounded::centered` describes.
const _: () = assert!(2 * GROUPS <= EXTRA && WORDS * BYTES / 16 <= EXTRA);

/// x in bytes, `[m, k]`. After the bytes are sixteen scales for each panel and group, then sums in
/// the same layout.
pub struct Rounded {
    pub words: *mut f32,
    pub scales: *mut f32,
    /// The total number of scales.
    pub count: usize,
    pub panels: usize,
    /// The number of groups in a row.
    pub groups: usize,
    /// Whether the groups of the weights have no biases. A weight is then `scale * (code - 32)`.
    pub centered: bool,
}

// SAFETY: only `Round` writes; each panel is written by one thread, before any read.
unsafe impl Sync for Rounded {}

impl Rounded {
    /// Scales of a panel's sixteen rows for one group.
    #[inline(always)]
    pub fn scales(&self, panel: usize, group: usize) -> *mut f32 {
        self.scales.wrapping_add((panel * self.groups + group) * LANES)
    }

    /// Scaled sums of the rounded x of a panel's sixteen rows for one group.
    #[inline(always)]
    pub fn sums(&self, panel: usize, group: usize) -> *mut f32 {
        self.scales(panel, group).wrapping_add(self.count)
    }

    /// The scales and the scaled sums of a panel's rows for one group.
    ///
    /// # Safety
    /// The panel and the group exist, and have been written.
    #[inline(always)]
    pub unsafe fn group<V: F32x16>(&self, panel: usize, group: usize) -> [V; 2] {
        // SAFETY: the caller's contract; the scales and the sums are sixteen floats each.
        unsafe { [V::load(self.scales(panel, group)), V::load(self.sums(panel, group))] }
    }

    /// Scales the totals of a group and adds them to `sums`, which the first group of a row
    /// overwrites. The scales of a tile's rows are [`STRIDE`] apart.
    ///
    /// # Safety
    /// The scales, the panels and the group exist; `sums` has sixteen floats for each panel.
    #[inline(always)]
    pub unsafe fn add_scaled<V: F32x16, const ROWS: usize, const PANELS: usize>(
        &self,
        totals: [[V::Int; PANELS]; ROWS],
        panel: usize,
        group: usize,
        scales: *const f32,
        sums: *mut f32,
    ) {
        for p in 0..PANELS {
            // SAFETY: the caller's contract.
            unsafe {
                let x = self.group::<V>(panel + p, group);
                for (r, total) in totals.iter().enumerate() {
                    let to = sums.add(r * SUMS + p * LANES);
                    let before = if group > 0 { V::load(to) } else { V::splat(0.0) };
                    scaled(total[p], scales.add(r * STRIDE), self.centered, x, before).store(to);
                }
            }
        }
    }
}

/// Scales the total of a group, for a row of weights whose scale is at `scale`, and adds it to
/// `before`. `x` is the result of [`Rounded::group`].
///
/// # Safety
/// The scale exists. Unless the codes are `centered`, the bias is [`GROUPS`] floats after the
/// scale.
#[inline(always)]
pub unsafe fn scaled<V: F32x16>(
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
