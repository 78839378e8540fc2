//! AVX-512 (F, BW, VL, DQ; optional BF16, VNNI, GFNI). A block is one register; tails are masked.

use std::arch::x86_64::*;
use std::mem::transmute;
use std::ops::{Add, Div, Mul, Sub};

use super::dots::{byte_fields_by_shifts, dot_bf16_by_halves, dot_bytes_in_turn};
use super::registers::Avx512;
use super::tiles::DigitTiles;
use super::transpose::transpose;
use super::{F32x16, LANES, Lanes};

pub(super) mod amx;
mod pairs;
mod whole;

/// Wraps intrinsics that do not access memory.
macro_rules! lanes {
    ($call:expr) => {
        // SAFETY: only `Level::run` uses this type, on a machine with AVX-512.
        unsafe { $call }
    };
}

/// Avoids `map`, whose closure would be compiled without the AVX-512 features and not be inlined.
#[inline(always)]
fn registers<const BF16: bool>(blocks: [Avx512<BF16>; LANES]) -> [__m512; LANES] {
    // SAFETY: `Avx512` is a transparent wrapper of its register.
    unsafe { transmute::<[Avx512<BF16>; LANES], [__m512; LANES]>(blocks) }
}

fn first(count: usize) -> u16 {
    debug_assert!(count <= 16);
    ((1u32 << count) - 1) as u16
}

macro_rules! operator {
    ($operator:ident, $method:ident, $call:ident) => {
        impl<const BF16: bool> $operator for Avx512<BF16> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self(lanes!($call(self.0, other.0)))
            }
        }
    };
}

operator!(Add, add, _mm512_add_ps);
operator!(Sub, sub, _mm512_sub_ps);
operator!(Mul, mul, _mm512_mul_ps);
operator!(Div, div, _mm512_div_ps);

impl<const BF16: bool> Lanes for Avx512<BF16> {
    type Register = Self;
    type Int = __m512i;
    type Half = __m256i;

