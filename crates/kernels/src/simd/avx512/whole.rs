//! Operations that combine sixteen registers, or the lanes of one register.
//!
//! The functions are called only on machines with AVX-512, from functions that enable its features.

use std::arch::x86_64::*;

use super::super::stream::{Couples, Places};
use super::LANES;

/// The sum of all lanes. Each step adds the upper half to the lower half.
#[inline(always)]
pub unsafe fn sum(a: __m512) -> f32 {
    // SAFETY: the caller promises AVX-512.
    unsafe {
        let sum = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
        let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
        let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
    }
}

/// Implements [`Lanes::scale_by_power`](super::super::Lanes::scale_by_power). A mask clears the
/// lanes whose results round to zero, but not NaN lanes.
#[inline(always)]
pub unsafe fn scale_by_power(a: __m512, n: __m512) -> __m512 {
    // SAFETY: the caller promises AVX-512.
    unsafe {
        let reached = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(n, _mm512_set1_ps(-150.0));
        _mm512_maskz_scalef_ps(reached, a, n)
    }
}

/// Implements [`F32x16::unzip_lanes`](super::super::F32x16::unzip_lanes).
#[inline(always)]
pub unsafe fn unzip_lanes(a: __m512i, b: __m512i) -> [__m512i; 2] {
    // SAFETY: the caller promises AVX-512.
    unsafe {
        let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
        let (even, odd) = (_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
        [_mm512_castps_si512(even), _mm512_castps_si512(odd)]
    }
}

/// Implements [`F32x16::low_fp4`](super::super::F32x16::low_fp4).
#[inline(always)]
pub unsafe fn fp4(a: __m512i) -> __m512 {
    let table =
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0f32];
    // SAFETY: the caller promises AVX-512; the table holds sixteen floats.
    unsafe { _mm512_permutexvar_ps(a, _mm512_loadu_ps(table.as_ptr())) }
}

/// Lane `4 r + i` is the sum (or with `MAX` the maximum) of lanes i, i + 4, i + 8, i + 12 of block
/// r.
#[inline(always)]
unsafe fn quarters<const MAX: bool>([a, b, c, d]: [__m512; 4]) -> __m512 {
    // SAFETY: the caller promises AVX-512.
    unsafe {
        let low = node::<MAX, 0x44, 0xee>(a, b);
        node::<MAX, 0x88, 0xdd>(low, node::<MAX, 0x44, 0xee>(c, d))
    }
}

/// Lane `4 r + i` is the sum (or with `MAX` the maximum) of lanes `4 r` to `4 r + 3` of block i.
#[inline(always)]
unsafe fn within_quarters<const MAX: bool>([a, b, c, d]: [__m512; 4]) -> __m512 {
    // SAFETY: the caller promises AVX-512.
    unsafe { ends::<MAX>(pairs::<MAX>(a, b), pairs::<MAX>(c, d)) }
}

/// Lane i is the sum of the lanes of block i, or with `MAX` the largest lane. The lanes are
/// combined in the order of `reduce_add`, two blocks at each node of the tree.
#[inline(always)]
pub unsafe fn tree<const MAX: bool>(b: [__m512; LANES]) -> __m512 {
    // SAFETY: the caller promises AVX-512.
    unsafe {
        within_quarters::<MAX>([
            quarters::<MAX>([b[0], b[4], b[8], b[12]]),
            quarters::<MAX>([b[1], b[5], b[9], b[13]]),
            quarters::<MAX>([b[2], b[6], b[10], b[14]]),
            quarters::<MAX>([b[3], b[7], b[11], b[15]]),
        ])
    }
}

#[inline(always)]
unsafe fn join<const MAX: bool>(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the caller promises AVX-512.
    unsafe { if MAX { _mm512_max_ps(a, b) } else { _mm512_add_ps(a, b) } }
}

#[inline(always)]
unsafe fn node<const MAX: bool, const A: i32, const B: i32>(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the caller promises AVX-512.
    unsafe { join::<MAX>(_mm512_shuffle_f32x4::<A>(a, b), _mm512_shuffle_f32x4::<B>(a, b)) }
}

