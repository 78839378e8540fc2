//! Converts 4-bit numbers to pairs of bf16 by lookup.

use std::arch::x86_64::*;

/// The 4-bit numbers as bf16, twice, since an index has five bits.
const NUMBERS: [u16; 32] = {
    let mut numbers = [0; 32];
    let mut i = 0;
    while i < 32 {
        numbers[i] = (((i % 16) as f32).to_bits() >> 16) as u16;
        i += 1;
    }
    numbers
};

/// [`F32x16::nibble_pairs`](super::F32x16::nibble_pairs).
///
/// # Safety
/// The machine has AVX-512 F and BW, and this is inlined where they are enabled.
#[inline(always)]
pub unsafe fn of_nibbles(words: __m512i) -> [__m512i; 4] {
    // SAFETY: the caller vouches for the instructions; the table is 32 halves.
    unsafe {
        let table = _mm512_loadu_si512(NUMBERS.as_ptr().cast());
        [
            _mm512_permutexvar_epi16(words, table),
            _mm512_permutexvar_epi16(_mm512_srli_epi16::<4>(words), table),
            _mm512_permutexvar_epi16(_mm512_srli_epi16::<8>(words), table),
            _mm512_permutexvar_epi16(_mm512_srli_epi16::<12>(words), table),
        ]
    }
}
