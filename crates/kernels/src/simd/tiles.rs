//! Products of tiles. AMX has instructions for them; loops compute identical results for other
//! instruction sets.
//!
//! A tile has at most sixteen rows of at most sixteen words. A word has four bytes: two bf16
//! numbers or four 8-bit numbers. The matrix x is the input. Except in [`DigitTiles`], it is stored
//! in panels of sixteen rows.

use super::LANES;

/// The numbers of rows of weights and of panels of x in a product of tiles.
pub const TILE_ROWS: usize = 2 * LANES;
pub const TILE_PANELS: usize = 2;
/// The number of bf16 parts that represent a float32.
pub const PIECES: usize = 3;
/// The number of digits (signed bytes) that represent an element of x in products of digits.
pub const DIGITS: usize = 3;

/// Products of tiles, by instructions or by loops.
pub trait Tiles: Copy + 'static {
    /// Sets up this thread for products of tiles. The shape is the number of rows and of words of a
    /// tile.
    ///
    /// # Safety
    /// The CPU's instruction set (its `Level`) has instructions that multiply tiles.
    #[inline(always)]
    unsafe fn begin_tiles(_shape: [usize; 2]) {}

    /// Undoes the setup by [`begin_tiles`](Self::begin_tiles).
    ///
    /// # Safety
    /// The CPU's instruction set (its `Level`) has instructions that multiply tiles.
    #[inline(always)]
    unsafe fn end_tiles() {}

    /// Computes [`TileProduct::add_bf16`].
    ///
    /// # Safety
    /// The contract of [`TileProduct::add_bf16`] applies, with at least one word. The caller has
    /// called [`begin_tiles`](Self::begin_tiles) with the product's `step`.
    #[inline(always)]
    unsafe fn add_tiles_bf16(product: &TileProduct) {
        // SAFETY: the caller upholds the contract.
        unsafe { product.add_bf16() }
    }

    /// Computes [`TileProduct::of_pieces`].
    ///
    /// # Safety
    /// The contract of [`add_tiles_bf16`](Self::add_tiles_bf16) applies.
    #[inline(always)]
    unsafe fn tiles_of_pieces(product: &TileProduct) {
        // SAFETY: the caller upholds the contract.
        unsafe { product.of_pieces() }
    }
}

/// The operands of the products of [`TILE_ROWS`] rows of weights with [`TILE_PANELS`] panels of
/// sixteen rows of x. The words of the rows of a panel are interleaved.
#[derive(Clone, Copy)]
pub struct TileProduct {
    /// The address of the first row of weights, and the number of words from one row to the next.
    pub w: *const f32,
    pub w_stride: usize,
    /// The panels of x. For each word of a row of weights, a panel has one word for each of its
    /// sixteen rows.
    pub x: [*const f32; TILE_PANELS],
    /// The number of words in a row, a multiple of `step`.
    pub words: usize,
    /// The number of words of a row that belong to one tile, at most sixteen.
    pub step: usize,
    /// For each row of weights, the sums of the first panel's rows, then of the second panel's
    /// rows.
    pub sums: *mut f32,
    pub sums_stride: usize,
    /// Whether the sums start at zero. Otherwise the products are added to the sums in memory.
    pub fresh: bool,
}

impl TileProduct {
    /// Calls `add` for each tile and sum, with the pairs of words to multiply for this sum. If
    /// `fresh`, first sets the sums to zero.
    #[inline(always)]
    fn each(&self, mut add: impl FnMut(*mut f32, &mut dyn Iterator<Item = (u32, u32)>)) {
        for row in 0..if self.fresh { TILE_ROWS } else { 0 } {
            let sums = self.sums.wrapping_add(row * self.sums_stride);
            // SAFETY: the callers of the functions below vouch for the sums.
            unsafe { sums.write_bytes(0, TILE_PANELS * LANES) };
        }
        for start in (0..self.words).step_by(self.step) {
            for row in 0..TILE_ROWS {
                for lane in 0..TILE_PANELS * LANES {
                    let w = self.w.wrapping_add(row * self.w_stride + start);
                    let x = self.x[lane / LANES].wrapping_add(start * LANES + lane % LANES);
                    // SAFETY: the callers of the functions below vouch for the words and sums.
                    let word = |at| unsafe {
                        let x: *const f32 = x.wrapping_add(at * LANES);
                        ((*w.wrapping_add(at)).to_bits(), (*x).to_bits())
                    };
                    let sum = self.sums.wrapping_add(row * self.sums_stride + lane);
                    add(sum, &mut (0..self.step).map(word));
                }
            }
        }
    }

    /// Adds products of bf16 to sums in f32, in the order of AMX. Within a tile, one accumulator
    /// adds the products of the lower halves, and another adds the products of the upper halves.
    ///
    /// # Safety
    /// The pointers are valid for the data that the fields describe.
    pub unsafe fn add_bf16(&self) {
        let upper = |word: u32| f32::from_bits(word & 0xffff_0000);
        let lower = |word: u32| f32::from_bits(word << 16);
        self.each(|sum, words| {
            let mut halves = [0.0f32; 2];
            for (w, x) in words {
                halves[0] = lower(w).mul_add(lower(x), halves[0]);
                halves[1] = upper(w).mul_add(upper(x), halves[1]);
            }
            // SAFETY: the caller upholds the contract.
            unsafe { *sum += halves[0] + halves[1] };
        });
    }

    /// Overwrites the sums with sums of products of bf16. For each tile of weights, x has
    /// [`PIECES`] consecutive tiles, and the sum includes the products with all of them.
    ///
    /// # Safety
    /// The contract of [`add_bf16`](Self::add_bf16) applies.
    pub unsafe fn of_pieces(&self) {
        // SAFETY: the caller upholds the contract.
        unsafe {
            for at in (0..self.words * PIECES).step_by(self.step) {
                let w = self.w.add(at / self.step / PIECES * self.step);
                let x = self.x.map(|x| x.wrapping_add(at * LANES));
                Self { w, x, words: self.step, fresh: at == 0, ..*self }.add_bf16();
            }
        }
    }
}

/// The operands of a series of products of tiles. Tiles of x contain digits, which are signed
/// bytes. Tiles of weights contain unsigned bytes.
#[derive(Clone, Copy)]
pub struct DigitTiles {
    /// `rows` rows of digits, `x_stride` bytes apart. The digits of the next product start `x_next`
    /// bytes later.
    pub x: *const u8,
    pub x_stride: usize,
    pub x_next: usize,
    /// The number of rows of digits: three for each row of x.
    pub rows: usize,
    /// The weights. For each word of a row of digits there are sixteen words, one for each row of
    /// weights. The words of the next product start `w_next` floats later.
    pub w: *const f32,
    pub w_next: usize,
    /// The number of words in a row of a product: one tile of `step` words, or two tiles.
    pub words: usize,
    pub step: usize,
    /// Whether all bytes of weights are below 128.
    pub narrow: bool,
    pub count: usize,
    /// For each product, sixteen rows of sixteen sums. The first `rows` rows are written.
    pub sums: *mut f32,
}
