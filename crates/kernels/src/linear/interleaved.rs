//! Lays out rows of x for the GEMM: panels of sixteen rows, with the words of the rows interleaved.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::element::Float;
use super::super::simd::{F32x16, Kernel, LANES, prefetch};
use super::super::{Machine, Shared};
use super::arithmetic::Arithmetic;
use super::workspace;

/// Words of a row in a tile of weights; `k` is blocked by this many.
pub const WORDS: usize = 512;

/// `[m, k]` in blocks of [`WORDS`] words along k, each in panels of sixteen rows.
pub struct Interleaved<A> {
    packed: *mut f32,
    pub m: usize,
    pub k: usize,
    arithmetic: PhantomData<A>,
}

// SAFETY: written by `interleaved` alone, each panel by one thread, before anyone reads.
unsafe impl<A> Sync for Interleaved<A> {}

impl<A: Arithmetic> Interleaved<A> {
    /// The address of words `block * WORDS..` of a panel of sixteen rows.
    #[inline(always)]
    pub fn panel(&self, block: usize, panel: usize) -> *const f32 {
        let (panels, words) = (self.m.div_ceil(LANES), self.k.div_ceil(A::PER_WORD));
        let start = block * WORDS;
        let at = (start * panels + panel * WORDS.min(words - start)) * LANES;
        self.packed.wrapping_add(at)
    }
}

/// Calls `body` with x interleaved, which any number of products can use: `[m, k]`, or `[k, m]` if
/// `columns`.
///
/// # Safety
/// `x` holds `m * k` elements, which are bf16 if `columns` and factors are.
pub unsafe fn interleaved<A: Arithmetic, T: Float>(
    machine: Machine,
    [m, k]: [usize; 2],
    (x, columns): (*const T, bool),
    body: &dyn Fn(&Interleaved<A>),
) {
    let (panels, words) = (m.div_ceil(LANES), k.div_ceil(A::PER_WORD));
    workspace::with(panels * LANES * words, &|packed| {
        let to = Interleaved { packed, m, k, arithmetic: PhantomData };
        let x = Shared(x.cast_mut());
        let across = if columns { panels.div_ceil(TOGETHER) } else { panels };
        let work = 20 * WORDS * if columns { TOGETHER } else { 1 };
        machine.pool.for_each(across * words.div_ceil(WORDS), work, &|items| {
            // SAFETY: the caller's contract; the workspace holds every panel.
            unsafe {
                match columns {
                    true => machine.level.run(Columns { x: x.get(), to: &to, items }),
                    false => machine.level.run(Interleave { x: x.get(), to: &to, items }),
                }
            }
        });
        body(&to);
    });
}

/// Panels of x as `[k, m]` that are interleaved together, so that what is read of a row of x is
/// not a cache line alone.
const TOGETHER: usize = 4;

/// [`Interleave`] for x as `[k, m]`; an item is a block of words of [`TOGETHER`] panels.
struct Columns<'a, A, T> {
    x: *const T,
    to: &'a Interleaved<A>,
    items: Range<usize>,
}

impl<A: Arithmetic, T: Float> Kernel for Columns<'_, A, T> {
    const BF16: bool = A::PAIRS;
    const ONLY_BF16: bool = Self::BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let &Interleaved { m, k, .. } = self.to;
        let panels = m.div_ceil(LANES);
        let across = panels.div_ceil(TOGETHER);
        for item in self.items {
            let (block, first) = (item / across, item % across * TOGETHER);
            let start = block * WORDS * A::PER_WORD;
            let len = (WORDS * A::PER_WORD).min(k - start);
            for at in (0..len).step_by(A::PER_WORD) {
                let row = self.x.wrapping_add((start + at) * m);
                for panel in first..panels.min(first + TOGETHER) {
                    let column = panel * LANES;
                    let row = row.wrapping_add(column);
                    let next = (at + 1 < len).then(|| row.wrapping_add(m));
                    let to = self.to.panel(block, panel).cast_mut();
                    // No prefetcher follows such strides.
                    let ahead = row.wrapping_add(AHEAD * A::PER_WORD * m);
                    prefetch(ahead.cast(), LANES * size_of::<T>());
                    // SAFETY: the rows and columns exist, and the panel has room for every word.
                    unsafe {
                        let words = A::across::<V, T>(row, next, LANES.min(m - column));
                        words.store(to.add(at / A::PER_WORD * LANES));
                    }
                }
            }
        }
    }
}

/// How many words ahead the rows of x as `[k, m]` are prefetched.
const AHEAD: usize = 8;

/// An item is a block of words of a panel.
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
            // SAFETY: every element read is within its row, every word written in the panel.
            unsafe {
                while done < len {
                    let at = (block * WORDS + done) * A::PER_WORD;
                    let count = chunk.min(k - at);
                    let x = self.x.add(panel * LANES * k + at);
                    // A closure would be compiled without the level's features.
                    let mut square = [V::splat(0.0); LANES];
                    if !V::SMALL && rows == LANES && count == chunk {
                        for (i, words) in square.iter_mut().enumerate() {
                            *words = A::whole::<V, T>(x.add(i * k));
                        }
                    } else {
                        // A separate array, so that the one above stays in registers.
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
