//! Unpacks numbers of a few bits into pairs of bf16 or into bytes, and multiplies pairs of bf16.

use std::arch::x86_64::*;
use std::mem::transmute;

/// The numbers 0 to 15 as bf16. The table repeats them, because an index has five bits.
const NUMBERS: [u16; 32] = {
    let mut numbers = [0; 32];
    let mut i = 0;
    while i < 32 {
        numbers[i] = (((i % 16) as f32).to_bits() >> 16) as u16;
        i += 1;
    }
    numbers
};

/// Implements [`F32x16::nibble_pairs`](super::F32x16::nibble_pairs).
///
/// # Safety
/// The machine has AVX-512 F and BW, and this is inlined into a function that enables them.
#[inline(always)]
pub unsafe fn of_nibbles(words: __m512i) -> [__m512i; 4] {
    // SAFETY: the caller promises the instructions; the table has 32 values of 16 bits.
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

/// Implements [`F32x16::byte_fields`](super::F32x16::byte_fields).
///
/// # Safety
/// The machine has AVX-512 F and GFNI, and this is inlined into a function that enables them.
#[inline(always)]
pub unsafe fn fields_of_bytes(a: __m512i, at: u32, bits: u32) -> __m512i {
    // `gf2p8affineqb` multiplies the bits of each byte by a matrix of 8 x 8 bits. The last row of
    // the matrix selects the lowest bit of the result.
    let mut rows = [0u8; 8];
    for bit in 0..bits {
        rows[7 - bit as usize] = 1 << (at + bit);
    }
    let matrix = i64::from_le_bytes(rows);
    // SAFETY: the caller promises the instructions, which access only registers.
    unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(a, _mm512_set1_epi64(matrix)) }
}

/// Implements [`F32x16::dot_bf16`](super::F32x16::dot_bf16).
///
/// # Safety
/// The machine has AVX512_BF16, and this is inlined into a function that enables it.
#[inline(always)]
pub unsafe fn dot_bf16(sums: __m512, a: __m512i, b: __m512i) -> __m512 {
    // SAFETY: the caller promises the instruction; both types are 512 plain bits.
    unsafe {
        let (a, b) = (transmute::<__m512i, __m512bh>(a), transmute::<__m512i, __m512bh>(b));
        _mm512_dpbf16_ps(sums, a, b)
    }
}
