//! Computes scores and weighted sums directly from the codes of quantized keys and values. A group
//! is a run of features that share a scale and a bias. In a score, the scale multiplies the dot
//! product of the query and the group's codes, and the bias multiplies the sum of the query's
//! features in this group. In a weighted sum, the weight times the scale multiplies the codes, and
//! the weight times the bias is added.

use super::source::{Codes, QuantizedRows, codes, load_strided};
use super::{MAX_DIM, TILE};
use crate::element::Float;
use crate::simd::{F32x16, Kernel, LANES, Lines, prefetch};

/// The smallest number of features that share a scale.
const LEAST_GROUP: usize = 32;
/// The largest number of groups in a row.
pub const GROUPS: usize = MAX_DIM / LEAST_GROUP;

/// Sums the features of each group of a query row, for [`scores`].
///
/// # Safety
/// `q` holds `dim` floats, a multiple of `group`; `sums` has room for [`GROUPS`].
#[inline(always)]
pub unsafe fn sums<V: F32x16>(q: *const f32, dim: usize, group: usize, sums: *mut f32) {
    for first in (0..dim).step_by(group) {
        let mut sum = V::splat(0.0);
        // SAFETY: the caller's contract.
        unsafe {
            for at in (first..first + group).step_by(LANES) {
                sum = sum + V::load(q.add(at));
            }
            *sums.add(first / group) = sum.reduce_add();
        }
    }
}

/// The scales and biases of a tile's rows as floats: [`TILE`] scales for each group of features,
/// then [`TILE`] biases for each group.
#[derive(Clone, Copy)]
pub struct Factors(*const f32);

/// Room for [`Factors`].
pub type Room = Lines<{ 2 * GROUPS * TILE }>;

impl Factors {
    #[inline(always)]
    pub fn scales(self, group: usize) -> *const f32 {
        self.0.wrapping_add(group * TILE)
    }

    #[inline(always)]
    pub fn biases(self, group: usize) -> *const f32 {
        self.0.wrapping_add((GROUPS + group) * TILE)
    }

    /// Converts the scales and biases of `count` rows with `dim` features each.
    ///
    /// # Safety
    /// The rows are readable.
    #[inline(always)]
    pub unsafe fn of<V: F32x16, T: Float>(
        rows: &QuantizedRows<T>,
        [count, dim]: [usize; 2],
        room: &mut Room,
    ) -> Self {
        let factors = Self(room.as_mut_ptr());
        let groups = dim / rows.codes.group;
        // SAFETY: the caller's contract; there is room for all groups.
        unsafe { V::part(Convert { rows, count, groups, factors }) };
        factors
    }
}

/// Converts scales and biases to floats, so that the code that uses them is compiled only once for
/// all element types.
struct Convert<'a, T> {
    rows: &'a QuantizedRows<T>,
    count: usize,
    groups: usize,
    factors: Factors,
}

impl<T: Float> Kernel for Convert<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let &QuantizedRows { scales, biases, steps: [_, scale_step, bias_step], .. } = self.rows;
        for (of, step, start) in [
            (scales, scale_step, self.factors.scales(0)),
            (biases, bias_step, self.factors.biases(0)),
        ] {
            for group in 0..self.groups {
                for at in (0..self.count).step_by(LANES) {
                    let first = of.at(at).wrapping_offset(group as isize * step);
                    let left = LANES.min(self.count - at);
                    // SAFETY: the caller's contract; `TILE` is a multiple of `LANES`, so there is
                    // room for all lanes.
                    unsafe {
                        let lanes: V = match of.stride {
                            1 => T::load_block(first, left),
                            stride => load_strided(first, stride, left),
                        };
                        lanes.store(start.wrapping_add(group * TILE + at).cast_mut());
                    }
                }
            }
        }
    }
}

