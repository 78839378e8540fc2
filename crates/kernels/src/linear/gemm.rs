//! Computes `out[m, n] = sum over k of x[m, k] * w[n, k]` for many rows, in blocks that fit the
//! caches.
//!
//! x is packed once, in panels of sixteen interleaved rows, with a lane for each row. Weights are
//! taken row by row: a tile of rows is unpacked to f32 or bf16 in a small buffer, and then each
//! word of the tile is broadcast to all lanes. So the weights can have any format whose rows can be
//! unpacked (dense, converted, dequantized). Every output is one chain of fused multiply-adds in
//! the order of k, for any size of tile. Tile instructions, such as AMX's, first sum several
//! products each, and these sums are added in the order of k.

use std::ops::Range;

use super::super::Machine;
use super::super::simd::tiles::{TILE_PANELS, TILE_ROWS};
use super::super::simd::{F32x16, Kernel, LANES, Lines};
use super::arithmetic::Arithmetic;
pub use super::epilogue::Epilogue;
use super::epilogue::{self, OnLevel, Steps};
use super::interleaved::Interleaved;
pub use super::sums::{ACROSS, EXTRA, Pass, STRIDE, SUMS, TILE, WORDS};
use super::sums::{BLOCK_ROWS, LARGE, MOST_ROWS, SHORT};
pub use super::weights::{Extents, Places, Weights};

/// The largest number of rows of packed weights in a block, without tile instructions.
const BLOCK_COLUMNS: usize = 8 * TILE;
const _: () = assert!(BLOCK_COLUMNS.is_multiple_of(TILE_ROWS));
/// The largest number of rows of weights in a block, used with tile instructions if x has many
/// rows. Each block reads x from beyond the second-level cache, so larger blocks read x fewer times
/// in all.
const MOST_COLUMNS: usize = if LARGE { 16 * TILE_ROWS } else { BLOCK_COLUMNS };
/// The largest number of rows of weights in a block, for the other products with tile instructions
/// and for dense weights without them.
const MANY_COLUMNS: usize = if LARGE { MOST_COLUMNS / 2 } else { BLOCK_COLUMNS };
/// The number of tiles that are unpacked together if the weights are stored as `[k, n]` (they "lie
/// across"), so that more of each row of memory is read at a time.
pub const TOGETHER: usize = 3;
const _: () = assert!(TOGETHER * ACROSS <= TILE_ROWS * STRIDE);
/// The number of words that a product with tile instructions takes at a time if x has many rows, so
/// that its weights stay in the level-one cache.
const TILE_WORDS: usize = 256;
/// The number of words that the other products with tile instructions take at a time.
const FEW_TILE_WORDS: usize = 128;

/// Multiplies an interleaved x, which several products may share, with weights.
///
/// # Safety
/// The weights are `[n, k]` and the epilogue writes `[m, n]`, with the m and k of `x`.
pub unsafe fn multiply<A: Arithmetic, W: Weights<A>>(
    machine: Machine,
    x: &Interleaved<A>,
    n: usize,
    weights: &W,
    epilogue: &impl Epilogue,
) {
    let steps = &OnLevel { level: machine.level, epilogue };
    // SAFETY: the caller's contract.
    unsafe { multiply_with(machine, x, n, weights, steps) }
}

