//! Aligned memory, prefetches and fences.

use std::mem::MaybeUninit;

use super::LANES;

/// Memory for `N` floats, aligned to a cache line. Loads of tiles and vectors that straddle two
/// lines take longer: products of tiles with such loads take 1.3 times as long.
#[repr(align(64))]
pub struct Lines<const N: usize>([MaybeUninit<f32>; N]);

impl<const N: usize> Lines<N> {
    #[inline(always)]
    pub const fn uninit() -> Self {
        Self([MaybeUninit::uninit(); N])
    }

    #[inline(always)]
    pub fn as_mut_ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// Prefetches the cache lines of the `bytes` bytes that start at `from`. If `from` is not aligned
/// to a line, the last of these lines may be left out. Any address is allowed. Does nothing on
/// processors other than x86-64.
#[inline(always)]
pub fn prefetch(from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        // SAFETY: a prefetch never faults, and SSE is part of x86-64.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

/// Like [`prefetch`], but only into the second-level cache. So data for later does not evict data
/// in use from the first-level cache.
#[inline(always)]
pub fn prefetch_far(from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        // SAFETY: a prefetch never faults, and SSE is part of x86-64.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(line).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

/// Prefetches sixteen elements.
#[inline(always)]
pub fn prefetch_block<T>(from: *const T) {
    prefetch(from.cast(), LANES * size_of::<T>());
}

/// Ends a series of [`Lanes::stream`](super::Lanes::stream) stores: they become visible before any
/// later store. On processors other than x86-64, these stores are ordinary, and this does nothing.
#[inline(always)]
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
