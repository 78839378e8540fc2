//! AVX2 with FMA and F16C. A block of sixteen lanes is two registers; the first has the low lanes.

use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Sub};

use super::registers::Avx2;
use super::{F32x16, LANES, Lanes, tiles::Tiles};

mod bf16;
mod bytes;
mod numbers;
mod square;
mod tails;
mod tree;

/// Wraps intrinsics that do not access memory.
macro_rules! lanes {
    ($call:expr) => {
        // SAFETY: only `Level::run` uses this type, on a machine with AVX2, FMA and F16C, and with
        // AVX-VNNI if `DOTS` is set.
        unsafe { $call }
    };
}

/// Applies an intrinsic to both registers of a block.
macro_rules! both {
    ($name:ident($a:expr)) => {
        lanes!(($name($a.0), $name($a.1)))
    };
    ($name:ident($a:expr, $b:expr)) => {
        lanes!(($name($a.0, $b.0), $name($a.1, $b.1)))
    };
}

#[inline(always)]
fn floats<const DOTS: bool>((low, high): (__m256, __m256)) -> Avx2<DOTS> {
    Avx2(low, high)
}

macro_rules! operator {
    ($operator:ident, $method:ident, $call:ident) => {
        impl<const DOTS: bool> $operator for Avx2<DOTS> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                floats(both!($call(self, other)))
            }
        }
    };
}

operator!(Add, add, _mm256_add_ps);
operator!(Sub, sub, _mm256_sub_ps);
operator!(Mul, mul, _mm256_mul_ps);
operator!(Div, div, _mm256_div_ps);

impl<const DOTS: bool> Tiles for Avx2<DOTS> {}

impl<const DOTS: bool> Lanes for Avx2<DOTS> {
    type Register = __m256;
    type Int = (__m256i, __m256i);
    type Half = (__m128i, __m128i);