pub(super) unsafe fn multiply_with<A: Arithmetic, W: Weights<A>>(
    machine: Machine,
    x: &Interleaved<A>,
    n: usize,
    weights: &W,
    steps: &dyn Steps,
) {
    let extents = Extents { m: x.m, n, k: x.k };
    let in_tiles = in_tiles(machine, weights);
    let many = has_many_rows::<A, W>(x.m);
    // With `TILES`, each float of x is split into three bf16 parts. These take one and a half times
    // the room of floats, so fewer rows of x stay in the second-level cache.
    let (tile, mut rows, columns) = match in_tiles {
        true if W::TILES => (TILE_ROWS, BLOCK_ROWS / 2, MANY_COLUMNS),
        true if many => (TILE_ROWS, MOST_ROWS, MOST_COLUMNS),
        true => (TILE_ROWS, MOST_ROWS, MANY_COLUMNS),
        false if W::DENSE => (TILE, MOST_ROWS, MANY_COLUMNS),
        false => (TILE, BLOCK_ROWS, BLOCK_COLUMNS),
    };
    let mut tiles = columns / tile;
    // Use smaller blocks if there are too few blocks for the threads to end at the same time. With
    // four threads or more, products with tile instructions also use smaller blocks if x stays in
    // the second-level cache.
    let near = x.m.min(BLOCK_ROWS) * x.k * size_of::<A::Factor>() <= 1 << 20;
    let threads = machine.pool.threads();
    let blocks = match (in_tiles, near && threads >= 4) {
        (true, true) => 16 * threads,
        (true, false) if many => 2 * threads,
        (true, false) => 4 * threads,
        (false, _) if W::DENSE => 6 * threads,
        (false, _) => 10 * threads,
    };
    let count = |rows: usize, tiles: usize| x.m.div_ceil(rows) * n.div_ceil(tiles * tile);
    if count(rows, tiles) < blocks {
        rows = rows.min(BLOCK_ROWS);
    }
    while count(rows, tiles) < blocks && tiles > 1 {
        tiles /= 2;
    }
    while count(rows, tiles) < 2 * threads && rows > 2 * LANES {
        rows /= 2;
    }
    let columns = tiles * tile;
    // With 128 rows, products with tile instructions were measured to be five to eight times as
    // fast as products without them.
    let work = rows.min(x.m) * columns.min(n) * x.k / if in_tiles { 50 } else { 10 };
    machine.pool.for_each(count(rows, tiles), work, &|items| {
        let blocks = Blocks { x, extents, rows, columns, in_tiles, weights };
        let kernel = Multiply { blocks, items, steps };
        // SAFETY: the caller's contract; the blocks have disjoint outputs.
        unsafe { machine.level.run(kernel) }
    });
}

/// Computes the blocks of outputs whose indices are in `items`.
struct Multiply<'a, A, W> {
    blocks: Blocks<'a, A, W>,
    items: Range<usize>,
    steps: &'a dyn Steps,
}

/// A product that is split into blocks of `rows` by `columns` outputs.
struct Blocks<'a, A, W> {
    x: &'a Interleaved<A>,
    extents: Extents,
    rows: usize,
    columns: usize,
    in_tiles: bool,
    weights: &'a W,
}

impl<A, W> Clone for Blocks<'_, A, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A, W> Copy for Blocks<'_, A, W> {}

impl<A: Arithmetic, W: Weights<A>> Kernel for Multiply<'_, A, W> {
    const BF16: bool = tiled::<A, W>();
    const ONLY_BF16: bool = Self::BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let mut tile = Lines::<{ TILE_ROWS * STRIDE }>::uninit();
        let mut sums = Lines::<{ MOST_COLUMNS * SUMS }>::uninit();
        let (tile, sums) = (tile.as_mut_ptr(), sums.as_mut_ptr());
        let Self { blocks, items, steps } = self;
        let Extents { m, n, .. } = blocks.extents;
        let [down, across] =
            [(m, blocks.rows), (n, blocks.columns)].map(|(all, block)| all.div_ceil(block));
        // SAFETY: the tile has room for its rows, and all of them are zeroed because all are
        // multiplied. `in_tiles` is true only if the CPU has tile instructions.
        unsafe {
            tile.write_bytes(0, blocks.tile() * STRIDE);
            if blocks.in_tiles() {
                V::begin_tiles([LANES, blocks.weights.step()]);
            }
        }
        for item in items {
            // With tile instructions, successive blocks share weights. Otherwise they share rows of
            // x.
            let (row, column) = match blocks.in_tiles() {
                true => (item % down, item / down),
                false => (item / across, item % across),
            };
            let (row, column) = (row * blocks.rows, column * blocks.columns);
            let (rows, columns) = (blocks.rows.min(m - row), blocks.columns.min(n - column));
            // SAFETY: the block lies within the outputs; `sums` has room for the largest block.
            unsafe {
                V::part(Sum { blocks, row, column, tile, sums });
                let (sums, pitch) = (sums.cast_const(), SUMS);
                steps.finish_block(epilogue::Block { sums, pitch, row, rows, column, columns });
            }
        }
        if blocks.in_tiles() {
            // SAFETY: `begin_tiles` was called above.
            unsafe { V::end_tiles() };
        }
    }
}

