//! Unpacks numbers of a few bits into lanes or bytes.
//!
//! The functions are called only on machines with AVX2, from functions that enable it. The contract
//! of each is in the documentation of the trait method that it implements.

use std::arch::x86_64::*;

use super::super::registers::Avx2;
use super::super::stream::{Couples, Places};

/// Implements [`F32x16::load_lanes`](super::super::F32x16::load_lanes).
#[inline(always)]
pub unsafe fn load_lanes<const BITS: usize>(from: *const u8) -> (__m256i, __m256i) {
    // SAFETY: the four loads of sixteen bytes lie within the packed numbers. The last load begins
    // earlier than its numbers, so that it does not read past their end.
    unsafe {
        let early = 16 - BITS / 2;
        let order = |first: usize| -> [u8; 16] {
            std::array::from_fn(|i| match i % 4 {
                3 => 0x80,
                byte => (first + i / 4 * BITS / 8 + byte) as u8,
            })
        };
        let quarter = |at: usize, order: [u8; 16]| {
            let order = _mm_loadu_si128(order.as_ptr().cast());
            let lanes = _mm_shuffle_epi8(_mm_loadu_si128(from.add(at).cast()), order);
            match BITS {
                24 => lanes,
                _ => _mm_srlv_epi32(lanes, _mm_setr_epi32(0, 4, 0, 4)),
            }
        };
        let step = BITS / 2;
        let low = _mm256_set_m128i(quarter(step, order(0)), quarter(0, order(0)));
        let last = quarter(3 * step - early, order(early));
        (low, _mm256_set_m128i(last, quarter(2 * step, order(0))))
    }
}

/// Implements [`F32x16::load_stream`](super::super::F32x16::load_stream).
#[inline(always)]
pub unsafe fn load_stream<const BITS: usize>(from: *const u8) -> (__m256i, __m256i) {
    // Each lane gets the two bytes that contain its number.
    let (bytes, shifts) = const { (&Places::<BITS>::PAIRS, &Places::<BITS>::SHIFTS) };
    let mut stream = [0u8; 16];
    // SAFETY: the caller vouches for `2 * BITS` bytes, which are at most sixteen.
    unsafe {
        std::ptr::copy_nonoverlapping(from, stream.as_mut_ptr(), 2 * BITS);
        let stream = _mm256_broadcastsi128_si256(_mm_loadu_si128(stream.as_ptr().cast()));
        let half = |i: usize| {
            let order = _mm256_loadu_si256(bytes.as_ptr().add(32 * i).cast());
            let shifts = _mm256_loadu_si256(shifts.as_ptr().add(8 * i).cast());
            _mm256_srlv_epi32(_mm256_shuffle_epi8(stream, order), shifts)
        };
        (half(0), half(1))
    }
}

/// Two registers, the lower half of a block first.
type Both = (__m256i, __m256i);

/// Implements [`F32x16::load_codes`](super::super::F32x16::load_codes).
#[inline(always)]
pub unsafe fn load_codes<const BITS: usize>(from: *const u8) -> Both {
    // SAFETY: the loads of sixteen bytes lie within the packed numbers.
    unsafe {
        // Returns the bytes of a quarter of the numbers, in words of two numbers each. The load
        // begins earlier than the quarter if it would read past the end of the numbers.
        let quarter = |i: usize| {
            let at = 2 * BITS * i;
            let start = at.min(8 * BITS - 16);
            let order = Couples::<BITS>::bytes(at - start);
            (_mm_loadu_si128(from.add(start).cast()), _mm_loadu_si128(order.as_ptr().cast()))
        };
        let half = |i: usize| {
            let ((low, order), (high, next)) = (quarter(2 * i), quarter(2 * i + 1));
            let (bytes, order) = (_mm256_set_m128i(high, low), _mm256_set_m128i(next, order));
            let words = _mm256_shuffle_epi8(bytes, order);
            let mask = (1 << BITS) - 1;
            let (low, high) = (_mm256_set1_epi16(mask), _mm256_set1_epi16(mask << 8));
            if BITS == 6 {
                // In every other word, the first number is at the lowest bit already.
                let moved = _mm256_srli_epi16::<4>(words);
                let words = _mm256_blend_epi16::<0xaa>(words, moved);
                let second = _mm256_and_si256(_mm256_slli_epi16::<2>(words), high);
                return _mm256_or_si256(_mm256_and_si256(words, low), second);
            }
            let factors = _mm_loadu_si128(Couples::<BITS>::FACTORS.as_ptr().cast());
            let words = _mm256_mullo_epi16(words, _mm256_broadcastsi128_si256(factors));
            let [first, second] = Couples::<BITS>::SHIFTS;
            let first = _mm256_srl_epi16(words, _mm_cvtsi32_si128(first));
            let second = _mm256_srl_epi16(words, _mm_cvtsi32_si128(second));
            _mm256_or_si256(_mm256_and_si256(first, low), _mm256_and_si256(second, high))
        };
        (half(0), half(1))
    }
}