    #[inline(always)]
    fn splat(value: f32) -> Self {
        let half = lanes!(_mm256_set1_ps(value));
        Self(half, half)
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: sixteen floats are readable; no alignment is needed.
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: sixteen floats are writable; no alignment is needed.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        // SAFETY: sixteen floats are writable, and `to` is aligned.
        unsafe {
            _mm256_stream_ps(to, self.0);
            _mm256_stream_ps(to.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: the masks confine the accesses to `count` floats.
        unsafe {
            let (low, high) = tails::first(count);
            Self(_mm256_maskload_ps(from, low), _mm256_maskload_ps(from.wrapping_add(8), high))
        }
    }
    #[inline(always)]
    unsafe fn load_half_first(from: *const u16, count: usize) -> Self::Half {
        // SAFETY: the caller upholds the contract.
        unsafe { tails::halves(from, count) }
    }
    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self::Half {
        // SAFETY: sixteen 16-bit values are readable; no alignment is needed.
        unsafe { (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(8).cast())) }
    }
    #[inline(always)]
    unsafe fn stream_half(half: Self::Half, to: *mut u16) {
        // SAFETY: sixteen 16-bit values are writable, and `to` is aligned.
        unsafe {
            _mm_stream_si128(to.cast(), half.0);
            _mm_stream_si128(to.add(8).cast(), half.1);
        }
    }
    #[inline(always)]
    unsafe fn store_joined(half: Self::Half, to: *mut u16) {
        // SAFETY: sixteen 16-bit values are writable; no alignment is needed.
        unsafe { _mm256_storeu_si256(to.cast(), _mm256_set_m128i(half.1, half.0)) }
    }
    #[inline(always)]
    unsafe fn stream_joined(half: Self::Half, to: *mut u16) {
        // SAFETY: sixteen 16-bit values are writable, and `to` is aligned.
        unsafe { _mm256_stream_si256(to.cast(), _mm256_set_m128i(half.1, half.0)) }
    }
    #[inline(always)]
    unsafe fn store_half(half: Self::Half, to: *mut u16) {
        // SAFETY: sixteen 16-bit values are writable; no alignment is needed.
        unsafe {
            _mm_storeu_si128(to.cast(), half.0);
            _mm_storeu_si128(to.add(8).cast(), half.1);
        }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        lanes!(Self(
            _mm256_fmadd_ps(self.0, factor.0, addend.0),
            _mm256_fmadd_ps(self.1, factor.1, addend.1),
        ))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        floats(both!(_mm256_max_ps(self, other)))
    }
    #[inline(always)]
    fn max_or(self, other: Self) -> Self {
        self.max(other)
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        floats(both!(_mm256_min_ps(self, other)))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        let sign = Self::splat(-0.0);
        floats(both!(_mm256_andnot_ps(sign, self)))
    }
    #[inline(always)]
    fn floor(self) -> Self {
        floats(both!(_mm256_floor_ps(self)))
    }
    #[inline(always)]
    fn swap_pairs(self) -> Self {
        lanes!(Self(
            _mm256_permute_ps::<0b10_11_00_01>(self.0),
            _mm256_permute_ps::<0b10_11_00_01>(self.1),
        ))
    }
    #[inline(always)]
    fn reduce_add(self) -> f32 {
        lanes!({
            let sum = _mm256_add_ps(self.0, self.1);
            let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
            let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
            _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
        })
    }
    #[inline(always)]
    fn reduce_max(self) -> f32 {
        lanes!({
            let max = _mm256_max_ps(self.0, self.1);
            let max = _mm_max_ps(_mm256_castps256_ps128(max), _mm256_extractf128_ps::<1>(max));
            let max = _mm_max_ps(max, _mm_movehl_ps(max, max));
            _mm_cvtss_f32(_mm_max_ss(max, _mm_movehdup_ps(max)))
        })
    }
    #[inline(always)]
    fn any_above(self, limit: f32) -> bool {
        lanes!({
            let limit = _mm256_set1_ps(limit);
            let low = _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, limit);
            let high = _mm256_cmp_ps::<_CMP_GT_OQ>(self.1, limit);
            _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0
        })
    }
    #[inline(always)]
    fn keep_first(self, count: usize, fill: f32) -> Self {
        lanes!({
            let fill = _mm256_set1_ps(fill);
            let (low, high) = tails::first(count);
            Self(
                _mm256_blendv_ps(fill, self.0, _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(fill, self.1, _mm256_castsi256_ps(high)),
            )
        })
    }

    #[inline(always)]
    fn splat_int(value: i32) -> Self::Int {
        let half = lanes!(_mm256_set1_epi32(value));
        (half, half)
    }
    #[inline(always)]
    fn add_int(a: Self::Int, b: Self::Int) -> Self::Int {
        both!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn and_int(a: Self::Int, b: Self::Int) -> Self::Int {
        both!(_mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn shift_left<const N: u32>(a: Self::Int) -> Self::Int {
        let count = lanes!(_mm_cvtsi32_si128(N as i32));
        lanes!((_mm256_sll_epi32(a.0, count), _mm256_sll_epi32(a.1, count)))
    }
    #[inline(always)]
    fn shift_right<const N: u32>(a: Self::Int) -> Self::Int {
        let count = lanes!(_mm_cvtsi32_si128(N as i32));
        lanes!((_mm256_srl_epi32(a.0, count), _mm256_srl_epi32(a.1, count)))
    }
    #[inline(always)]
    fn to_int(self) -> Self::Int {
        both!(_mm256_cvttps_epi32(self))
    }
    #[inline(always)]
    fn from_int(a: Self::Int) -> Self {
        floats(both!(_mm256_cvtepi32_ps(a)))
    }
    #[inline(always)]
    fn to_bits(self) -> Self::Int {
        both!(_mm256_castps_si256(self))
    }
    #[inline(always)]
    fn from_bits(a: Self::Int) -> Self {
        floats(both!(_mm256_castsi256_ps(a)))
    }
    #[inline(always)]
    fn xor_bits(self, a: Self::Int) -> Self {
        floats(both!(_mm256_xor_ps(self, Self::from_bits(a))))
    }
    #[inline(always)]
    fn select(mask: Self::Int, a: Self, b: Self) -> Self {
        lanes!({
            let zero = _mm256_setzero_si256();
            let low = _mm256_castsi256_ps(_mm256_cmpeq_epi32(mask.0, zero));
            let high = _mm256_castsi256_ps(_mm256_cmpeq_epi32(mask.1, zero));
            Self(_mm256_blendv_ps(a.0, b.0, low), _mm256_blendv_ps(a.1, b.1, high))
        })
    }
    #[inline(always)]
    fn is_nan(self) -> Self::Int {
        lanes!((
            _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0)),
            _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(self.1, self.1)),
        ))
    }

    #[inline(always)]
    unsafe fn store_bytes(a: Self::Int, to: *mut u8) {
        // SAFETY: the caller upholds the contract.
        unsafe { numbers::store_bytes(a, to) }
    }
    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> Self::Int {
        // SAFETY: sixteen bytes are readable; no alignment is needed.
        let bytes = unsafe { _mm_loadu_si128(from.cast()) };
        lanes!((_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes))))
    }

    #[inline(always)]
    fn from_f16(half: Self::Half) -> Self {
        floats(both!(_mm256_cvtph_ps(half)))
    }
    #[inline(always)]
    fn to_f16(self) -> Self::Half {
        lanes!((
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0),
            _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1),
        ))
    }
    #[inline(always)]
    fn from_bf16_mixed(half: Self::Half) -> Self {
        lanes!(bf16::decode_mixed(half))
    }
    #[inline(always)]
    fn to_bf16_mixed(self) -> Self::Half {
        lanes!(bf16::encode_mixed(self))
    }
    #[inline(always)]
    fn ordered(self) -> Self {
        lanes!(bf16::ordered(self))
    }
    #[inline(always)]
    fn mixed(self) -> Self {
        lanes!(bf16::mixed(self))
    }
    #[inline(always)]
    fn swap_mixed_pairs(self) -> Self {
        Self(self.1, self.0)
    }
    #[inline(always)]
    fn round_bf16_number(self) -> Self {
        Self(lanes!(bf16::round(self.0)), lanes!(bf16::round(self.1)))
    }
    #[inline(always)]
    fn widen(half: Self::Half) -> Self::Int {
        both!(_mm256_cvtepu16_epi32(half))
    }
    #[inline(always)]
    fn narrow(a: Self::Int) -> Self::Half {
        lanes!({
            // The pack works within 128-bit halves; the permute then orders the quarters.
            let packed = _mm256_packus_epi32(a.0, a.1);
            let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            (_mm256_castsi256_si128(ordered), _mm256_extracti128_si256::<1>(ordered))
        })
    }
}

