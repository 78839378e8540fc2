//! Masks for blocks with fewer than sixteen elements, and loads of small blocks.

use std::arch::x86_64::*;

use super::super::registers::Avx2;

const INDEX: [i32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Sets all bits of the first `count` lanes. Called only on machines with AVX2, from functions that
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

/// Indices for a byte shuffle. The sixteen entries that start at `n` shift a vector down by `n`
/// bytes and fill the top with zeros.
const SHIFTED: [u8; 32] = {
    let mut bytes = [0x80; 32];
    let mut at = 0;
    while at < 16 {
        bytes[at] = at as u8;
        at += 1;
    }
    bytes
};

/// Loads the first `count <= 16` 16-bit values and fills up with zeros. On a short row, a call of a
/// copy function would take longer than the work. Called only on machines with AVX2, from functions
/// that enable it.
///
/// # Safety
/// `from` is readable for `count` values.
#[inline(always)]
pub unsafe fn halves(from: *const u16, count: usize) -> (__m128i, __m128i) {
    // SAFETY: the loads read only the `count` values and a part of the table.
    unsafe {
        if count >= 8 {
            // The second register: loads the last eight values, and shifts out the values that are
            // in the first register.
            let last = _mm_loadu_si128(from.add(count - 8).cast());
            let order = _mm_loadu_si128(SHIFTED.as_ptr().add(2 * (16 - count)).cast());
            return (_mm_loadu_si128(from.cast()), _mm_shuffle_epi8(last, order));
        }
        let (mut low, mut high) = (0, 0);
        if count >= 4 {
            let last = from.add(count - 4).cast::<u64>().read_unaligned();
            low = from.cast::<u64>().read_unaligned();
            // Two shifts of half the size, because a single shift by 64 bits would overflow.
            high = last >> (8 * (8 - count)) >> (8 * (8 - count));
        } else if count >= 2 {
            // Of three values, the second one is in both pairs, at the same place.
            let last = u64::from(from.add(count - 2).cast::<u32>().read_unaligned());
            low = u64::from(from.cast::<u32>().read_unaligned()) | last << (16 * (count - 2));
        } else if count == 1 {
            low = u64::from(*from);
        }
        (_mm_set_epi64x(high as i64, low as i64), _mm_setzero_si128())
    }
}

/// Lane i is `from[i >> shift]`; `shift` is at least 1. Called only on machines with AVX2, from
/// functions that enable it.
///
/// # Safety
/// `from[0]` to `from[7]` are readable.
#[inline(always)]
pub unsafe fn each<const DOTS: bool>(from: *const f32, shift: u32) -> Avx2<DOTS> {
    // SAFETY: the caller upholds the contract.
    unsafe {
        // The compiler replaces permutations by constants by slower ones.
        let count = _mm_cvtsi32_si128(shift as i32);
        let low = _mm256_srl_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), count);
        let high = _mm256_srl_epi32(_mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15), count);
        // A permutation selects among four numbers by the two lowest bits of an index.
        let second = from.add((8 >> shift) & !3);
        let (from, second) = (_mm_loadu_ps(from), _mm_loadu_ps(second));
        Avx2(
            _mm256_permutevar_ps(_mm256_set_m128(from, from), low),
            _mm256_permutevar_ps(_mm256_set_m128(second, second), high),
        )
    }
}
