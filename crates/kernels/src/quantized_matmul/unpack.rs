//! Unpacks weights to bf16 for products of many rows on AVX512_BF16 and AMX.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::avx512bf16::Lookup;
use super::format::Format;
use crate::simd::{F32x16, LANES};

/// Whether [`unpack`] supports the format: groups are full vectors of bf16, except in K-quants of
/// six bits, for which the caller checks the length of groups.
pub(super) const fn unpacks<F: Format>() -> bool {
    F::LEAST_GROUP == 2 * LANES
}

/// Writes the weights of complete groups as scaled bf16. Subnormal weights may become zeros: the
/// instructions that multiply bf16 treat them as zeros anyway.
///
/// # Safety
/// The CPU has the features of `Level::Avx512Bf16`, and [`unpacks`] holds. `packed` has the weights
/// of the groups, each group has a scale and a bias, and `out` has room.
#[inline(always)]
pub(super) unsafe fn unpack<V: F32x16, F: Format>(
    packed: *const u8,
    [scales, biases]: [*const f32; 2],
    group: usize,
    groups: usize,
    out: *mut u16,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if const { F::BITS == 2 || F::BITS == 4 } {
            return look_up::<V, F>(packed, [scales, biases], group, groups, out);
        }
        for index in 0..groups {
            let (scale, bias) = (V::splat(*scales.add(index)), V::splat(*biases.add(index)));
            for at in (index * group..(index + 1) * group).step_by(2 * LANES) {
                let from = packed.add(at * F::BITS as usize / 8);
                let low = F::in_order::<V>(from).mul_add(scale, bias);
                let next = from.add(LANES * F::BITS as usize / 8);
                let high = F::in_order::<V>(next).mul_add(scale, bias);
                store_both(low, high, out.add(at));
            }
        }
    }
}

/// Writes the codes of `count` weights as bf16, each minus half of the range of the codes. `count`
/// is a multiple of 32.
///
/// # Safety
/// The CPU has the features of `Level::Avx512Bf16`. The weights exist, and `out` has room for the
/// codes.
#[inline(always)]
pub(super) unsafe fn codes<V: F32x16, F: Format>(packed: *const u8, count: usize, out: *mut u16) {
    let half = (1 << (F::BITS - 1)) as f32;
    // SAFETY: the caller's contract; 32 weights are whole bytes.
    unsafe {
        if const { F::BITS == 2 || F::BITS == 4 } {
            let mut table = [0u16; LANES];
            for (code, half_word) in table.iter_mut().enumerate() {
                // With codes of two bits, the index also has bits of the next code.
                let code = (code & ((1 << F::BITS) - 1)) as f32;
                *half_word = ((code - half).to_bits() >> 16) as u16;
            }
            let table = _mm512_broadcast_i64x4(_mm256_loadu_si256(table.as_ptr().cast()));
            let places = places(F::BITS as u16);
            for at in (0..count).step_by(2 * LANES) {
                let from = packed.add(at * F::BITS as usize / 8);
                let codes = _mm512_permutexvar_epi16(stream::<F>(from, places), table);
                _mm512_storeu_si512(out.add(at).cast(), codes);
            }
            return;
        }
        let half = V::splat(half);
        for at in (0..count).step_by(2 * LANES) {
            let from = packed.add(at * F::BITS as usize / 8);
            let low = F::in_order::<V>(from) - half;
            let high = F::in_order::<V>(from.add(LANES * F::BITS as usize / 8)) - half;
            store_both(low, high, out.add(at));
        }
    }
}

/// Rounds two vectors to bf16, and makes a pair of each two lanes. The numbers of `low` have the
/// lower bits. Subnormal numbers may become zeros.
///
/// # Safety
/// The CPU has the features of `Level::Avx512Bf16`.
#[inline(always)]
pub(super) unsafe fn paired<V: F32x16>(low: V, high: V) -> V {
    let mut places = [0u16; 2 * LANES];
    for (lane, place) in places.iter_mut().enumerate() {
        *place = (lane / 2 + lane % 2 * LANES) as u16;
    }
    // SAFETY: the caller's contract; a vector is sixteen floats.
    unsafe {
        let places = _mm512_loadu_si512(places.as_ptr().cast());
        let both = _mm512_permutexvar_epi16(places, rounded(low, high));
        V::load((&raw const both).cast())
    }
}

