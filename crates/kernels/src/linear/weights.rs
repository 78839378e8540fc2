//! The right-hand matrix of the GEMM, in any format.

use std::marker::PhantomData;

use super::super::simd::tiles::TILE_PANELS;
use super::super::simd::{F32x16, LANES};
use super::arithmetic::Arithmetic;
use super::sums::{Pass, TileSums, tile_products};

/// The extents of a product.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// Where [`Weights::unpack_across`] writes. Rows are split into groups of `step` rows, and groups
/// are `pitch` floats apart. A group has the first word of each of its rows, then the second word
/// of each row, and so on. Sixteen floats may be written for a word; the next word overwrites the
/// floats after `step`.
#[derive(Clone, Copy)]
pub struct Places {
    pub out: *mut f32,
    pub step: usize,
    pub pitch: usize,
}

impl Places {
    /// The address of a word in the group of rows that begins at `first`, a multiple of `step`.
    #[inline(always)]
    pub fn of(self, first: usize, word: usize) -> *mut f32 {
        self.out.wrapping_add(first / self.step * self.pitch + word * self.step)
    }
}

/// A right-hand matrix, `[n, k]`, in any format.
pub trait Weights<A: Arithmetic>: Sync {
    /// Whether these weights are words of two bf16 that only tile instructions can multiply.
    const TILES: bool = false;

    /// Whether these weights are not packed, so that [`unpack`](Self::unpack) takes any `k` that is
    /// a multiple of 256.
    const DENSE: bool = false;

    /// Writes the elements `k..k + len` of the rows `row..row + rows` to `out`, one row every
    /// `stride` factors. `k` is a multiple of 512, or of 256 if the weights are
    /// [`DENSE`](Self::DENSE). There are at most 16 rows, or at most 32 if the weights
    /// [lie across](Self::lie_across).
    ///
    /// # Safety
    /// The rows and elements are readable, and `out` has room for them.
    unsafe fn unpack<V: F32x16>(
        &self,
        row: usize,
        rows: usize,
        k: usize,
        len: usize,
        out: *mut A::Factor,
        stride: usize,
    );

    /// Whether the matrix is stored as `[k, n]`, so that [`unpack_across`](Self::unpack_across) is
    /// faster than [`unpack`](Self::unpack).
    fn lie_across(&self) -> bool {
        false
    }

    /// Writes the words of the elements `k..k + len` of the rows `row..row + rows`, at most 64
    /// rows, to the addresses that [`Places::of`] returns.
    ///
    /// # Safety
    /// The contract of `unpack` holds, with room for sixteen floats from each place on.
    unsafe fn unpack_across<V: F32x16>(
        &self,
        _row: usize,
        _rows: usize,
        _k: usize,
        _len: usize,
        _places: Places,
    ) {
    }

    /// Prefetches the elements `k..k + len` of a row, if these weights gain from an early prefetch.
    /// The elements need not exist.
    fn prefetch(&self, _row: usize, _k: usize, _len: usize) {}

    /// Adds the products of an unpacked tile with panels of x to `sums`, whose rows are
    /// [`SUMS`](super::sums::SUMS) apart. If `pass.at` is 0, overwrites the sums instead.
    ///
    /// # Safety
    /// The panels and the tile hold `pass.words` words of each row, and each row of `sums` has
    /// sixteen floats for each panel.
    #[inline(always)]
    unsafe fn add<V: F32x16, const ROWS: usize, const PANELS: usize>(
        &self,
        pass: Pass<PANELS>,
        tile: *const f32,
        sums: *mut f32,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            let (w, arithmetic) = (tile, PhantomData);
            match self.lie_across() {
                true => V::part(TileSums::<A, ROWS, PANELS, true> { pass, w, sums, arithmetic }),
                false => V::part(TileSums::<A, ROWS, PANELS, false> { pass, w, sums, arithmetic }),
            }
        }
    }

    /// The number of words of a row that [`add_in_tiles`](Self::add_in_tiles) multiplies at once.
    fn step(&self) -> usize {
        LANES
    }

    /// Does the work of [`add`](Self::add) for two panels and
    /// [`TILE_ROWS`](crate::simd::tiles::TILE_ROWS) rows, by tile instructions. The words of the
    /// tile's rows begin at `pass.at % WORDS`.
    ///
    /// # Safety
    /// The contract of `add` holds. The CPU has tile instructions, which are set up for tiles of
    /// [`step`](Self::step) words.
    #[inline(always)]
    unsafe fn add_in_tiles<V: F32x16>(
        &self,
        pass: Pass<TILE_PANELS>,
        tile: *const f32,
        sums: *mut f32,
    ) {
        // SAFETY: the caller's contract.
        unsafe { tile_products::<V, A>(pass, tile, sums) }
    }
}