/// Whether this machine multiplies these factors and weights with tile instructions.
pub(super) fn in_tiles<A: Arithmetic, W: Weights<A>>(machine: Machine, _: &W) -> bool {
    machine.level.multiplies_tiles() && tiled::<A, W>()
}

/// Whether a product with tile instructions takes the largest blocks. With the largest blocks,
/// prompts of 128 tokens were measured to take 1.05 to 1.15 times as long.
const fn has_many_rows<A: Arithmetic, W: Weights<A>>(m: usize) -> bool {
    !W::TILES && m > BLOCK_ROWS
}

/// Whether any instruction set multiplies these factors and weights with tile instructions.
const fn tiled<A: Arithmetic, W: Weights<A>>() -> bool {
    A::PAIRS || W::TILES
}

impl<A: Arithmetic, W: Weights<A>> Blocks<'_, A, W> {
    #[inline(always)]
    fn in_tiles(&self) -> bool {
        (const { tiled::<A, W>() }) && self.in_tiles
    }

    /// The number of rows of weights in a tile.
    #[inline(always)]
    fn tile(&self) -> usize {
        if self.in_tiles() { TILE_ROWS } else { TILE }
    }
}

/// Computes the sums over all of k for one block, and writes them to `sums[column][row]`.
struct Sum<'a, A, W> {
    blocks: Blocks<'a, A, W>,
    row: usize,
    column: usize,
    tile: *mut f32,
    sums: *mut f32,
}

impl<A: Arithmetic, W: Weights<A>> Kernel for Sum<'_, A, W> {
    const BF16: bool = tiled::<A, W>();
    const ONLY_BF16: bool = Self::BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { blocks, row, column, tile, sums } = self;
        let Extents { m, n, k } = blocks.extents;
        let short = W::DENSE && (!blocks.in_tiles() || has_many_rows::<A, W>(m));
        let step = if short { SHORT } else { WORDS };
        let depth = k.div_ceil(A::PER_WORD).div_ceil(step).max(1);
        let columns = blocks.columns.min(n - column);
        let panels = blocks.rows.min(m - row).div_ceil(LANES);
        let lie_across = blocks.weights.lie_across() && !blocks.in_tiles();
        let next_row = if lie_across { 1 } else { STRIDE };
        for block in 0..depth {
            let start = block * step;
            let at = start * A::PER_WORD;
            let len = (step * A::PER_WORD).min(k - at);
            let words = len.div_ceil(A::PER_WORD);
            for first in (0..columns).step_by(blocks.tile()) {
                // SAFETY: the tile has room for `rows` rows of `len` factors; the rows and panels
                // are readable.
                unsafe {
                    let mut tile = tile;
                    if lie_across {
                        let index = first / TILE % TOGETHER;
                        if index == 0 {
                            let rows = (TOGETHER * TILE).min(columns - first);
                            let places = Places { out: tile, step: TILE, pitch: ACROSS };
                            let first = column + first;
                            blocks.weights.unpack_across::<V>(first, rows, at, len, places);
                        }
                        tile = tile.add(index * ACROSS);
                    } else {
                        let rows = blocks.tile().min(columns - first);
                        let to = if blocks.in_tiles() { tile.add(start % WORDS) } else { tile };
                        blocks.unpack::<V>(column + first, rows, (at, len), to);
                    }
                    let x = |panel: usize| blocks.x.words(start, panel);
                    let sums = sums.add(first * SUMS);
                    if blocks.in_tiles() {
                        let (ahead, next_block) = match first + TILE_ROWS {
                            ahead if ahead < columns => (ahead, block),
                            _ if block + 1 < depth => (0, block + 1),
                            ahead => (ahead, 0),
                        };
                        let next = (column + ahead, next_block * step, step);
                        blocks.add_panels_in_tiles::<V>(row, (start, words), next, tile, sums);
                        continue;
                    }
                    let mut done = 0;
                    while done < panels {
                        let (to, panel) = (sums.add(done * LANES), row / LANES + done);
                        let one = Pass { x: [x(panel)], panel, at: start, words };
                        let w = blocks.weights;
                        if V::SMALL {
                            for r in 0..TILE.min(columns - first) {
                                w.add::<V, 1, 1>(one, tile.add(r * next_row), to.add(r * SUMS));
                            }
                            done += 1;
                        } else if !V::ONE_REGISTER {
                            // With six rows, the sums and a factor fit into the registers.
                            const ROWS: usize = 6;
                            for r in (0..TILE).step_by(ROWS) {
                                let (tile, to) = (tile.add(r * next_row), to.add(r * SUMS));
                                w.add::<V, ROWS, 1>(one, tile, to);
                            }
                            done += 1;
                        } else if done + 1 < panels {
                            let x = [x(panel), x(panel + 1)];
                            let two = Pass { x, panel, at: start, words };
                            w.add::<V, TILE, 2>(two, tile, to);
                            done += 2;
                        } else {
                            w.add::<V, TILE, 1>(one, tile, to);
                            done += 1;
                        }
                    }
                }
            }
        }
    }
}

