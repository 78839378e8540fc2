//! Reduces eight blocks at a time, in the order of `reduce_add`. Each node of the tree combines two
//! blocks.
//!
//! The steps are functions, because the compiler would compile closures without the AVX2 features.
//! They are called only on machines with AVX2, from functions that enable it.

use std::arch::x86_64::*;

use super::super::LANES;
use super::super::registers::Avx2;

/// Lane i is the sum of the lanes of block `from + i`.
#[inline(always)]
pub unsafe fn eight<const DOTS: bool>(blocks: &[Avx2<DOTS>; LANES], from: usize) -> __m256 {
    // SAFETY: the caller promises AVX2.
    unsafe {
        let low = pairs(two(blocks, from), two(blocks, from + 1));
        let high = pairs(two(blocks, from + 2), two(blocks, from + 3));
        let even = _mm256_shuffle_ps::<0x88>(low, high);
        _mm256_add_ps(even, _mm256_shuffle_ps::<0xdd>(low, high))
    }
}

#[inline(always)]
unsafe fn two<const DOTS: bool>(blocks: &[Avx2<DOTS>; LANES], i: usize) -> __m256 {
    // SAFETY: the caller promises AVX2.
    unsafe {
        let a = _mm256_add_ps(blocks[i].0, blocks[i].1);
        let b = _mm256_add_ps(blocks[i + 4].0, blocks[i + 4].1);
        let low = _mm256_permute2f128_ps::<0x20>(a, b);
        _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(a, b))
    }
}

#[inline(always)]
unsafe fn pairs(a: __m256, b: __m256) -> __m256 {
    // SAFETY: the caller promises AVX2.
    unsafe {
        let (a, b) = (_mm256_castps_pd(a), _mm256_castps_pd(b));
        let low = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
        _mm256_add_ps(low, _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)))
    }
}
