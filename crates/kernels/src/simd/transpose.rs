//! Access to the lanes of registers through memory, and the transpose of a square of sixteen
//! registers.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::lanes::{LANES, Lanes};

/// The lanes of a block.
#[inline(always)]
pub fn lanes<V: Lanes>(block: V) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    // SAFETY: the array holds sixteen floats.
    unsafe { block.store(lanes.as_mut_ptr()) };
    lanes
}

/// The block with these lanes.
#[inline(always)]
pub fn from_lanes<V: Lanes>(lane: impl FnMut(usize) -> f32) -> V {
    let lanes: [f32; LANES] = std::array::from_fn(lane);
    // SAFETY: the array holds sixteen floats.
    unsafe { V::load(lanes.as_ptr()) }
}

/// A small number for each lane.
#[inline(always)]
pub fn numbers<V: Lanes>(of_lane: impl Fn(usize) -> usize) -> V::Int {
    from_lanes::<V>(|lane| f32::from_bits(of_lane(lane) as u32)).to_bits()
}

/// Lane i is the sum of `blocks[i]`, or its largest lane with `MAX`.
#[inline(always)]
pub fn reduce_each<V: Lanes, const MAX: bool>(blocks: [V; LANES]) -> V {
    let mut lanes = [0.0; LANES];
    for (lane, block) in lanes.iter_mut().zip(blocks) {
        *lane = if MAX { block.reduce_max() } else { block.reduce_add() };
    }
    // SAFETY: the array holds sixteen floats.
    unsafe { V::load(lanes.as_ptr()) }
}

/// [`F32x16::transpose`](super::F32x16::transpose) through memory, for levels without shuffles for
/// it.
#[inline(always)]
pub fn by_memory<V: Lanes>(rows: [V; LANES]) -> [V; LANES] {
    let mut square = [0.0f32; LANES * LANES];
    let mut column = [0.0f32; LANES];
    // SAFETY: every row and column is sixteen floats of these arrays.
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

/// Row i of the result has element i of every row.
///
/// # Safety
/// The machine has AVX-512 F and DQ, and this is inlined where they are enabled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn transpose(rows: [__m512; LANES]) -> [__m512; LANES] {
    // SAFETY: the caller vouches for the instructions; memory is not accessed.
    unsafe {
        // Transposes pairs of rows, then groups of four, within 128-bit quarters; then exchanges
        // quarters.
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