impl<A: Arithmetic, W: Weights<A>> Blocks<'_, A, W> {
    /// Unpacks elements `at..at + len` of a tile's rows.
    ///
    /// # Safety
    /// The elements are readable, and the tile has room for them.
    #[inline(always)]
    unsafe fn unpack<V: F32x16>(
        &self,
        first: usize,
        rows: usize,
        (at, len): (usize, usize),
        tile: *mut f32,
    ) {
        let (to, stride) = (tile.cast::<A::Factor>(), STRIDE * A::PER_WORD);
        // SAFETY: the caller's contract.
        unsafe {
            let most = if self.weights.lie_across() { TILE_ROWS } else { LANES };
            for i in (0..rows).step_by(most) {
                let (row, rows) = (first + i, most.min(rows - i));
                self.weights.unpack::<V>(row, rows, at, len, to.add(i * stride), stride);
            }
            if !len.is_multiple_of(A::PER_WORD) {
                (0..rows).for_each(|i| *to.add(i * stride + len) = Default::default());
            }
        }
    }

    /// Adds the products of a tile with all panels of a block of rows, for `words` words of k from
    /// `at` on. Also prefetches the next tile: `next_words` words from `next_at` on, of the rows
    /// from `next_row` on.
    ///
    /// # Safety
    /// The contract of [`Weights::add_in_tiles`] holds, with the words of the tile.
    #[inline(always)]
    unsafe fn add_panels_in_tiles<V: F32x16>(
        &self,
        row: usize,
        (at, words): (usize, usize),
        (next_row, next_at, next_words): (usize, usize, usize),
        tile: *const f32,
        sums: *mut f32,
    ) {
        let panels = self.rows.min(self.extents.m - row).div_ceil(LANES);
        let many = has_many_rows::<A, W>(self.extents.m);
        let tile_words = if many { TILE_WORDS } else { FEW_TILE_WORDS };
        let passes = words.max(1).div_ceil(tile_words) * panels.div_ceil(TILE_PANELS);
        let mut ahead = next_row..next_row + TILE_ROWS;
        for start in (0..words.max(1)).step_by(tile_words) {
            let words = tile_words.min(words - start);
            for done in (0..panels).step_by(TILE_PANELS) {
                for next_row in ahead.by_ref().take(TILE_ROWS.div_ceil(passes)) {
                    let [at, len] = [next_at, next_words].map(|words| words * A::PER_WORD);
                    self.weights.prefetch(next_row, at, len);
                }
                let panel = row / LANES + done;
                let next = (panel + 1).min(row / LANES + panels - 1);
                let x = [panel, next].map(|p| self.x.words(at + start, p));
                let pass = Pass { x, panel, at: at + start, words };
                // SAFETY: if there is no second panel, the first panel replaces it. The sums have
                // room for it, as blocks have even numbers of panels.
                unsafe {
                    let sums = sums.add(done * LANES);
                    self.weights.add_in_tiles::<V>(pass, tile, sums);
                }
            }
        }
    }
}
