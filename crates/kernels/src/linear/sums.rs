//! The innermost loops of the GEMM: the products of a tile of weights with panels of x.

use std::marker::PhantomData;

use super::super::simd::tiles::{TILE_PANELS, TILE_ROWS, TileProduct};
use super::super::simd::{F32x16, Kernel, LANES, prefetch_block};
use super::arithmetic::Arithmetic;

/// The number of words of a row in a tile of weights. `k` is split into blocks of this many words.
pub const WORDS: usize = 512;
/// The number of words in a block of dense weights. These blocks are shorter than [`WORDS`], so
/// that twice as many rows of x stay in the second-level cache.
pub(super) const SHORT: usize = WORDS / 2;
/// How many words ahead the products prefetch x.
const AHEAD: usize = 16;
/// The number of rows in a tile of weights. If a register holds sixteen floats, the sums of the
/// tile fit in registers. A tile for AMX has [`TILE_ROWS`] rows instead.
pub const TILE: usize = 12;
/// The distance in floats from one tile to the next if the weights are stored as `[k, n]` (they
/// "lie across"). Each write has [`LANES`] floats, so the last one needs more room than [`TILE`]
/// floats.
pub const ACROSS: usize = WORDS * TILE + LANES;
/// The number of words after a row of a tile, for the scales and biases of its weights.
pub const EXTRA: usize = 128;
/// The distance in words from one row of a tile to the next. It is an odd number of cache lines,
/// which spreads the rows over the cache sets.
pub const STRIDE: usize = WORDS + EXTRA + LANES;
/// The number of rows of x in a block.
pub(super) const BLOCK_ROWS: usize = 256;
/// Whether blocks may be large. The sums of a block are on the stack, and a thread on macOS has a
/// stack of only 512 KB. On ARM processors, large blocks were not measured.
pub(super) const LARGE: bool = cfg!(all(target_arch = "x86_64", not(target_vendor = "apple")));
/// The largest number of rows of x in a block, used with tile instructions and for dense weights.
pub(super) const MOST_ROWS: usize = if LARGE { 512 } else { BLOCK_ROWS };
/// The distance in words from the sums of one column of a block to the sums of the next column.
/// Like [`STRIDE`], it is an odd number of cache lines.
pub const SUMS: usize = MOST_ROWS + LANES;

/// Panels of x, and the range of words that is multiplied with a tile of weights.
#[derive(Clone, Copy)]
pub struct Pass<const PANELS: usize> {
    pub x: [*const f32; PANELS],
    /// The index of the first panel.
    pub panel: usize,
    /// The first word within a row.
    pub at: usize,
    pub words: usize,
}

/// Runs [`tile_sums`] as a separate function, so that its sums stay in registers. When it was
/// inlined into the loops around it, the compiler kept some sums in memory, and prompts took 1.6
/// times as long.
pub(super) struct TileSums<A, const ROWS: usize, const PANELS: usize, const LIE_ACROSS: bool> {
    pub pass: Pass<PANELS>,
    pub w: *const f32,
    pub sums: *mut f32,
    pub arithmetic: PhantomData<A>,
}

impl<A: Arithmetic, const ROWS: usize, const PANELS: usize, const LIE_ACROSS: bool> Kernel
    for TileSums<A, ROWS, PANELS, LIE_ACROSS>
{
    const BF16: bool = A::PAIRS;
    const ONLY_BF16: bool = A::PAIRS;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        // SAFETY: the caller's contract.
        unsafe { tile_sums::<V, A, ROWS, PANELS, LIE_ACROSS>(self.pass, self.w, self.sums) }
    }
}

/// Computes `sums[r][lane of panel p] += sum over words of x[p] * w[r]`, in registers.
///
/// If the pass begins at word 0, the sums start at zero. The rows of weights are [`STRIDE`] words
/// apart. With `LIE_ACROSS`, the weights are transposed: for each word along k, the words of
/// [`TILE`] rows are contiguous.
///
/// # Safety
/// The contract of [`Weights::add`](super::weights::Weights::add) holds.
#[inline(always)]
pub(super) unsafe fn tile_sums<
    V: F32x16,
    A: Arithmetic,
    const ROWS: usize,
    const PANELS: usize,
    const LIE_ACROSS: bool,
>(
    Pass { x, at: start, words, .. }: Pass<PANELS>,
    w: *const f32,
    sums: *mut f32,
) {
    let mut total = [[V::splat(0.0); PANELS]; ROWS];
    // SAFETY: the panels and the tile hold `words` words of each row, and `sums` has room for the
    // sums of each row.
    unsafe {
        if start > 0 {
            for (r, total) in total.iter_mut().enumerate() {
                for (p, total) in total.iter_mut().enumerate() {
                    *total = V::load(sums.add(r * SUMS + p * LANES));
                }
            }
        }
        for at in 0..words {
            let mut lanes = [V::splat(0.0); PANELS];
            for (p, lanes) in lanes.iter_mut().enumerate() {
                *lanes = V::load(x[p].add(at * LANES));
                prefetch_block(x[p].wrapping_add((at + AHEAD) * LANES));
            }
            for (r, total) in total.iter_mut().enumerate() {
                let place = if LIE_ACROSS { at * TILE + r } else { r * STRIDE + at };
                let word = V::splat(*w.add(place));
                for (total, lanes) in total.iter_mut().zip(&lanes) {
                    *total = A::step(*total, *lanes, word);
                }
            }
        }
        for (r, total) in total.into_iter().enumerate() {
            for (p, total) in total.into_iter().enumerate() {
                total.store(sums.add(r * SUMS + p * LANES));
            }
        }
    }
}

/// Does the work of [`tile_sums`] for two panels and [`TILE_ROWS`] rows. Tile instructions multiply
/// as many words as fill tiles, and vector instructions multiply the remaining words.
///
/// # Safety
/// The contract of [`Weights::add_in_tiles`](super::weights::Weights::add_in_tiles) holds.
#[inline(always)]
pub(super) unsafe fn tile_products<V: F32x16, A: Arithmetic>(
    pass: Pass<TILE_PANELS>,
    w: *const f32,
    sums: *mut f32,
) {
    let Pass { x, panel, at, words } = pass;
    let w = w.wrapping_add(at % WORDS);
    let whole = words / LANES * LANES;
    // SAFETY: the panels and the tile hold `words` words of each row, and `sums` has room for the
    // sums of each row.
    unsafe {
        if whole > 0 {
            V::add_tiles_bf16(&TileProduct {
                w,
                w_stride: STRIDE,
                x,
                words: whole,
                step: LANES,
                sums,
                sums_stride: SUMS,
                fresh: at == 0,
            });
        }
        // Without words, the loop writes zeros.
        if whole < words || words == 0 {
            let x = [x[0].add(whole * LANES), x[1].add(whole * LANES)];
            let rest = Pass { x, panel, at: at + whole, words: words - whole };
            for r in (0..TILE_ROWS).step_by(TILE_ROWS / 4) {
                let (w, sums) = (w.add(r * STRIDE + whole), sums.add(r * SUMS));
                tile_sums::<V, A, { TILE_ROWS / 4 }, TILE_PANELS, false>(rest, w, sums);
            }
        }
    }
}
