//! Lays out rows of x for the GEMM: panels of sixteen rows, with the words of the rows interleaved.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::element::Float;
use super::super::simd::{F32x16, Kernel, LANES};
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

/// Calls `body` with the rows of x interleaved, which any number of products can use.
///
/// # Safety
/// `x` holds `m * k` elements.
pub unsafe fn interleaved<A: Arithmetic, T: Float>(
    machine: Machine,
    m: usize,
    k: usize,
    x: *const T,
    body: &dyn Fn(&Interleaved<A>),
) {
    let (panels, words) = (m.div_ceil(LANES), k.div_ceil(A::PER_WORD));
    workspace::with(panels * LANES * words, &|packed| {
        let to = Interleaved { packed, m, k, arithmetic: PhantomData };
        let x = Shared(x.cast_mut());
        machine.pool.for_each(panels * words.div_ceil(WORDS), 20 * WORDS, &|items| {
            // SAFETY: the caller's contract; the workspace holds every panel.
            unsafe { machine.level.run(Interleave { x: x.get(), to: &to, items }) }
        });
        body(&to);
    });
}

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
                    // A closure would be compiled without the level's features.
                    let mut square = [V::splat(0.0); LANES];
                    for (i, words) in square.iter_mut().enumerate().take(rows) {
                        let x = self.x.add((panel * LANES + i) * k + at);
                        *words = match count == chunk {
                            true => A::whole::<V, T>(x),
                            false => A::words::<V, T>(x, count),
                        };
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
