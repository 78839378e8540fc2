//! Lays out rows of x for the GEMM in panels of sixteen rows, in which the 32-bit words of the rows
//! are interleaved.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::element::Float;
use super::super::simd::{F32x16, Kernel, LANES};
use super::super::{Machine, Shared};
use super::arithmetic::Arithmetic;
use super::sums::WORDS;
use super::weights::{Places, Weights};
use super::workspace;

/// A matrix `[m, k]` in blocks of [`WORDS`] words along k. Each block is split into panels of
/// sixteen rows.
pub struct Interleaved<A> {
    packed: *mut f32,
    pub m: usize,
    pub k: usize,
    arithmetic: PhantomData<A>,
}

// SAFETY: only `interleaved` and `interleaved_across` write. One thread writes each panel, before
// any thread reads.
unsafe impl<A> Sync for Interleaved<A> {}

impl<A: Arithmetic> Interleaved<A> {
    /// The address of a panel of sixteen rows within a block of words.
    #[inline(always)]
    pub fn panel(&self, block: usize, panel: usize) -> *const f32 {
        let (panels, words) = (self.m.div_ceil(LANES), self.k.div_ceil(A::PER_WORD));
        let start = block * WORDS;
        let at = (start * panels + panel * WORDS.min(words - start)) * LANES;
        self.packed.wrapping_add(at)
    }

    /// The address of the words from word `at` on of a panel. Only the words before the next
    /// multiple of [`WORDS`] follow in memory.
    #[inline(always)]
    pub fn words(&self, at: usize, panel: usize) -> *const f32 {
        self.panel(at / WORDS, panel).wrapping_add(at % WORDS * LANES)
    }

    /// Returns an x of shape `[m, k]` without data, for weights that read x from elsewhere.
    pub fn elsewhere([m, k]: [usize; 2]) -> Self {
        Self { packed: std::ptr::null_mut(), m, k, arithmetic: PhantomData }
    }

    fn panels(&self) -> usize {
        self.m.div_ceil(LANES)
    }

    /// The number of blocks of words.
    fn blocks(&self) -> usize {
        self.k.div_ceil(A::PER_WORD).div_ceil(WORDS)
    }
}

/// Calls `body` with x, which is `[m, k]`, in interleaved form. Any number of products can use it.
///
/// # Safety
/// `x` holds `m * k` elements. If factors are bf16, the elements are bf16 too.
pub unsafe fn interleaved<A: Arithmetic, T: Float>(
    machine: Machine,
    [m, k]: [usize; 2],
    x: *const T,
    body: &dyn Fn(&Interleaved<A>),
) {
    let x = Shared(x.cast_mut());
    fill([m, k], body, &|to| {
        machine.pool.for_each(to.panels() * to.blocks(), 20 * WORDS, &|items| {
            // SAFETY: the caller's contract; the workspace holds every panel.
            unsafe { machine.level.run(Interleave { x: x.get(), to, items }) }
        });
    });
}

/// Does the work of [`interleaved`] for a matrix whose rows lie across: it is stored as
/// `[k, rows]`, like a transposed x. Takes `m` rows from row `first` on, which is a multiple of
/// sixteen.
///
/// # Safety
/// The rows are readable and have `k` elements each.
pub unsafe fn interleaved_across<A: Arithmetic>(
    machine: Machine,
    [m, k]: [usize; 2],
    (rows, first): (&impl Weights<A>, usize),
    body: &dyn Fn(&Interleaved<A>),
) {
    fill([m, k], body, &|to| {
        let items = to.panels().div_ceil(TOGETHER) * to.blocks();
        machine.pool.for_each(items, 20 * WORDS * TOGETHER, &|items| {
            // SAFETY: the caller's contract; the workspace holds every panel.
            unsafe { machine.level.run(Across { rows, first, to, items }) }
        });
    });
}

/// Calls `write` to fill a matrix of `m` rows of `k` elements, then `body` with this matrix.
fn fill<A: Arithmetic>(
    [m, k]: [usize; 2],
    body: &dyn Fn(&Interleaved<A>),
    write: &dyn Fn(&Interleaved<A>),
) {
    workspace::with(m.next_multiple_of(LANES) * k.div_ceil(A::PER_WORD), &|packed| {
        let to = Interleaved { packed, m, k, arithmetic: PhantomData };
        write(&to);
        body(&to);
    });
}

