//! Formats for the factors of a product: f32, or pairs of bf16 for the dot-product instruction.

use std::mem::MaybeUninit;

use super::super::element::Float;
use super::super::simd::{F32x16, LANES, Register};

/// The format of the 32-bit words of a packed matrix. A word holds one factor, or two factors that
/// are adjacent along k.
pub trait Arithmetic: Copy + Send + Sync + 'static {
    /// The type to which rows of weights are unpacked.
    type Factor: Copy + Default + Send + Sync;
    /// The number of factors in a word.
    const PER_WORD: usize;
    /// Whether a word holds two factors, for the instruction that
    /// [`Level::dots_bf16`](crate::simd::Level::dots_bf16) reports.
    const PAIRS: bool = Self::PER_WORD == 2;
    /// The type of the arguments of [`add_product`](Self::add_product): one register of a block of
    /// sixteen words, or the full block.
    type Register<V: F32x16>: Register;

    /// Adds the product of two words to the sum in each lane.
    fn step<V: F32x16>(sum: V, x: V, w: V) -> V;
    /// Returns register `P` of a block.
    fn register<V: F32x16, const P: usize>(block: V) -> Self::Register<V>;
    /// Does the work of [`step`](Self::step) for a register.
    fn add_product<V: F32x16>(
        sum: Self::Register<V>,
        x: Self::Register<V>,
        w: Self::Register<V>,
    ) -> Self::Register<V>;
    /// Loads sixteen words of consecutive elements.
    ///
    /// # Safety
    /// `from` is readable for `16 * PER_WORD` elements. If factors are bf16, the elements are bf16
    /// too.
    unsafe fn whole<V: F32x16, T: Float>(from: *const T) -> V;
    /// Makes sixteen words from the first `count` elements, followed by zeros.
    ///
    /// # Safety
    /// `from` is readable for `count <= 16 * PER_WORD` elements.
    unsafe fn words<V: F32x16, T: Float>(from: *const T, count: usize) -> V;
    /// Makes sixteen words from the first `count` elements of a row of a matrix that is stored as
    /// `[k, n]`. If a word is a pair, its second factor comes from `next`, the following row along
    /// k, or is zero if there is no such row.
    ///
    /// # Safety
    /// Each row is readable for `count <= 16` elements. If factors are bf16, the elements are bf16
    /// too.
    unsafe fn across<V: F32x16, T: Float>(row: *const T, next: Option<*const T>, count: usize)
    -> V;
}

/// Factors and products in f32.
#[derive(Clone, Copy)]
pub struct InF32;

/// Factors in bf16, products in f32. The products are exact if both factors already are bf16.
#[derive(Clone, Copy)]
pub struct InBf16;

impl Arithmetic for InF32 {
    type Factor = f32;
    const PER_WORD: usize = 1;
    type Register<V: F32x16> = V::Register;

    #[inline(always)]
    fn step<V: F32x16>(sum: V, x: V, w: V) -> V {
        x.mul_add(w, sum)
    }
    #[inline(always)]
    fn register<V: F32x16, const P: usize>(block: V) -> V::Register {
        // SAFETY: a block has these registers, in this order.
        unsafe { (&raw const block).cast::<V::Register>().add(P).read() }
    }
    #[inline(always)]
    fn add_product<V: F32x16>(sum: V::Register, x: V::Register, w: V::Register) -> V::Register {
        sum.add_product(x, w)
    }
    #[inline(always)]
    unsafe fn whole<V: F32x16, T: Float>(from: *const T) -> V {
        // SAFETY: the caller's contract.
        unsafe { T::load(from) }
    }
    #[inline(always)]
    unsafe fn words<V: F32x16, T: Float>(from: *const T, count: usize) -> V {
        // SAFETY: the caller's contract.
        unsafe { T::load_block(from, count) }
    }
    #[inline(always)]
    unsafe fn across<V: F32x16, T: Float>(row: *const T, _: Option<*const T>, count: usize) -> V {
        // SAFETY: the caller's contract.
        unsafe { T::load_block(row, count) }
    }
}

impl Arithmetic for InBf16 {
    type Factor = u16;
    const PER_WORD: usize = 2;
    type Register<V: F32x16> = V;

    #[inline(always)]
    fn step<V: F32x16>(sum: V, x: V, w: V) -> V {
        sum.dot_bf16(x.to_bits(), w.to_bits())
    }
    #[inline(always)]
    fn register<V: F32x16, const P: usize>(block: V) -> V {
        block
    }
    #[inline(always)]
    fn add_product<V: F32x16>(sum: V, x: V, w: V) -> V {
        Self::step(sum, x, w)
    }
    #[inline(always)]
    unsafe fn whole<V: F32x16, T: Float>(from: *const T) -> V {
        // SAFETY: the caller's contract; the load needs no alignment.
        unsafe { V::load(from.cast()) }
    }
    #[inline(always)]
    unsafe fn words<V: F32x16, T: Float>(from: *const T, count: usize) -> V {
        let mut words = MaybeUninit::<[u16; 2 * LANES]>::uninit();
        let to = words.as_mut_ptr().cast::<u16>();
        // SAFETY: both halves of the words are written, and at most `count` elements are read.
        unsafe {
            let first = T::load_block::<V>(from, count.min(LANES));
            V::store_half(first.to_bf16(), to);
            let rest = count.saturating_sub(LANES);
            let second =
                if rest > 0 { T::load_block(from.add(LANES), rest) } else { V::splat(0.0) };
            V::store_half(second.to_bf16(), to.add(LANES));
            V::load(to.cast())
        }
    }
    #[inline(always)]
    unsafe fn across<V: F32x16, T: Float>(
        row: *const T,
        next: Option<*const T>,
        count: usize,
    ) -> V {
        // SAFETY: the caller's contract.
        unsafe {
            let low = patterns::<V>(row.cast(), count);
            match next {
                Some(next) => paired(low, patterns::<V>(next.cast(), count)),
                None => paired(low, V::narrow(V::splat_int(0))),
            }
        }
    }
}

/// Loads the first `count` of sixteen bit patterns, and zeros for the rest.
///
/// # Safety
/// The `count` patterns are readable.
#[inline(always)]
pub unsafe fn patterns<V: F32x16>(from: *const u16, count: usize) -> V::Half {
    // SAFETY: the caller's contract.
    unsafe { if count == LANES { V::load_half(from) } else { V::load_half_first(from, count) } }
}

/// Makes sixteen words, each from one of `factors` and from the factor in `next` that follows it
/// along k.
#[inline(always)]
pub fn paired<V: F32x16>(factors: V::Half, next: V::Half) -> V {
    let high = V::shift_left::<16>(V::widen(next));
    V::from_bits(V::add_int(V::widen(factors), high))
}