/// Rounds two vectors to bf16: the first sixteen numbers are those of `low`.
///
/// # Safety
/// The CPU has the features of `Level::Avx512Bf16`.
#[inline(always)]
unsafe fn rounded<V: F32x16>(low: V, high: V) -> __m512i {
    // SAFETY: the caller's contract; a vector is sixteen floats.
    unsafe {
        let low = _mm512_loadu_ps((&raw const low).cast());
        let high = _mm512_loadu_ps((&raw const high).cast());
        transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low))
    }
}

/// Rounds two vectors to bf16 and stores them.
///
/// # Safety
/// The CPU has the features of `Level::Avx512Bf16`, and `out` has room for 32 numbers.
#[inline(always)]
unsafe fn store_both<V: F32x16>(low: V, high: V, out: *mut u16) {
    // SAFETY: the caller's contract.
    unsafe { _mm512_storeu_si512(out.cast(), rounded(low, high)) }
}

/// Returns, for each of 32 numbers of `bits` bits, the index of the 16-bit word that contains it,
/// and the position of its lowest bit in this word.
///
/// # Safety
/// The CPU has the features of `Level::Avx512Bf16`.
#[inline(always)]
unsafe fn places(bits: u16) -> [__m512i; 2] {
    let (mut words, mut shifts) = ([0u16; 2 * LANES], [0u16; 2 * LANES]);
    for lane in 0..2 * LANES as u16 {
        words[lane as usize] = lane * bits / 16;
        shifts[lane as usize] = lane * bits % 16;
    }
    // SAFETY: each array is a full vector.
    unsafe {
        [_mm512_loadu_si512(words.as_ptr().cast()), _mm512_loadu_si512(shifts.as_ptr().cast())]
    }
}

/// Loads 32 numbers of two or four bits, each into the lowest bits of a 16-bit word.
///
/// # Safety
/// The CPU has the features of `Level::Avx512Bf16`, and the 32 numbers are readable.
#[inline(always)]
unsafe fn stream<F: Format>(from: *const u8, [words, shifts]: [__m512i; 2]) -> __m512i {
    // SAFETY: the caller's contract; the numbers are 8 or 16 bytes.
    unsafe {
        let stream = match F::BITS {
            2 => _mm_loadl_epi64(from.cast()),
            _ => _mm_loadu_si128(from.cast()),
        };
        _mm512_srlv_epi16(_mm512_permutexvar_epi16(words, _mm512_castsi128_si512(stream)), shifts)
    }
}

/// Does the work of [`unpack`] for codes of two or four bits. A group has at most sixteen distinct
/// weights, which are computed and rounded once and then looked up.
///
/// # Safety
/// The contract of [`unpack`] holds.
#[inline(always)]
unsafe fn look_up<V: F32x16, F: Format>(
    packed: *const u8,
    [scales, biases]: [*const f32; 2],
    group: usize,
    groups: usize,
    out: *mut u16,
) {
    const WIDE: usize = 2 * LANES;
    // SAFETY: the caller's contract; 32 weights are 8 or 16 bytes, and a group is a multiple of 32
    // weights.
    unsafe {
        let places = places(F::BITS as u16);
        let mut numbers = [0.0f32; LANES];
        for (number, half) in numbers.iter_mut().zip(Lookup::<F>::TABLE) {
            *number = f32::from_bits(u32::from(half) << 16);
        }
        let numbers = V::load(numbers.as_ptr());
        for index in 0..groups {
            let (scale, bias) = (V::splat(*scales.add(index)), V::splat(*biases.add(index)));
            let mut table = [0u16; LANES];
            V::store_half(numbers.mul_add(scale, bias).to_bf16(), table.as_mut_ptr());
            let table = _mm512_broadcast_i64x4(_mm256_loadu_si256(table.as_ptr().cast()));
            let start = index * group;
            for at in (start..start + group).step_by(WIDE) {
                let from = packed.add(at * F::BITS as usize / 8);
                let weights = _mm512_permutexvar_epi16(stream::<F>(from, places), table);
                _mm512_storeu_si512(out.add(at).cast(), weights);
            }
        }
    }
}
