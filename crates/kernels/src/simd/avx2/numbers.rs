//! Unpacks numbers of a few bits into lanes or bytes.
//!
//! The functions are called only on machines with AVX2, from functions that enable it. The contract
//! of each is in the documentation of the trait method that it implements.

use std::arch::x86_64::*;

use super::super::stream::Places;

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
