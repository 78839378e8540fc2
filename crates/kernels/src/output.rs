//! Stores results into the caches. If the caches cannot keep all results, uses stores that bypass
//! the caches.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::element::Float;
use super::simd::{F32x16, LANES};

/// The caches cannot keep results of this many bytes or more until the results are read. Tests set
/// a smaller number, since they have too little memory for such results.
pub static BEYOND_CACHES: AtomicUsize = AtomicUsize::new(32 << 20);

/// A buffer of results, or a position in it. The threads of a job use disjoint positions, and the
/// pool makes streaming stores visible before the job ends.
#[derive(Clone, Copy)]
pub struct Output<T> {
    to: *mut T,
    past: bool,
}

// SAFETY: this is only an address; each kernel states how its threads divide the buffer.
unsafe impl<T> Send for Output<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Output<T> {}

impl<T: Float> Output<T> {
    /// The buffer for `count` results that are computed from `inputs`. A row has `row` results.
    /// Callers divide each row into blocks of sixteen, from the start of the row.
    ///
    /// Results that overwrite an input go to the caches, which already hold the input.
    pub fn new(to: *mut T, inputs: &[*const T], count: usize, row: usize) -> Self {
        let bytes = size_of::<T>();
        let aligned = to.addr().is_multiple_of(LANES * bytes) && row.is_multiple_of(LANES);
        let beyond = BEYOND_CACHES.load(Relaxed);
        let apart = inputs.iter().all(|&input| !std::ptr::eq(input, to));
        Self { to, past: aligned && apart && count >= beyond / bytes }
    }

    /// The buffer for results that the kernel itself reads again. They are stored into the caches.
    pub fn near(to: *mut T) -> Self {
        Self { to, past: false }
    }

    /// The position that is `count` elements further.
    ///
    /// # Safety
    /// The position is within the buffer, and a row or a block of sixteen begins there.
    #[inline(always)]
    pub unsafe fn add(self, count: usize) -> Self {
        // SAFETY: the caller's contract.
        Self { to: unsafe { self.to.add(count) }, ..self }
    }

    /// The position that is `at` elements further. The caller's blocks of sixteen begin there.
    ///
    /// # Safety
    /// The position is within the buffer.
    #[inline(always)]
    pub unsafe fn from(self, at: usize) -> Self {
        // SAFETY: the caller's contract.
        let to = unsafe { self.to.add(at) };
        Self { to, past: self.past && at.is_multiple_of(LANES) }
    }

    pub fn to(self) -> *mut T {
        self.to
    }

    pub fn is_past_caches(self) -> bool {
        self.past
    }

    /// Stores a block at element `at`, a multiple of sixteen.
    ///
    /// # Safety
    /// Sixteen elements are writable there.
    #[inline(always)]
    pub unsafe fn put<V: F32x16>(self, lanes: V, at: usize) {
        // SAFETY: the caller's contract; blocks that follow an aligned start are aligned.
        unsafe {
            if self.past {
                T::stream(lanes, self.to.add(at));
            } else {
                T::store(lanes, self.to.add(at));
            }
        }
    }

    /// Stores a block like [`put`](Self::put), but with lanes in the order of
    /// [`Float::load_mixed`]. The caller ensures that every NaN in the lanes was loaded from this
    /// type or is a result of arithmetic.
    ///
    /// # Safety
    /// The contract of [`put`](Self::put) holds.
    #[inline(always)]
    pub unsafe fn put_mixed<V: F32x16>(self, lanes: V, at: usize) {
        // SAFETY: as in `put`.
        unsafe {
            if self.past {
                T::stream_mixed(lanes, self.to.add(at));
            } else {
                T::store_mixed(lanes, self.to.add(at));
            }
        }
    }

    /// Stores a full block by [`put_mixed`](Self::put_mixed). If `count` is smaller, stores the
    /// first `count` lanes in the order of memory. [`Float::load_mixed_block`] loads lanes in these
    /// orders.
    ///
    /// # Safety
    /// `count <= 16` elements are writable there.
    #[inline(always)]
    pub unsafe fn put_mixed_block<V: F32x16>(self, lanes: V, at: usize, count: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            if count == LANES {
                self.put_mixed(lanes, at);
            } else {
                self.put_first(lanes, at, count);
            }
        }
    }

    /// Stores sixteen 16-bit patterns at element `at`, a multiple of sixteen.
    ///
    /// # Safety
    /// The contract of [`put`](Self::put), and the type has sixteen bits.
    #[inline(always)]
    pub unsafe fn put_patterns<V: F32x16>(self, half: V::Half, at: usize) {
        // SAFETY: the caller's contract; blocks that follow an aligned start are aligned.
        unsafe {
            if self.past {
                V::stream_joined(half, self.to.add(at).cast());
            } else {
                V::store_joined(half, self.to.add(at).cast());
            }
        }
    }

    /// Stores the first `count` lanes at element `at`.
    ///
    /// # Safety
    /// `count <= 16` elements are writable there.
    #[inline(always)]
    pub unsafe fn put_first<V: F32x16>(self, lanes: V, at: usize, count: usize) {
        // SAFETY: the caller's contract.
        unsafe { T::store_first(lanes, self.to.add(at), count) };
    }

    /// Stores a full block, or its first `count` lanes if `count` is smaller, at element `at`. A
    /// full block begins at a multiple of sixteen.
    ///
    /// # Safety
    /// `count <= 16` elements are writable there.
    #[inline(always)]
    pub unsafe fn put_block<V: F32x16>(self, lanes: V, at: usize, count: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            if count == LANES {
                self.put(lanes, at);
            } else {
                self.put_first(lanes, at, count);
            }
        }
    }

    /// Fills a range of elements with copies of one block. The range may begin and end within
    /// blocks.
    ///
    /// # Safety
    /// The range is writable.
    #[inline(always)]
    pub unsafe fn fill<V: F32x16>(self, lanes: V, range: Range<usize>) {
        let mut at = range.start;
        while at < range.end {
            let count = (LANES - at % LANES).min(range.end - at);
            // SAFETY: the caller's contract; `count` is sixteen only if `at` is a multiple of
            // sixteen.
            unsafe { self.put_block(lanes, at, count) };
            at += count;
        }
    }
}
