//! Access to lanes through memory, and the transpose of sixteen blocks.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::lanes::{LANES, Lanes};

/// Returns the lanes of a block as an array.
#[inline(always)]
pub fn lanes<V: Lanes>(block: V) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    // SAFETY: the array holds sixteen floats.
    unsafe { block.store(lanes.as_mut_ptr()) };
    lanes
}

/// Builds a block from its lanes.
#[inline(always)]
pub fn from_lanes<V: Lanes>(lane: impl FnMut(usize) -> f32) -> V {
    let lanes: [f32; LANES] = std::array::from_fn(lane);
    // SAFETY: the array holds sixteen floats.
    unsafe { V::load(lanes.as_ptr()) }
}

/// Builds a vector of small integers, one for each lane.
#[inline(always)]
pub fn numbers<V: Lanes>(of_lane: impl Fn(usize) -> usize) -> V::Int {
    from_lanes::<V>(|lane| f32::from_bits(of_lane(lane) as u32)).to_bits()
}

/// Lane i is the sum of the lanes of `blocks[i]`, or with `MAX` the largest lane.
#[inline(always)]
pub fn reduce_each<V: Lanes, const MAX: bool>(blocks: [V; LANES]) -> V {
    let mut lanes = [0.0; LANES];
    for (lane, block) in lanes.iter_mut().zip(blocks) {
        *lane = if MAX { block.reduce_max() } else { block.reduce_add() };
    }
    // SAFETY: the array holds sixteen floats.
    unsafe { V::load(lanes.as_ptr()) }
}

/// Computes [`F32x16::transpose`](super::F32x16::transpose) through memory, for instruction sets
/// without suitable shuffles.
#[inline(always)]
pub fn by_memory<V: Lanes>(rows: [V; LANES]) -> [V; LANES] {
    let mut square = [0.0f32; LANES * LANES];
    let mut column = [0.0f32; LANES];
    // SAFETY: every row and every column has sixteen floats within these arrays.
    unsafe {
        for (i, row) in rows.into_iter().enumerate() {
            row.store(square.as_mut_ptr().add(i * LANES));
        }
        let mut columns = rows;
        for (j, lanes) in columns.iter_mut().enumerate() {
            for (i, lane) in column.iter_mut().enumerate() {
                *lane = square[i * LANES + j];
            }
            *lanes = V::load(column.as_ptr());
        }
        columns
    }
}

/// Block i of the result has lane i of every block.
///
/// # Safety
/// The machine has AVX-512 F and DQ, and this is inlined into a function that enables them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn transpose(rows: [__m512; LANES]) -> [__m512; LANES] {
    // SAFETY: the caller promises the instructions, which access only registers.
    unsafe {
        // Transposes pairs of rows, then groups of four rows, within 128-bit quarters. The last
        // loop exchanges quarters.
        let mut t = rows;
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
        }
        let mut q = t;
        for i in 0..4 {
            let (a, b) = (_mm512_castps_pd(t[4 * i]), _mm512_castps_pd(t[4 * i + 1]));
            let (c, d) = (_mm512_castps_pd(t[4 * i + 2]), _mm512_castps_pd(t[4 * i + 3]));
            q[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
            q[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
            q[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
            q[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
        }
        let mut out = rows;
        for i in 0..4 {
            let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(q[i], q[4 + i]);
            let odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(q[i], q[4 + i]);
            let even_below = _mm512_shuffle_f32x4::<0b10_00_10_00>(q[8 + i], q[12 + i]);
            let odd_below = _mm512_shuffle_f32x4::<0b11_01_11_01>(q[8 + i], q[12 + i]);
            out[i] = _mm512_shuffle_f32x4::<0b10_00_10_00>(even, even_below);
            out[4 + i] = _mm512_shuffle_f32x4::<0b10_00_10_00>(odd, odd_below);
            out[8 + i] = _mm512_shuffle_f32x4::<0b11_01_11_01>(even, even_below);
            out[12 + i] = _mm512_shuffle_f32x4::<0b11_01_11_01>(odd, odd_below);
        }
        out
    }
}