impl<const DOTS: bool> F32x16 for Avx2<DOTS> {
    const IN_PLACE: bool = true;
    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        lanes!(square::transpose(&rows))
    }
    #[inline(always)]
    unsafe fn transpose_words<const B: bool>(rows: &[*const u8; LANES], at: usize, to: *mut f32) {
        // SAFETY: the caller upholds the contract.
        unsafe { square::words::<B>(rows, at, to) }
    }
    #[inline(always)]
    fn reduce_add_each(b: [Self; LANES]) -> Self {
        lanes!(Self(tree::eight(&b, 0), tree::eight(&b, 8)))
    }
    #[inline(always)]
    unsafe fn load_lanes<const BITS: usize>(from: *const u8) -> Self::Int {
        // SAFETY: the caller upholds the contract.
        unsafe { numbers::load_lanes::<BITS>(from) }
    }
    #[inline(always)]
    unsafe fn load_stream<const BITS: usize>(from: *const u8) -> Self::Int {
        // SAFETY: the caller upholds the contract.
        unsafe { numbers::load_stream::<BITS>(from) }
    }
    #[inline(always)]
    unsafe fn load_codes<const BITS: usize>(from: *const u8) -> Self::Int {
        // SAFETY: the caller upholds the contract.
        unsafe { numbers::load_codes::<BITS>(from) }
    }
    #[inline(always)]
    fn sums_of_quarters([a, b, c, d]: [Self::Int; 4]) -> Self::Int {
        lanes!((
            bytes::quarters::<DOTS>([a.0, b.0, c.0, d.0]),
            bytes::quarters::<DOTS>([a.1, b.1, c.1, d.1])
        ))
    }
    #[inline(always)]
    fn unzip_lanes(a: Self::Int, b: Self::Int) -> [Self::Int; 2] {
        lanes!(numbers::unzip_lanes(a, b))
    }
    #[inline(always)]
    fn unzip_quarters(a: Self::Int, b: Self::Int) -> [Self::Int; 2] {
        lanes!(numbers::unzip_quarters(a, b))
    }
    const ADDS_PAIRS: bool = !DOTS;
    #[inline(always)]
    fn add_pairs(sums: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int {
        lanes!((bytes::add::<DOTS>(sums.0, a.0, b.0), bytes::add::<DOTS>(sums.1, a.1, b.1)))
    }
    #[inline(always)]
    fn sums_of_pairs(a: Self::Int) -> Self::Int {
        lanes!((bytes::sums::<DOTS>(a.0), bytes::sums::<DOTS>(a.1)))
    }
    #[inline(always)]
    unsafe fn load_each(from: *const f32, shift: u32) -> Self {
        // SAFETY: the caller upholds the contract.
        unsafe { tails::each(from, shift) }
    }
    #[inline(always)]
    fn permute(self, index: Self::Int) -> Self {
        lanes!(Self(numbers::pick(self, index.0), numbers::pick(self, index.1)))
    }
    #[inline(always)]
    fn low_fp4(a: Self::Int) -> Self {
        lanes!(Self(numbers::fp4(a.0), numbers::fp4(a.1)))
    }
}