#[inline(always)]
unsafe fn pairs<const MAX: bool>(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the caller promises AVX-512.
    unsafe {
        let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
        let low = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        join::<MAX>(low, _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)))
    }
}

#[inline(always)]
unsafe fn ends<const MAX: bool>(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the caller promises AVX-512.
    unsafe { join::<MAX>(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b)) }
}

/// Implements [`F32x16::load_stream`](super::super::F32x16::load_stream).
///
/// # Safety
/// `from` is readable for `2 * BITS <= 16` bytes.
#[inline(always)]
pub unsafe fn load_stream<const BITS: usize>(from: *const u8) -> __m512i {
    // Each lane gets the two bytes that contain its number.
    let (bytes, shifts) = const { (&Places::<BITS>::PAIRS, &Places::<BITS>::SHIFTS) };
    let mask = ((1u32 << (2 * BITS)) - 1) as u16;
    // SAFETY: the mask or the type confines the access to the packed numbers; both arrays have
    // 64 bytes.
    unsafe {
        let stream = match BITS {
            4 => _mm512_set1_epi64(from.cast::<i64>().read_unaligned()),
            _ => _mm512_broadcast_i32x4(_mm_maskz_loadu_epi8(mask, from.cast())),
        };
        let pairs = _mm512_shuffle_epi8(stream, _mm512_loadu_si512(bytes.as_ptr().cast()));
        _mm512_srlv_epi32(pairs, _mm512_loadu_si512(shifts.as_ptr().cast()))
    }
}

/// Implements [`F32x16::load_codes`](super::super::F32x16::load_codes).
///
/// # Safety
/// `from` is readable for `8 * BITS` bytes, at most 48.
#[inline(always)]
pub unsafe fn load_codes<const BITS: usize>(from: *const u8) -> __m512i {
    // Each quarter gets the 16-bit words of its sixteen numbers.
    let words: [u16; 32] = std::array::from_fn(|i| (i / 8 * BITS + i % 8) as u16);
    let bytes = const { Couples::<BITS>::bytes(0) };
    // SAFETY: the mask confines the access to the packed numbers; the arrays have 64 and 16 bytes.
    unsafe {
        let stream = _mm512_maskz_loadu_epi32((1 << (2 * BITS)) - 1, from.cast());
        let words = _mm512_permutexvar_epi16(_mm512_loadu_si512(words.as_ptr().cast()), stream);
        let bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast()));
        let factors = _mm_loadu_si128(Couples::<BITS>::FACTORS.as_ptr().cast());
        let words = _mm512_shuffle_epi8(words, bytes);
        let words = _mm512_mullo_epi16(words, _mm512_broadcast_i32x4(factors));
        let (mask, shifts) = ((1 << BITS) - 1, Couples::<BITS>::SHIFTS);
        let first = _mm512_srl_epi16(words, _mm_cvtsi32_si128(shifts[0]));
        let first = _mm512_and_si512(first, _mm512_set1_epi16(mask));
        let next = _mm512_srl_epi16(words, _mm_cvtsi32_si128(shifts[1]));
        _mm512_or_si512(first, _mm512_and_si512(next, _mm512_set1_epi16(mask << 8)))
    }
}

/// Implements [`F32x16::sums_of_quarters`](super::super::F32x16::sums_of_quarters). With `DOTS`,
/// sums have 32 bits.
#[inline(always)]
pub unsafe fn sums_of_quarters<const DOTS: bool>([a, b, c, d]: [__m512i; 4]) -> __m512i {
    // SAFETY: the caller promises AVX-512.
    unsafe {
        let (ab, cd) = if DOTS {
            (neighbors(a, b), neighbors(c, d))
        } else {
            let ab = _mm512_add_epi16(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
            let cd = _mm512_add_epi16(_mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d));
            let one = _mm512_set1_epi16(1);
            (_mm512_madd_epi16(ab, one), _mm512_madd_epi16(cd, one))
        };
        neighbors(ab, cd)
    }
}

