//! Sums of products of bytes. AVX-VNNI has an instruction for them; AVX2 alone adds up pairs of
//! products in sixteen bits.
//!
//! The compiler would compile closures without the CPU features. These functions are called only on
//! machines that have the features, from functions that enable them.

use std::arch::x86_64::*;

/// Implements [`F32x16::add_pairs`](super::super::F32x16::add_pairs) for a register.
#[inline(always)]
pub unsafe fn add<const DOTS: bool>(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller promises AVX2, and AVX-VNNI with `DOTS`.
    unsafe {
        match DOTS {
            true => _mm256_dpbusd_avx_epi32(sums, a, b),
            false => _mm256_add_epi16(sums, _mm256_maddubs_epi16(a, b)),
        }
    }
}

/// Implements [`F32x16::sums_of_pairs`](super::super::F32x16::sums_of_pairs) for a register.
#[inline(always)]
pub unsafe fn sums<const DOTS: bool>(a: __m256i) -> __m256i {
    // SAFETY: the caller promises AVX2.
    unsafe { if DOTS { a } else { _mm256_madd_epi16(a, _mm256_set1_epi16(1)) } }
}

/// Implements [`F32x16::sums_of_quarters`](super::super::F32x16::sums_of_quarters) for a register.
#[inline(always)]
pub unsafe fn quarters<const DOTS: bool>([a, b, c, d]: [__m256i; 4]) -> __m256i {
    // SAFETY: the caller promises AVX2.
    unsafe {
        if DOTS {
            return _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
        }
        let ab = _mm256_add_epi16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        let cd = _mm256_add_epi16(_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
        _mm256_hadd_epi32(sums::<DOTS>(ab), sums::<DOTS>(cd))
    }
}