/// Computes the scores of `R` query rows with `count` keys, and returns `R`. The query rows are
/// `pitch` floats apart. Each step takes `K` keys, so that it has `R * K` = 16 sums. The function
/// also prefetches the values, which the caller reads next.
///
/// # Safety
/// The keys, values and query rows are readable, and the words of a row are contiguous; `scores`
/// has [`TILE`] floats per row.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
pub unsafe fn scores<V: F32x16, const BITS: usize, const R: usize, const K: usize>(
    ([k, v], factors): ([&Codes; 2], Factors),
    count: usize,
    dim: usize,
    (q, pitch): (*const f32, usize),
    q_sums: *const f32,
    scores: *mut f32,
) -> usize {
    let bytes = LANES * BITS / 8;
    // SAFETY: the caller's contract.
    unsafe {
        for first in (0..dim).step_by(k.group) {
            let mut dots = [[0.0f32; TILE]; R];
            for at in (0..count).step_by(K) {
                // Past the last key, repeat the last key; the scores of the repetitions are not
                // used.
                let mut keys = [k.packed.data.cast::<u8>(); K];
                for (i, key) in keys.iter_mut().enumerate() {
                    *key = k.packed.at((at + i).min(count - 1)).cast();
                }
                let mut sums = [V::splat(0.0); LANES];
                for from in (first..first + k.group).step_by(LANES) {
                    for (i, key) in keys.iter().enumerate() {
                        let codes = codes::<V, BITS>(key.add(from / LANES * bytes));
                        for r in 0..R {
                            let sum = &mut sums[r * K + i];
                            *sum = V::load(q.add(r * pitch + from)).mul_add(codes, *sum);
                        }
                    }
                }
                let mut all = [0.0f32; LANES];
                V::reduce_add_each(sums).store(all.as_mut_ptr());
                for (r, dots) in dots.iter_mut().enumerate() {
                    // `TILE` is a multiple of `K`.
                    let to = dots.as_mut_ptr().add(at);
                    std::ptr::copy_nonoverlapping(all.as_ptr().add(r * K), to, K);
                }
                for row in at..count.min(at + K) {
                    let value = v.packed.at(row).cast::<u8>();
                    prefetch(value.wrapping_add(first * BITS / 8), k.group * BITS / 8);
                }
            }
            let group = first / k.group;
            let (scales, biases) = (factors.scales(group), factors.biases(group));
            for (r, dots) in dots.iter().enumerate() {
                let sum = V::splat(*q_sums.add(r * GROUPS + group));
                for at in (0..count).step_by(LANES) {
                    let to = scores.add(r * TILE + at);
                    let shift = V::load(biases.add(at)) * sum;
                    let scale = V::load(scales.add(at));
                    let score = V::load(dots.as_ptr().add(at)).mul_add(scale, shift);
                    if first == 0 { score.store(to) } else { (V::load(to) + score).store(to) }
                }
            }
        }
    }
    R
}

/// Adds `count` weighted values to the outputs of `R` rows, and returns `R`. Also prefetches
/// `count` keys of `next`, which the caller reads next.
///
/// # Safety
/// The contract of [`scores`] holds; `p` has [`TILE`] weights per row, and `out` has rows of
/// `pitch` floats.
#[inline(always)]
pub unsafe fn add_values<V: F32x16, const BITS: usize, const R: usize>(
    ([next, v], factors): ([&Codes; 2], Factors),
    count: usize,
    dim: usize,
    p: *const f32,
    (out, pitch): (*mut f32, usize),
) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        for first in (0..dim).step_by(v.group) {
            let group = first / v.group;
            let (scales, biases) = (factors.scales(group), factors.biases(group));
            let mut weights = [[0.0f32; TILE]; R];
            let mut shifts = [0.0f32; R];
            for r in 0..R {
                let mut shift = V::splat(0.0);
                for at in (0..count).step_by(LANES) {
                    let p = V::load(p.add(r * TILE + at));
                    (p * V::load(scales.add(at))).store(weights[r].as_mut_ptr().add(at));
                    shift = p.mul_add(V::load(biases.add(at)), shift);
                }
                shifts[r] = shift.reduce_add();
            }
            if v.group == LEAST_GROUP {
                add_columns::<V, BITS, R, 2>(
                    [next, v],
                    count,
                    first,
                    &weights,
                    &shifts,
                    (out, pitch),
                );
                continue;
            }
            for from in (first..first + v.group).step_by(4 * LANES) {
                add_columns::<V, BITS, R, 4>(
                    [next, v],
                    count,
                    from,
                    &weights,
                    &shifts,
                    (out, pitch),
                );
            }
        }
    }
    R
}

/// Does the work of `add_values` for `N` blocks of sixteen features in one group.
#[inline(always)]
unsafe fn add_columns<V: F32x16, const BITS: usize, const R: usize, const N: usize>(
    [next, v]: [&Codes; 2],
    count: usize,
    from: usize,
    weights: &[[f32; TILE]; R],
    shifts: &[f32; R],
    (out, pitch): (*mut f32, usize),
) {
    let bytes = LANES * BITS / 8;
    let start = from / LANES * bytes;
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [[V::splat(0.0); N]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(out.add(r * pitch + from + n * LANES)) + V::splat(shifts[r]);
            }
        }
        for key in 0..count {
            let key_after = next.packed.at(key).cast::<u8>().wrapping_add(start);
            prefetch(key_after, N * bytes);
            let row = v.packed.at(key).cast::<u8>().add(start);
            let mut values = [V::splat(0.0); N];
            for (n, value) in values.iter_mut().enumerate() {
                *value = codes::<V, BITS>(row.add(n * bytes));
            }
            for (weights, sums) in weights.iter().zip(sums.iter_mut()) {
                let weight = V::splat(weights[key]);
                for (sum, value) in sums.iter_mut().zip(&values) {
                    *sum = value.mul_add(weight, *sum);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (n, sum) in sums.into_iter().enumerate() {
                sum.store(out.add(r * pitch + from + n * LANES));
            }
        }
    }
}