/// The number of panels that [`interleaved_across`] writes together, so that it reads more than one
/// cache line of each row of memory.
pub const TOGETHER: usize = 4;

/// Does the work of [`Interleave`] for a matrix whose rows lie across. Each item is a block of
/// words of [`TOGETHER`] panels.
struct Across<'a, A, W> {
    rows: &'a W,
    first: usize,
    to: &'a Interleaved<A>,
    items: Range<usize>,
}

impl<A: Arithmetic, W: Weights<A>> Kernel for Across<'_, A, W> {
    const BF16: bool = A::PAIRS;
    const ONLY_BF16: bool = Self::BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let &Interleaved { m, k, .. } = self.to;
        let across = self.to.panels().div_ceil(TOGETHER);
        for item in self.items {
            let (block, panel) = (item / across, item % across * TOGETHER);
            let (row, at) = (panel * LANES, block * WORDS * A::PER_WORD);
            let rows = (TOGETHER * LANES).min(m - row);
            let len = (WORDS * A::PER_WORD).min(k - at);
            let out = self.to.panel(block, panel).cast_mut();
            let places = Places { out, step: LANES, pitch: len.div_ceil(A::PER_WORD) * LANES };
            // SAFETY: the rows and elements are readable, and the panels have room for every word.
            unsafe { self.rows.unpack_across::<V>(self.first + row, rows, at, len, places) };
        }
    }
}

/// Interleaves rows of x. Each item is a block of words of a panel.
struct Interleave<'a, A, T> {
    x: *const T,
    to: &'a Interleaved<A>,
    items: Range<usize>,
}

impl<A: Arithmetic, T: Float> Kernel for Interleave<'_, A, T> {
    const BF16: bool = A::PAIRS;
    const ONLY_BF16: bool = Self::BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let &Interleaved { m, k, .. } = self.to;
        let panels = m.div_ceil(LANES);
        let words = k.div_ceil(A::PER_WORD);
        let chunk = LANES * A::PER_WORD;
        for item in self.items {
            let (block, panel) = (item / panels, item % panels);
            let rows = (m - panel * LANES).min(LANES);
            let len = WORDS.min(words - block * WORDS);
            let to = self.to.panel(block, panel).cast_mut();
            let mut done = 0;
            // SAFETY: every element that is read is within its row, and every word is written
            // within the panel.
            unsafe {
                while done < len {
                    let at = (block * WORDS + done) * A::PER_WORD;
                    let count = chunk.min(k - at);
                    let x = self.x.add(panel * LANES * k + at);
                    // This loop is not a closure, since a closure would be compiled without the CPU
                    // features of the kernel.
                    let mut square = [V::splat(0.0); LANES];
                    if !V::SMALL && rows == LANES && count == chunk {
                        for (i, words) in square.iter_mut().enumerate() {
                            *words = A::whole::<V, T>(x.add(i * k));
                        }
                    } else {
                        // Use a separate array, so that `square` stays in registers.
                        let mut rest = [V::splat(0.0); LANES];
                        for (i, words) in rest[..rows].iter_mut().enumerate() {
                            *words = match count == chunk {
                                true => A::whole::<V, T>(x.add(i * k)),
                                false => A::words::<V, T>(x.add(i * k), count),
                            };
                        }
                        square = rest;
                    }
                    let keep = LANES.min(len - done);
                    for (j, lanes) in V::transpose(square).into_iter().enumerate().take(keep) {
                        lanes.store(to.add((done + j) * LANES));
                    }
                    done += LANES;
                }
            }
        }
    }
}

/// [`Weights`] that a product can interleave in place of x.
pub trait Factor<A: Arithmetic>: Weights<A> {
    /// Calls `body` with the given rows of the weights in interleaved form. The first row is a
    /// multiple of sixteen.
    ///
    /// # Safety
    /// The rows are readable.
    unsafe fn interleaved(
        &self,
        machine: Machine,
        rows: Range<usize>,
        body: &dyn Fn(&Interleaved<A>),
    );
}
