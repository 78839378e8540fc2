//! Shuffles of lanes between two vectors, for instruction sets that have no such instructions.

use super::lanes::{LANES, Lanes};
use super::transpose::{from_lanes, lanes};

/// Implements [`F32x16::zip_words`](super::F32x16::zip_words).
#[inline(always)]
pub fn zip_words<V: Lanes>(a: V::Int, b: V::Int) -> [V::Int; 2] {
    pick::<V>(a, b, |half, to| (to / 2 % 2, to / 4 * 4 + 2 * half + to % 2))
}

/// Implements [`F32x16::unzip_lanes`](super::F32x16::unzip_lanes).
#[inline(always)]
pub fn unzip_lanes<V: Lanes>(a: V::Int, b: V::Int) -> [V::Int; 2] {
    pick::<V>(a, b, |half, to| (to / 2 % 2, to / 4 * 4 + to % 2 * 2 + half))
}

/// Implements [`F32x16::unzip_quarters`](super::F32x16::unzip_quarters).
#[inline(always)]
pub fn unzip_quarters<V: Lanes>(a: V::Int, b: V::Int) -> [V::Int; 2] {
    pick::<V>(a, b, |half, to| (to / 8, to / 4 % 2 * 8 + 4 * half + to % 4))
}

/// Builds two vectors from lanes of `a` and `b`. For each result (0 or 1) and lane, `place` returns
/// the source (0 for `a`, 1 for `b`) and the lane of the source.
#[inline(always)]
fn pick<V: Lanes>(
    a: V::Int,
    b: V::Int,
    place: impl Fn(usize, usize) -> (usize, usize),
) -> [V::Int; 2] {
    let of: [[f32; LANES]; 2] = [lanes(V::from_bits(a)), lanes(V::from_bits(b))];
    [0, 1].map(|half| {
        let lane = |to| {
            let (vector, lane) = place(half, to);
            of[vector][lane]
        };
        from_lanes::<V>(lane).to_bits()
    })
}
