//! Products of tiles, for which AMX has instructions, and loops that compute the same results.
//!
//! A tile is sixteen rows of at most sixteen words. A word has four bytes: two bf16 numbers or four
//! 8-bit numbers.

use super::LANES;

/// Rows of weights and panels of x in a product of tiles.
pub const TILE_ROWS: usize = 2 * LANES;
pub const TILE_PANELS: usize = 2;
/// Parts of a float32, each a bf16.
pub const PIECES: usize = 3;
/// Bytes of an element of x in products of digits.
pub const DIGITS: usize = 3;

/// Products of tiles, by instructions of the level or by loops.
pub trait Tiles: Copy + 'static {
    /// Sets up this thread for products of tiles of this many rows and words.
    ///
    /// # Safety
    /// The level multiplies tiles.
    #[inline(always)]
    unsafe fn begin_tiles(_shape: [usize; 2]) {}

    /// Undoes the setup by [`begin_tiles`](Self::begin_tiles).
    ///
    /// # Safety
    /// The level multiplies tiles.
    #[inline(always)]
    unsafe fn end_tiles() {}

    /// Computes [`TileProduct::add_bf16`].
    ///
    /// # Safety
    /// The contract of [`TileProduct::add_bf16`], with at least one word.
    /// [`begin_tiles`](Self::begin_tiles) was called with the product's `step`.
    #[inline(always)]
    unsafe fn add_tiles_bf16(product: &TileProduct) {
        // SAFETY: the caller's contract.
        unsafe { product.add_bf16() }
    }

    /// Computes [`TileProduct::of_pieces`].
    ///
    /// # Safety
    /// The contract of [`add_tiles_bf16`](Self::add_tiles_bf16).
    #[inline(always)]
    unsafe fn tiles_of_pieces(product: &TileProduct) {
        // SAFETY: the caller's contract.
        unsafe { product.of_pieces() }
    }

    /// Computes [`TileProduct::add_bytes`].
    ///
    /// # Safety
    /// The contract of [`add_tiles_bf16`](Self::add_tiles_bf16).
    #[inline(always)]
    unsafe fn add_tiles_bytes(product: &TileProduct) {
        // SAFETY: the caller's contract.
        unsafe { product.add_bytes() }
    }
}

/// The products of [`TILE_ROWS`] rows of weights with [`TILE_PANELS`] panels of sixteen rows of x,
/// all as interleaved words.
#[derive(Clone, Copy)]
pub struct TileProduct {
    /// The first row of weights, and the words from one row to the next.
    pub w: *const f32,
    pub w_stride: usize,
    /// Sixteen words for each word of a row of weights.
    pub x: [*const f32; TILE_PANELS],
    /// Words of a row, a multiple of `step`.
    pub words: usize,
    /// Words of a row that are one tile, at most sixteen.
    pub step: usize,
    /// For each row of weights, the sums of the first panel's lanes, then of the second panel's
    /// lanes.
    pub sums: *mut f32,
    pub sums_stride: usize,
}

impl TileProduct {
    /// Calls `add` with each sum and the words to multiply for it, one tile after the other.
    #[inline(always)]
    fn each(&self, mut add: impl FnMut(*mut f32, &mut dyn Iterator<Item = (u32, u32)>)) {
        for start in (0..self.words).step_by(self.step) {
            for row in 0..TILE_ROWS {
                for lane in 0..TILE_PANELS * LANES {
                    let w = self.w.wrapping_add(row * self.w_stride + start);
                    let x = self.x[lane / LANES].wrapping_add(start * LANES + lane % LANES);
                    // SAFETY: the caller of the functions below vouches for words and sums.
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

    /// Adds products of bf16 to sums in f32, in the order of AMX: within a tile, one chain adds the
    /// products of the lower halves, and another the products of the upper halves.
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
            // SAFETY: the caller's contract.
            unsafe { *sum += halves[0] + halves[1] };
        });
    }

    /// Writes products of bf16. For each tile of weights, x has [`PIECES`] tiles, one after the
    /// other, and the products of all of them are added up.
    ///
    /// # Safety
    /// The contract of [`add_bf16`](Self::add_bf16).
    pub unsafe fn of_pieces(&self) {
        // SAFETY: the caller's contract.
        unsafe {
            for row in 0..TILE_ROWS {
                self.sums.add(row * self.sums_stride).write_bytes(0, TILE_PANELS * LANES);
            }
            for at in (0..self.words * PIECES).step_by(self.step) {
                let w = self.w.add(at / self.step / PIECES * self.step);
                let x = self.x.map(|x| x.wrapping_add(at * LANES));
                Self { w, x, words: self.step, ..*self }.add_bf16();
            }
        }
    }

    /// Adds products of bytes, unsigned in the weights and signed in x, to sums of 32-bit integers.
    ///
    /// # Safety
    /// The contract of [`add_bf16`](Self::add_bf16).
    pub unsafe fn add_bytes(&self) {
        self.each(|sum, words| {
            let mut total = 0;
            for (w, x) in words {
                for (w, x) in w.to_le_bytes().into_iter().zip(x.to_le_bytes()) {
                    total += i32::from(w) * i32::from(x as i8);
                }
            }
            // SAFETY: the caller's contract.
            unsafe {
                let before = (*sum).to_bits() as i32;
                *sum = f32::from_bits(before.wrapping_add(total) as u32);
            }
        });
    }
}

/// Products of tiles of x with tiles of weights. Tiles of x have digits, which are signed bytes.
/// Tiles of weights have unsigned bytes.
#[derive(Clone, Copy)]
pub struct DigitTiles {
    /// `rows` rows of digits, `x_stride` bytes apart. After `x_next` bytes come the digits of the
    /// next product.
    pub x: *const u8,
    pub x_stride: usize,
    pub x_next: usize,
    /// The number of rows of digits: three for each row of x.
    pub rows: usize,
    /// Sixteen words for each word of digits. After `w_next` floats come the words of the next
    /// product.
    pub w: *const f32,
    pub w_next: usize,
    /// Words of a product: one tile of `step` words, or two tiles.
    pub words: usize,
    pub step: usize,
    /// Whether weights are below 128.
    pub narrow: bool,
    pub count: usize,
    /// For each product sixteen rows of sixteen sums, of which the first `rows` are written.
    pub sums: *mut f32,
}
