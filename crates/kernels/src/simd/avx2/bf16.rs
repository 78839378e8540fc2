//! Conversions between floats and bf16. AVX2 has no instructions for them.
//!
//! The conversions are functions, because the compiler would compile closures without the AVX2
//! features. They are called only on machines with AVX2, from functions that enable it.

use std::arch::x86_64::*;

use super::super::registers::Avx2;

/// Converts the bf16 values with even indices to the floats of the first register, and the values
/// with odd indices to the second. No value moves to another 32-bit lane.
#[inline(always)]
pub unsafe fn decode_mixed<const DOTS: bool>((first, last): (__m128i, __m128i)) -> Avx2<DOTS> {
    // SAFETY: the caller promises AVX2.
    unsafe {
        let patterns = _mm256_set_m128i(last, first);
        let odd = _mm256_and_si256(patterns, _mm256_set1_epi32(!0xffff));
        let even = _mm256_slli_epi32::<16>(patterns);
        Avx2(_mm256_castsi256_ps(even), _mm256_castsi256_ps(odd))
    }
}

/// The inverse of [`decode_mixed`]. Rounds to the nearest, ties to even. The lower half of a NaN
/// must be zero.
#[inline(always)]
pub unsafe fn encode_mixed<const DOTS: bool>(Avx2(even, odd): Avx2<DOTS>) -> (__m128i, __m128i) {
    // SAFETY: the caller promises AVX2.
    unsafe {
        let (even, odd) = (_mm256_castps_si256(even), _mm256_castps_si256(odd));
        let high = _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(even), odd);
        let low = _mm256_blend_epi16::<0xaa>(even, _mm256_slli_epi32::<16>(odd));
        // Round up if the lower half exceeds 0x8000, or equals it and the upper half is odd.
        // Flipping the top bit subtracts 0x8000, so that a signed comparison with zero decides.
        let low = _mm256_xor_si256(low, _mm256_set1_epi16(i16::MIN));
        let low = _mm256_adds_epi16(low, _mm256_and_si256(high, _mm256_set1_epi16(1)));
        let up = _mm256_cmpgt_epi16(low, _mm256_setzero_si256());
        let patterns = _mm256_sub_epi16(high, up);
        (_mm256_castsi256_si128(patterns), _mm256_extracti128_si256::<1>(patterns))
    }
}

/// Puts the lanes of [`decode_mixed`] into the order of memory.
#[inline(always)]
pub unsafe fn ordered<const DOTS: bool>(Avx2(even, odd): Avx2<DOTS>) -> Avx2<DOTS> {
    // SAFETY: the caller promises AVX2.
    unsafe {
        let (low, high) = (_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
        Avx2(_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
    }
}

/// The inverse of [`ordered`].
#[inline(always)]
pub unsafe fn mixed<const DOTS: bool>(Avx2(low, high): Avx2<DOTS>) -> Avx2<DOTS> {
    // SAFETY: the caller promises AVX2.
    unsafe {
        let even = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(low, high));
        let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0xdd>(low, high));
        Avx2(
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(even)),
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(odd)),
        )
    }
}

/// Rounds to the nearest bf16, ties to even. The lower half of a NaN must be zero.
#[inline(always)]
pub unsafe fn round(x: __m256) -> __m256 {
    // SAFETY: the caller promises AVX2.
    unsafe {
        let bits = _mm256_castps_si256(x);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32(!0xffff)))
    }
}