/// Implements [`F32x16::unzip_lanes`](super::super::F32x16::unzip_lanes).
#[inline(always)]
pub unsafe fn unzip_lanes(a: Both, b: Both) -> [Both; 2] {
    // SAFETY: the caller promises AVX2.
    unsafe {
        let (a0, a1) = (_mm256_castsi256_ps(a.0), _mm256_castsi256_ps(a.1));
        let (b0, b1) = (_mm256_castsi256_ps(b.0), _mm256_castsi256_ps(b.1));
        let even = (_mm256_shuffle_ps::<0x88>(a0, b0), _mm256_shuffle_ps::<0x88>(a1, b1));
        let odd = (_mm256_shuffle_ps::<0xdd>(a0, b0), _mm256_shuffle_ps::<0xdd>(a1, b1));
        [
            (_mm256_castps_si256(even.0), _mm256_castps_si256(even.1)),
            (_mm256_castps_si256(odd.0), _mm256_castps_si256(odd.1)),
        ]
    }
}

/// Implements [`F32x16::unzip_quarters`](super::super::F32x16::unzip_quarters).
#[inline(always)]
pub unsafe fn unzip_quarters(a: Both, b: Both) -> [Both; 2] {
    // SAFETY: the caller promises AVX2.
    unsafe {
        [
            (
                _mm256_permute2x128_si256::<0x20>(a.0, a.1),
                _mm256_permute2x128_si256::<0x20>(b.0, b.1),
            ),
            (
                _mm256_permute2x128_si256::<0x31>(a.0, a.1),
                _mm256_permute2x128_si256::<0x31>(b.0, b.1),
            ),
        ]
    }
}

/// Implements [`Lanes::store_bytes`](super::super::Lanes::store_bytes).
#[inline(always)]
pub unsafe fn store_bytes(a: Both, to: *mut u8) {
    // SAFETY: sixteen bytes are writable; no alignment is needed.
    unsafe {
        let low = _mm256_set1_epi32(0xff);
        let halves = _mm256_packus_epi32(_mm256_and_si256(a.0, low), _mm256_and_si256(a.1, low));
        let halves = _mm256_permute4x64_epi64::<0b11_01_10_00>(halves);
        let upper = _mm256_extracti128_si256::<1>(halves);
        _mm_storeu_si128(to.cast(), _mm_packus_epi16(_mm256_castsi256_si128(halves), upper));
    }
}

/// Implements [`F32x16::permute`](super::super::F32x16::permute) for a register of indices.
#[inline(always)]
pub unsafe fn pick<const DOTS: bool>(from: Avx2<DOTS>, index: __m256i) -> __m256 {
    // SAFETY: the caller promises AVX2.
    unsafe {
        let low = _mm256_permutevar8x32_ps(from.0, index);
        let high = _mm256_permutevar8x32_ps(from.1, index);
        _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index)))
    }
}

/// Implements [`F32x16::low_fp4`](super::super::F32x16::low_fp4) for a register.
#[inline(always)]
pub unsafe fn fp4(a: __m256i) -> __m256 {
    // SAFETY: the caller promises AVX2.
    unsafe {
        let table = _mm256_setr_ps(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0);
        let sign = _mm256_and_si256(_mm256_slli_epi32::<28>(a), _mm256_set1_epi32(i32::MIN));
        _mm256_or_ps(_mm256_permutevar8x32_ps(table, a), _mm256_castsi256_ps(sign))
    }
}
