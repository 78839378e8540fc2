//! Masks for blocks that are not whole.

use std::arch::x86_64::*;

const INDEX: [i32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// All ones in the first `count` lanes. Called only on machines with AVX2, from functions that
/// enable it.
#[inline(always)]
pub unsafe fn first(count: usize) -> (__m256i, __m256i) {
    // SAFETY: the caller promises AVX2; the array is two vectors long.
    unsafe {
        let count = _mm256_set1_epi32(count as i32);
        let low = _mm256_loadu_si256(INDEX.as_ptr().cast());
        let high = _mm256_loadu_si256(INDEX.as_ptr().add(8).cast());
        (_mm256_cmpgt_epi32(count, low), _mm256_cmpgt_epi32(count, high))
    }
}
