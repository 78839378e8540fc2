//! A matrix product that keeps its tiles in registers.

use crate::simd::{F32x16, Kernel, LANES};

/// The left factor. Its strides count floats, from row to row and along the depth.
#[derive(Clone, Copy)]
pub struct Left {
    pub data: *const f32,
    pub row: isize,
    pub depth: isize,
}

/// The right factor. Its stride counts floats from row to row.
#[derive(Clone, Copy)]
pub struct Right {
    pub data: *const f32,
    pub pitch: isize,
}

/// Computes `to = left · right`, or `to += left · right` with `ADD`. The result has `rows` rows, a
/// multiple of `M`, and `blocks` blocks of sixteen columns. Tiles of `M` rows times `N` blocks stay
/// in registers.
#[inline(always)]
unsafe fn product<V: F32x16, const M: usize, const N: usize, const ADD: bool>(
    left: Left,
    right: Right,
    (to, pitch): (*mut f32, usize),
    (rows, blocks, depth): (usize, usize, usize),
) {
    if V::SMALL && M * N > 1 {
        // SAFETY: the caller's contract.
        return unsafe { product::<V, 1, 1, ADD>(left, right, (to, pitch), (rows, blocks, depth)) };
    }
    for row in (0..rows).step_by(M) {
        let left = Left { data: left.data.wrapping_offset(row as isize * left.row), ..left };
        let mut block = 0;
        while block < blocks {
            let n = N.min(blocks - block);
            let data = right.data.wrapping_add(block * LANES);
            let right = Right { data, ..right };
            // SAFETY: the caller's contract.
            unsafe {
                let to = to.add(row * pitch + block * LANES);
                match n {
                    1 => tile::<V, M, 1, ADD>(left, right, to, pitch, depth),
                    2 if N > 1 => tile::<V, M, 2, ADD>(left, right, to, pitch, depth),
                    3 if N > 2 => tile::<V, M, 3, ADD>(left, right, to, pitch, depth),
                    _ => tile::<V, M, N, ADD>(left, right, to, pitch, depth),
                }
            }
            block += n;
        }
    }
}

#[inline(always)]
unsafe fn tile<V: F32x16, const M: usize, const N: usize, const ADD: bool>(
    left: Left,
    right: Right,
    to: *mut f32,
    pitch: usize,
    depth: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let at = |m: usize, n: usize| to.add(m * pitch + n * LANES);
        let mut sums = [[V::splat(0.0); N]; M];
        let mut rows = [left.data; M];
        for (m, (sums, row)) in sums.iter_mut().zip(rows.iter_mut()).enumerate() {
            *row = left.data.wrapping_offset(m as isize * left.row);
            for (n, sum) in sums.iter_mut().enumerate() {
                if ADD {
                    *sum = V::load(at(m, n));
                }
            }
        }
        for k in 0..depth as isize {
            let from = right.data.wrapping_offset(k * right.pitch);
            let mut blocks = [V::splat(0.0); N];
            for (n, block) in blocks.iter_mut().enumerate() {
                *block = V::load(from.wrapping_add(n * LANES));
            }
            for (row, sums) in rows.iter().zip(sums.iter_mut()) {
                let factor = V::splat(*row.wrapping_offset(k * left.depth));
                for (sum, block) in sums.iter_mut().zip(&blocks) {
                    *sum = block.mul_add(factor, *sum);
                }
            }
        }
        for (m, sums) in sums.into_iter().enumerate() {
            for (n, sum) in sums.into_iter().enumerate() {
                sum.store(at(m, n));
            }
        }
    }
}

/// A [`Kernel`] that runs [`product`] with a tile size that suits the instruction set, so that the
/// sums stay in registers. `run` rounds the number of rows up to a multiple of four, [`SET_ROWS`]
/// or [`ADD_ROWS`].
pub struct Product<const ADD: bool> {
    pub left: Left,
    pub right: Right,
    pub to: (*mut f32, usize),
    /// The number of rows, the number of blocks of columns, and the depth.
    pub extents: (usize, usize, usize),
}

/// The largest number of rows in a tile of a [`Product`] without `ADD`.
pub const SET_ROWS: usize = 8;
/// The largest number of rows in a tile of a [`Product`] with `ADD`.
pub const ADD_ROWS: usize = 6;

impl<const ADD: bool> Kernel for Product<ADD> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { left, right, to, extents: (rows, blocks, depth) } = self;
        // SAFETY: the caller's contract.
        unsafe {
            if V::BLOCKS < 32 {
                let extents = (rows.next_multiple_of(4), blocks, depth);
                product::<V, 4, 1, ADD>(left, right, to, extents);
            } else if ADD {
                let extents = (rows.next_multiple_of(ADD_ROWS), blocks, depth);
                product::<V, ADD_ROWS, 4, ADD>(left, right, to, extents);
            } else {
                let extents = (rows.next_multiple_of(SET_ROWS), blocks, depth);
                product::<V, SET_ROWS, 3, ADD>(left, right, to, extents);
            }
        }
    }
}
