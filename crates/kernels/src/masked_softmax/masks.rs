//! The keys that a query sees, and the masks of its row.

use std::ops::Range;

use crate::element::Float;
use crate::simd::{F32x16, LANES};

/// The shape of the scores, and the causal mask, which needs no memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MaskedSoftmaxShape {
    pub rows: usize,
    pub queries: usize,
    pub keys: usize,
    /// Whether a query sees no key after its position. The queries have the positions of the last
    /// keys.
    pub causal: bool,
    /// With `causal`, the largest number of keys that a query sees, up to and including its
    /// position; 0 sets no limit.
    pub window: usize,
}

impl MaskedSoftmaxShape {
    /// The keys that the query of a row sees.
    #[inline(always)]
    pub(super) fn keys_of(&self, row: usize) -> Range<usize> {
        if !self.causal {
            return 0..self.keys;
        }
        let end = (row % self.queries + 1 + self.keys).saturating_sub(self.queries);
        let start = if self.window == 0 { 0 } else { end.saturating_sub(self.window) };
        start..end
    }
}

/// A mask in memory. Axes with a stride of zero are broadcast.
#[derive(Clone, Copy)]
pub struct Mask<'a> {
    pub data: *const u8,
    /// Whether the mask has elements of the scores' type, which are added. Otherwise it has bools,
    /// which are true for visible scores.
    pub additive: bool,
    /// The extents of all axes except the axis of keys. The number of a row is its row-major index
    /// along these axes. `strides` has the stride of each axis.
    pub shape: &'a [u32],
    pub strides: &'a [i64],
    pub key_stride: isize,
}

// SAFETY: `data` is an address from which threads only read.
unsafe impl Send for Mask<'_> {}
// SAFETY: as above.
unsafe impl Sync for Mask<'_> {}

impl Mask<'_> {
    /// The offset of a row's first element, in elements.
    fn offset(&self, mut row: usize) -> isize {
        let mut offset = 0;
        for (&extent, &stride) in self.shape.iter().zip(self.strides).rev() {
            let extent = extent as usize;
            offset += (row % extent) as isize * stride as isize;
            row /= extent;
        }
        offset
    }
}

/// Rows of a mask as contiguous elements. Strided rows are gathered into a buffer, and other rows
/// are read in place.
pub(super) struct Staged<'a, E> {
    mask: Mask<'a>,
    gathered: Vec<E>,
}

impl<'a, E: Copy> Staged<'a, E> {
    /// # Safety
    /// The mask has an element of type `E` at all indices of its rows and keys.
    pub(super) unsafe fn new(mask: Mask<'a>) -> Self {
        Self { mask, gathered: Vec::new() }
    }

    /// The elements of a row for `keys`. They are valid until the next call.
    pub(super) fn row(&mut self, row: usize, keys: Range<usize>) -> *const E {
        let stride = self.mask.key_stride;
        let first = self.mask.data.cast::<E>();
        let offset = self.mask.offset(row) + keys.start as isize * stride;
        if stride == 1 || keys.is_empty() {
            return first.wrapping_offset(offset);
        }
        self.gathered.clear();
        // SAFETY: these keys are within the row, and the contract of `new` holds.
        let element = |key: usize| unsafe { *first.offset(offset + key as isize * stride) };
        self.gathered.extend((0..keys.len()).map(element));
        self.gathered.as_ptr()
    }
}

/// The effect of a mask on the scores `at..at + count` of its row, counted from the first key that
/// the row sees. `count` is at most sixteen. The lanes have the order of
/// [`Float::load_mixed_block`].
///
/// # Safety
/// For both methods the row's mask covers these scores.
pub(super) trait RowMask<T: Float>: Copy {
    unsafe fn apply<V: F32x16>(self, scores: V, at: usize, count: usize) -> V;
    /// Keeps the lanes of visible scores, and sets the other lanes to zero.
    unsafe fn keep<V: F32x16>(self, lanes: V, at: usize, count: usize) -> V;
}

#[derive(Clone, Copy)]
pub(super) struct NoMask;

impl<T: Float> RowMask<T> for NoMask {
    #[inline(always)]
    unsafe fn apply<V: F32x16>(self, scores: V, _: usize, _: usize) -> V {
        scores
    }
    #[inline(always)]
    unsafe fn keep<V: F32x16>(self, lanes: V, _: usize, _: usize) -> V {
        lanes
    }
}

#[derive(Clone, Copy)]
pub(super) struct Added<T>(pub(super) *const T);

impl<T: Float> RowMask<T> for Added<T> {
    #[inline(always)]
    unsafe fn apply<V: F32x16>(self, scores: V, at: usize, count: usize) -> V {
        // SAFETY: the trait's contract.
        let mask: V = unsafe { T::load_mixed_block(self.0.add(at), count) };
        T::round_number(scores + mask)
    }
    #[inline(always)]
    unsafe fn keep<V: F32x16>(self, lanes: V, _: usize, _: usize) -> V {
        lanes
    }
}

/// A mask of bools, which are true for visible scores.
#[derive(Clone, Copy)]
pub(super) struct Hidden(pub(super) *const u8);

impl Hidden {
    /// # Safety
    /// `count` bytes are readable at `at`.
    #[inline(always)]
    unsafe fn shown<V: F32x16, T: Float>(self, at: usize, count: usize) -> V::Int {
        if count == LANES {
            // SAFETY: sixteen bytes are readable.
            let bytes = unsafe { V::load_bytes(self.0.add(at)) };
            return T::mixed(V::from_bits(bytes)).to_bits();
        }
        let mut wide = [0u16; LANES];
        // SAFETY: the caller's contract; `wide` has sixteen numbers.
        unsafe {
            for (i, wide) in wide.iter_mut().enumerate().take(count) {
                *wide = u16::from(*self.0.add(at + i));
            }
            V::widen(V::load_half(wide.as_ptr()))
        }
    }
}

impl<T: Float> RowMask<T> for Hidden {
    #[inline(always)]
    unsafe fn apply<V: F32x16>(self, scores: V, at: usize, count: usize) -> V {
        // SAFETY: the trait's contract.
        V::select(unsafe { self.shown::<V, T>(at, count) }, scores, V::splat(T::LOWEST))
    }
    #[inline(always)]
    unsafe fn keep<V: F32x16>(self, lanes: V, at: usize, count: usize) -> V {
        // SAFETY: the trait's contract.
        V::select(unsafe { self.shown::<V, T>(at, count) }, lanes, V::splat(0.0))
    }
}