/// Within each quarter, adds neighboring lanes of `a`, then of `b`.
#[inline(always)]
unsafe fn neighbors(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller promises AVX-512.
    unsafe {
        let [even, odd] = unzip_lanes(a, b);
        _mm512_add_epi32(even, odd)
    }
}

/// Packs lanes below `2^BITS` into a little-endian bit stream.
///
/// # Safety
/// `to` is writable for `2 * BITS <= 16` bytes.
#[inline(always)]
pub unsafe fn store_stream<const BITS: usize>(a: __m512i, to: *mut u8) {
    // SAFETY: the caller upholds the contract and promises AVX-512.
    unsafe {
        // Joins adjacent lanes, then pairs of lanes, then groups of four. Each step moves the upper
        // part into the free bits above the lower part.
        let down = _mm_cvtsi32_si128(32 - BITS as i32);
        let two = _mm512_or_si512(a, _mm512_srl_epi64(a, down));
        match BITS {
            4 => return _mm_storel_epi64(to.cast(), _mm512_cvtepi64_epi8(two)),
            8 => return _mm_storeu_si128(to.cast(), _mm512_cvtepi64_epi16(two)),
            _ => {}
        }
        let two = _mm512_cvtepi64_epi16(two);
        let fours = _mm_srl_epi32(two, _mm_cvtsi32_si128(16 - 2 * BITS as i32));
        let low = _mm_and_si128(two, _mm_set1_epi32(0xffff));
        let high = _mm_andnot_si128(_mm_set1_epi32((1 << (2 * BITS)) - 1), fours);
        let four = _mm_or_si128(low, high);
        let eight = |word: u64| (word & 0xffff_ffff) | word >> 32 << (4 * BITS);
        let first = eight(_mm_cvtsi128_si64(four) as u64);
        let second = eight(_mm_extract_epi64::<1>(four) as u64);
        let all = (u128::from(first) | u128::from(second) << (8 * BITS)).to_le_bytes();
        std::ptr::copy_nonoverlapping(all.as_ptr(), to, 2 * BITS);
    }
}

/// Loads sixteen numbers of `BITS` bits, 20 or 24, from a bit stream. The bits above a number are
/// unspecified.
///
/// # Safety
/// `2 * BITS` bytes are readable.
#[inline(always)]
pub unsafe fn load_lanes<const BITS: usize>(from: *const u8) -> __m512i {
    // Each 128-bit quarter gets the 16-bit words of its four numbers. Then each lane gets the three
    // bytes that contain its number.
    let words: [u16; 32] = std::array::from_fn(|i| (i / 8 * BITS / 4 + i % 8) as u16);
    let bytes: [u8; 16] = std::array::from_fn(|i| match i % 4 {
        3 => 0x80,
        byte => (i / 4 * BITS / 8 + byte) as u8,
    });
    // SAFETY: the mask confines the access to the packed numbers; the arrays have 64 and 16 bytes.
    unsafe {
        let stream = _mm512_maskz_loadu_epi32((1 << (BITS / 2)) - 1, from.cast());
        let words = _mm512_loadu_si512(words.as_ptr().cast());
        let bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast()));
        let lanes = _mm512_shuffle_epi8(_mm512_permutexvar_epi16(words, stream), bytes);
        match BITS {
            24 => lanes,
            _ => _mm512_srlv_epi32(lanes, _mm512_set1_epi64(4 << 32)),
        }
    }
}

/// Rounds to the nearest bf16, ties to even. The AVX512_BF16 instruction treats subnormal numbers
/// as zero, and a check for subnormal numbers would take longer than this function.
#[inline(always)]
pub unsafe fn round_bf16(x: __m512) -> __m512 {
    // SAFETY: the caller promises AVX-512, and the instructions access only registers.
    unsafe {
        let bits = _mm512_castps_si512(x);
        let odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x1_0000));
        let up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
        let up = _mm512_mask_sub_epi32(up, odd, up, _mm512_set1_epi32(-1));
        let kept = _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(!0xffff)));
        // Restores NaN lanes, quiet or signaling, as quiet NaN.
        _mm512_fixupimm_ps::<0>(kept, x, _mm512_set1_epi32(0x22))
    }
}