    const ONE_REGISTER: bool = true;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self(lanes!(_mm512_set1_ps(value)))
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: sixteen floats are readable; no alignment is needed.
        Self(unsafe { _mm512_loadu_ps(from) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: sixteen floats are writable; no alignment is needed.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        // SAFETY: sixteen floats are writable, and `to` is aligned.
        unsafe { _mm512_stream_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> __m256i {
        // SAFETY: sixteen 16-bit values are readable; no alignment is needed.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_half(half: __m256i, to: *mut u16) {
        // SAFETY: sixteen 16-bit values are writable; no alignment is needed.
        unsafe { _mm256_storeu_si256(to.cast(), half) }
    }
    #[inline(always)]
    unsafe fn stream_half(half: __m256i, to: *mut u16) {
        // SAFETY: sixteen 16-bit values are writable, and `to` is aligned.
        unsafe { _mm256_stream_si256(to.cast(), half) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: the mask confines the access to `count` floats.
        Self(unsafe { _mm512_maskz_loadu_ps(first(count), from) })
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        // SAFETY: the mask confines the access to `count` floats.
        unsafe { _mm512_mask_storeu_ps(to, first(count), self.0) }
    }
    #[inline(always)]
    unsafe fn load_half_first(from: *const u16, count: usize) -> __m256i {
        // SAFETY: the mask confines the access to `count` 16-bit values.
        unsafe { _mm256_maskz_loadu_epi16(first(count), from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_half_first(half: __m256i, to: *mut u16, count: usize) {
        // SAFETY: the mask confines the access to `count` 16-bit values.
        unsafe { _mm256_mask_storeu_epi16(to.cast(), first(count), half) }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(lanes!(_mm512_fmadd_ps(self.0, factor.0, addend.0)))
    }
    #[inline(always)]
    unsafe fn store_bytes(a: __m512i, to: *mut u8) {
        // SAFETY: sixteen bytes are writable; no alignment is needed.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(a)) }
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(lanes!(_mm512_max_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn max_or(self, other: Self) -> Self {
        self.max(other)
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(lanes!(_mm512_min_ps(self.0, other.0)))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Self(lanes!(_mm512_abs_ps(self.0)))
    }
    #[inline(always)]
    fn swap_pairs(self) -> Self {
        Self(lanes!(_mm512_permute_ps::<0b10_11_00_01>(self.0)))
    }
    #[inline(always)]
    fn reduce_add(self) -> f32 {
        lanes!(whole::sum(self.0))
    }
    #[inline(always)]
    fn reduce_max(self) -> f32 {
        lanes!(_mm512_reduce_max_ps(self.0))
    }
    const BLOCKS: usize = 32;
    #[inline(always)]
    unsafe fn from_bytes(from: *const u8) -> Self {
        // SAFETY: sixteen bytes are readable; no alignment is needed.
        let bytes = unsafe { _mm_loadu_si128(from.cast()) };
        Self(lanes!(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))))
    }
    #[inline(always)]
    unsafe fn from_nibbles(from: *const u8) -> Self {
        // SAFETY: eight bytes are readable; no alignment is needed.
        let pairs = unsafe { _mm512_cvtepu8_epi64(_mm_loadl_epi64(from.cast())) };
        // `low_bits::<4>` reads only the low four bits of each lane, so the others need no mask.
        Self::low_bits::<4>(lanes!(_mm512_or_si512(pairs, _mm512_slli_epi64::<28>(pairs))))
    }
    #[inline(always)]
    unsafe fn load_halves(low: *const f32, high: *const f32) -> Self {
        // SAFETY: eight floats are readable at each address; no alignment is needed.
        unsafe {
            let low = _mm512_castps256_ps512(_mm256_loadu_ps(low));
            Self(_mm512_insertf32x8::<1>(low, _mm256_loadu_ps(high)))
        }
    }
    #[inline(always)]
    fn any_above(self, limit: f32) -> bool {
        lanes!(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, _mm512_set1_ps(limit))) != 0
    }
    #[inline(always)]
    fn keep_first(self, count: usize, fill: f32) -> Self {
        Self(lanes!(_mm512_mask_blend_ps(first(count), _mm512_set1_ps(fill), self.0)))
    }

    #[inline(always)]
    fn splat_int(value: i32) -> __m512i {
        lanes!(_mm512_set1_epi32(value))
    }
    #[inline(always)]
    fn add_int(a: __m512i, b: __m512i) -> __m512i {
        lanes!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn and_int(a: __m512i, b: __m512i) -> __m512i {
        lanes!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn shift_left<const N: u32>(a: __m512i) -> __m512i {
        lanes!(_mm512_slli_epi32::<N>(a))
    }
    #[inline(always)]
    fn shift_right<const N: u32>(a: __m512i) -> __m512i {
        lanes!(_mm512_srli_epi32::<N>(a))
    }
    #[inline(always)]
    fn to_int(self) -> __m512i {
        lanes!(_mm512_cvttps_epi32(self.0))
    }
    #[inline(always)]
    fn from_int(a: __m512i) -> Self {
        Self(lanes!(_mm512_cvtepi32_ps(a)))
    }
    #[inline(always)]
    fn to_bits(self) -> __m512i {
        lanes!(_mm512_castps_si512(self.0))
    }
    #[inline(always)]
    fn from_bits(a: __m512i) -> Self {
        Self(lanes!(_mm512_castsi512_ps(a)))
    }
    #[inline(always)]
    fn xor_bits(self, a: __m512i) -> Self {
        Self(lanes!(_mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(self.0), a))))
    }
    #[inline(always)]
    fn select(mask: __m512i, a: Self, b: Self) -> Self {
        Self(lanes!(_mm512_mask_blend_ps(_mm512_test_epi32_mask(mask, mask), b.0, a.0)))
    }
    #[inline(always)]
    fn is_nan(self) -> __m512i {
        lanes!(_mm512_movm_epi32(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0)))
    }

    #[inline(always)]
    fn from_f16(half: __m256i) -> Self {
        Self(lanes!(_mm512_cvtph_ps(half)))
    }
    #[inline(always)]
    fn to_f16(self) -> __m256i {
        lanes!(_mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0))
    }
    #[inline(always)]
    fn to_bf16(self) -> __m256i {
        // `vcvtneps2bf16` would treat subnormal numbers as zero.
        const SUBNORMAL: i32 = 0x20;
        if BF16 && lanes!(_mm512_fpclass_ps_mask::<SUBNORMAL>(self.0)) == 0 {
            // SAFETY: `BF16` implies AVX512_BF16; both types are 256 plain bits.
            unsafe { transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(self.0)) }
        } else {
            Self::narrow(Self::shift_right::<16>(self.bf16_bits()))
        }
    }
    #[inline(always)]
    fn round_bf16(self) -> Self {
        Self(lanes!(whole::round_bf16(self.0)))
    }
    #[inline(always)]
    fn widen(half: __m256i) -> __m512i {
        lanes!(_mm512_cvtepu16_epi32(half))
    }
    #[inline(always)]
    fn narrow(a: __m512i) -> __m256i {
        lanes!(_mm512_cvtepi32_epi16(a))
    }

    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> __m512i {
        // SAFETY: sixteen bytes are readable; no alignment is needed.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
    }
    /// For up to four bits, one permutation looks the number up in a table of sixteen floats.
    #[inline(always)]
    fn low_bits<const BITS: u32>(a: __m512i) -> Self {
        if BITS > 4 {
            return Self::from_int(Self::and_int(a, Self::splat_int((1 << BITS) - 1)));
        }
        let number = |i: u32| (i & ((1 << BITS) - 1)) as f32;
        let table: [f32; 16] = std::array::from_fn(|i| number(i as u32));
        // SAFETY: the table holds sixteen floats.
        Self(unsafe { _mm512_permutexvar_ps(a, _mm512_loadu_ps(table.as_ptr())) })
    }
    #[inline(always)]
    fn floor(self) -> Self {
        Self(lanes!(_mm512_roundscale_ps::<1>(self.0)))
    }
    #[inline(always)]
    fn round(self) -> Self {
        Self(lanes!(_mm512_roundscale_ps::<0>(self.0)))
    }
    const SCALES: bool = true;
    #[inline(always)]
    fn scale_by_power(self, n: Self, _: Self) -> Self {
        Self(lanes!(whole::scale_by_power(self.0, n.0)))
    }
}

impl<const BF16: bool> F32x16 for Avx512<BF16> {
    const DOTS_BF16: bool = BF16;
    /// With `BF16`, one instruction computes this and treats subnormal numbers as zero.
    #[inline(always)]
    fn dot_bf16(self, a: __m512i, b: __m512i) -> Self {
        match BF16 {
            true => Self(lanes!(pairs::dot_bf16(self.0, a, b))),
            false => dot_bf16_by_halves(self, a, b),
        }
    }
    #[inline(always)]
    fn zip_words(a: __m512i, b: __m512i) -> [__m512i; 2] {
        [lanes!(_mm512_unpacklo_epi64(a, b)), lanes!(_mm512_unpackhi_epi64(a, b))]
    }
    #[inline(always)]
    fn unzip_lanes(a: __m512i, b: __m512i) -> [__m512i; 2] {
        lanes!(whole::unzip_lanes(a, b))
    }
    #[inline(always)]
    fn unzip_quarters(a: __m512i, b: __m512i) -> [__m512i; 2] {
        lanes!([_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b)])
    }
    #[inline(always)]
    unsafe fn tiles_of_digits(product: &DigitTiles) {
        // SAFETY: the caller upholds the contract; only the level `Amx` calls this method.
        unsafe { amx::tiles_of_digits(product) }
    }
    #[inline(always)]
    fn byte_fields(a: __m512i, at: u32, bits: u32) -> __m512i {
        if !BF16 || at == 0 {
            return byte_fields_by_shifts::<Self>(a, at, bits);
        }
        lanes!(pairs::fields_of_bytes(a, at, bits))
    }
    #[inline(always)]
    fn dot_bytes(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        if BF16 {
            lanes!(_mm512_dpbusd_epi32(sum, a, b))
        } else {
            dot_bytes_in_turn::<Self>(sum, a, b)
        }
    }
    const ADDS_PAIRS: bool = !BF16;
    #[inline(always)]
    fn add_pairs(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        match BF16 {
            true => Self::dot_bytes(sums, a, b),
            false => lanes!(_mm512_add_epi16(sums, _mm512_maddubs_epi16(a, b))),
        }
    }
    #[inline(always)]
    fn sums_of_pairs(a: __m512i) -> __m512i {
        if BF16 { a } else { lanes!(_mm512_madd_epi16(a, _mm512_set1_epi16(1))) }
    }
    #[inline(always)]
    fn sums_of_quarters(sums: [__m512i; 4]) -> __m512i {
        lanes!(whole::sums_of_quarters::<BF16>(sums))
    }
    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        lanes!(transmute::<[__m512; LANES], [Self; LANES]>(transpose(registers(rows))))
    }
    #[inline(always)]
    fn reduce_add_each(blocks: [Self; LANES]) -> Self {
        Self(lanes!(whole::tree::<false>(registers(blocks))))
    }
    #[inline(always)]
    fn reduce_max_each(blocks: [Self; LANES]) -> Self {
        Self(lanes!(whole::tree::<true>(registers(blocks))))
    }
    #[inline(always)]
    fn nibble_pairs(words: __m512i) -> [__m512i; 4] {
        lanes!(pairs::of_nibbles(words))
    }
    #[inline(always)]
    unsafe fn load_lanes<const BITS: usize>(from: *const u8) -> __m512i {
        // SAFETY: the caller upholds the contract.
        unsafe { whole::load_lanes::<BITS>(from) }
    }
    #[inline(always)]
    unsafe fn load_stream<const BITS: usize>(from: *const u8) -> __m512i {
        // SAFETY: the caller upholds the contract.
        unsafe { whole::load_stream::<BITS>(from) }
    }
    #[inline(always)]
    unsafe fn load_codes<const BITS: usize>(from: *const u8) -> __m512i {
        // SAFETY: the caller upholds the contract.
        unsafe { whole::load_codes::<BITS>(from) }
    }
    #[inline(always)]
    unsafe fn store_stream<const BITS: usize>(a: __m512i, to: *mut u8) {
        // SAFETY: the caller upholds the contract.
        unsafe { whole::store_stream::<BITS>(a, to) }
    }
    #[inline(always)]
    fn permute(self, index: __m512i) -> Self {
        Self(lanes!(_mm512_permutexvar_ps(index, self.0)))
    }
    #[inline(always)]
    fn low_fp4(a: __m512i) -> Self {
        Self(lanes!(whole::fp4(a)))
    }
}
