//! The steps after a product, such as the bias and the activation. They are compiled separately
//! from the products, since there are few products and few epilogues, but many combinations.

use super::super::simd::{F32x16, Kernel, LANES, Level};

/// Finishes the sums of a product and writes the outputs.
pub trait Epilogue: Sync {
    /// Whether the steps are faster with the instructions of `avx512bf16`, see [`Kernel::BF16`].
    const BF16: bool;

    /// Finishes the first `count` lanes, which are `out[row, column..column + count]`. Each output
    /// is finished once, by one thread.
    ///
    /// # Safety
    /// The outputs are writable.
    unsafe fn finish<V: F32x16>(&self, sums: V, row: usize, column: usize, count: usize);
}

/// The sums of a block of outputs: `rows` rows from `row` on, and `columns` columns from `column`
/// on. The sums of a row are contiguous and padded to full blocks of sixteen. Rows are `pitch`
/// floats apart.
#[derive(Clone, Copy)]
pub struct Sums {
    pub sums: *const f32,
    pub pitch: usize,
    pub row: usize,
    pub rows: usize,
    pub column: usize,
    pub columns: usize,
}

/// Like [`Sums`], but stored by columns: the sums of a column are contiguous, and columns are
/// `pitch` floats apart.
#[derive(Clone, Copy)]
pub struct Block {
    pub sums: *const f32,
    pub pitch: usize,
    pub row: usize,
    pub rows: usize,
    pub column: usize,
    pub columns: usize,
}

/// An [`Epilogue`] without its type, so that code that uses it is not compiled for each epilogue.
pub trait Steps: Sync {
    /// # Safety
    /// The sums of each row are padded to full blocks of sixteen, and the outputs are writable.
    unsafe fn finish(&self, sums: Sums);
    /// # Safety
    /// The sums of each column are padded to full blocks of sixteen, and the outputs are writable.
    unsafe fn finish_block(&self, block: Block);
}

/// An epilogue, and the instruction set that runs it.
pub struct OnLevel<'a, E> {
    pub level: Level,
    pub epilogue: &'a E,
}

impl<E: Epilogue> Steps for OnLevel<'_, E> {
    unsafe fn finish(&self, sums: Sums) {
        // SAFETY: the caller's contract.
        unsafe { self.level.run(Finish { sums, epilogue: self.epilogue }) }
    }

    unsafe fn finish_block(&self, block: Block) {
        // SAFETY: the caller's contract.
        unsafe { self.level.run(Transpose { block, epilogue: self.epilogue }) }
    }
}

struct Finish<'a, E> {
    sums: Sums,
    epilogue: &'a E,
}

impl<E: Epilogue> Kernel for Finish<'_, E> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Sums { sums, pitch, row, rows, column, columns } = self.sums;
        for i in 0..rows {
            for j in (0..columns).step_by(LANES) {
                // SAFETY: the caller's contract.
                unsafe {
                    let lanes = V::load(sums.add(i * pitch + j));
                    self.epilogue.finish(lanes, row + i, column + j, LANES.min(columns - j));
                }
            }
        }
    }
}

/// Transposes the sums of a block into rows of the output.
struct Transpose<'a, E> {
    block: Block,
    epilogue: &'a E,
}

impl<E: Epilogue> Kernel for Transpose<'_, E> {
    const BF16: bool = E::BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { block: Block { sums, pitch, row, rows, column, columns }, epilogue } = self;
        for i in (0..rows).step_by(LANES) {
            for j in (0..columns).step_by(LANES) {
                let count = LANES.min(columns - j);
                // SAFETY: every access is within the block; rows and columns beyond it are not
                // touched.
                unsafe {
                    let mut square = [V::splat(0.0); LANES];
                    for (c, lanes) in square.iter_mut().enumerate() {
                        *lanes = V::load(sums.add((j + c.min(count - 1)) * pitch + i));
                    }
                    let square = V::transpose(square);
                    if V::SMALL {
                        let (sums, pitch, columns) = (square.as_ptr().cast(), LANES, count);
                        let (row, rows, column) = (row + i, LANES.min(rows - i), column + j);
                        let sums = Sums { sums, pitch, row, rows, column, columns };
                        V::part(Finish { sums, epilogue });
                        continue;
                    }
                    for (r, lanes) in square.into_iter().enumerate().take(rows - i) {
                        epilogue.finish(lanes, row + i + r, column + j, count);
                    }
                }
            }
        }
    }
}
