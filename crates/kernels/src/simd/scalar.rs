//! Portable lanes, as plain arrays. The tests compare every other level with them.
//!
//! The arithmetic is compiled once, as functions that kernels call. Inlined at each use, it would
//! be most of the crate's machine code, although few processors run it. Only loads, stores and
//! other copies are inlined.

use std::array::from_fn;
use std::ops::{Add, Div, Mul, Sub};

use super::dots::{self, dot_bf16_by_halves, dot_bytes_in_turn};
use super::registers::Scalar;
use super::tiles::Tiles;
use super::{F32x16, Function, LANES, Lanes, stream};

/// Builds an array with one element for each lane. A macro avoids a closure, which would take its
/// arguments by address and make callers copy them.
macro_rules! lanes {
    ($i:ident => $value:expr) => {{
        let (mut lanes, mut $i) = ([Default::default(); LANES], 0);
        while $i < LANES {
            lanes[$i] = $value;
            $i += 1;
        }
        lanes
    }};
}

/// Halves an array by `combine(i, i + half)` until one value is left, and returns this value.
#[inline(always)]
fn reduce(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = combine(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Converts IEEE binary16 to binary32, exactly.
fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff);
    let bits = if magnitude >= 0x7c00 {
        (magnitude << 13) | 0x7f80_0000
    } else {
        // Read as binary32, the shifted bits are too small by the factor 2^112. The product also
        // converts subnormal numbers correctly.
        (f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)).to_bits()
    };
    f32::from_bits(bits | sign)
}

/// Converts IEEE binary32 to binary16. Rounds to the nearest, ties to even.
fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let half = if magnitude > 0x7f80_0000 {
        0x7e00
    } else if magnitude >= 0x4780_0000 {
        0x7c00
    } else if magnitude < 0x3880_0000 {
        // Subnormal results: after adding 0.5, the low bits are the number in units of 2^-24,
        // rounded.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        let odd = (magnitude >> 13) & 1;
        (magnitude - 0x3800_0000 + 0xfff + odd) >> 13
    };
    sign | half as u16
}

/// Rounds the upper half of the bits to the nearest, ties to even. The lower half is unspecified.
fn rounded(lane: f32) -> u32 {
    let bits = lane.to_bits();
    if lane.is_nan() { 0x7fc0_0000 } else { bits + 0x7fff + (bits >> 16 & 1) }
}

impl Add for Scalar {
    type Output = Self;
    #[inline(never)]
    fn add(self, other: Self) -> Self {
        Self(lanes!(i => self.0[i] + other.0[i]))
    }
}

impl Sub for Scalar {
    type Output = Self;
    #[inline(never)]
    fn sub(self, other: Self) -> Self {
        Self(lanes!(i => self.0[i] - other.0[i]))
    }
}

impl Mul for Scalar {
    type Output = Self;
    #[inline(never)]
    fn mul(self, other: Self) -> Self {
        Self(lanes!(i => self.0[i] * other.0[i]))
    }
}

impl Div for Scalar {
    type Output = Self;
    #[inline(never)]
    fn div(self, other: Self) -> Self {
        Self(lanes!(i => self.0[i] / other.0[i]))
    }
}

impl Tiles for Scalar {}

impl Lanes for Scalar {
    type Register = Self;
    type Int = [u32; LANES];
    type Half = [u16; LANES];

    const SMALL: bool = true;

    #[inline(never)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: sixteen floats are readable.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: sixteen floats are writable.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self::Half {
        // SAFETY: sixteen 16-bit values are readable.
        unsafe { from.cast::<[u16; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_half(half: Self::Half, to: *mut u16) {
        // SAFETY: sixteen 16-bit values are writable.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(half) }
    }

    #[inline(never)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(lanes!(i => self.0[i].mul_add(factor.0[i], addend.0[i])))
    }
    #[inline(never)]
    fn max(self, other: Self) -> Self {
        Self(lanes!(i => larger(self.0[i], other.0[i])))
    }
    #[inline(never)]
    fn abs(self) -> Self {
        Self(lanes!(i => self.0[i].abs()))
    }
    #[inline(never)]
    fn swap_pairs(self) -> Self {
        Self(lanes!(i => self.0[i ^ 1]))
    }
    #[inline(never)]
    fn reduce_add(self) -> f32 {
        reduce(self.0, |a, b| a + b)
    }
    #[inline(never)]
    fn reduce_max(self) -> f32 {
        reduce(self.0, larger)
    }
    #[inline(never)]
    fn any_above(self, limit: f32) -> bool {
        let mut above = 0;
        for lane in self.0 {
            // `any` would be wrong: for aarch64, rustc 1.95 compiles `any` to code that misses
            // lanes next to a NaN.
            above += u32::from(lane > limit);
        }
        above > 0
    }
    #[inline(never)]
    fn keep_first(self, count: usize, fill: f32) -> Self {
        Self(lanes!(i => if i < count { self.0[i] } else { fill }))
    }

    #[inline(never)]
    fn splat_int(value: i32) -> Self::Int {
        [value as u32; LANES]
    }
    #[inline(never)]
    fn add_int(a: Self::Int, b: Self::Int) -> Self::Int {
        lanes!(i => a[i].wrapping_add(b[i]))
    }
    #[inline(never)]
    fn and_int(a: Self::Int, b: Self::Int) -> Self::Int {
        lanes!(i => a[i] & b[i])
    }
    #[inline(never)]
    fn shift_left<const N: u32>(a: Self::Int) -> Self::Int {
        lanes!(i => a[i] << N)
    }
    #[inline(never)]
    fn shift_right<const N: u32>(a: Self::Int) -> Self::Int {
        lanes!(i => a[i] >> N)
    }
    #[inline(never)]
    fn to_int(self) -> Self::Int {
        lanes!(i => self.0[i] as i32 as u32)
    }
    #[inline(never)]
    fn from_int(a: Self::Int) -> Self {
        Self(lanes!(i => a[i] as i32 as f32))
    }
    #[inline(always)]
    fn to_bits(self) -> Self::Int {
        // SAFETY: both arrays have sixteen elements of 32 bits.
        unsafe { std::mem::transmute::<[f32; LANES], [u32; LANES]>(self.0) }
    }
    #[inline(always)]
    fn from_bits(a: Self::Int) -> Self {
        // SAFETY: both arrays have sixteen elements of 32 bits.
        Self(unsafe { std::mem::transmute::<[u32; LANES], [f32; LANES]>(a) })
    }
    #[inline(never)]
    fn xor_bits(self, a: Self::Int) -> Self {
        Self(lanes!(i => f32::from_bits(self.0[i].to_bits() ^ a[i])))
    }
    #[inline(never)]
    fn select(mask: Self::Int, a: Self, b: Self) -> Self {
        Self(lanes!(i => if mask[i] != 0 { a.0[i] } else { b.0[i] }))
    }
    #[inline(never)]
    fn is_nan(self) -> Self::Int {
        lanes!(i => u32::from(self.0[i].is_nan()))
    }

    #[inline(never)]
    fn from_f16(half: Self::Half) -> Self {
        Self(lanes!(i => f16_to_f32(half[i])))
    }
    #[inline(never)]
    fn to_f16(self) -> Self::Half {
        lanes!(i => f32_to_f16(self.0[i]))
    }
    #[inline(never)]
    fn widen(half: Self::Half) -> Self::Int {
        lanes!(i => u32::from(half[i]))
    }
    #[inline(never)]
    fn narrow(a: Self::Int) -> Self::Half {
        lanes!(i => a[i] as u16)
    }

    #[inline(never)]
    fn max_or(self, other: Self) -> Self {
        Self(lanes!(i => match self.0[i].is_nan() {
            true => other.0[i],
            false => larger(self.0[i], other.0[i]),
        }))
    }
    #[inline(never)]
    fn low_bits<const BITS: u32>(a: Self::Int) -> Self {
        Self(lanes!(i => (a[i] & ((1 << BITS) - 1)) as f32))
    }
    #[inline(never)]
    fn from_bf16(half: Self::Half) -> Self {
        Self(lanes!(i => f32::from_bits(u32::from(half[i]) << 16)))
    }
    #[inline(never)]
    fn to_bf16(self) -> Self::Half {
        lanes!(i => (rounded(self.0[i]) >> 16) as u16)
    }
    #[inline(never)]
    fn round_bf16(self) -> Self {
        Self(lanes!(i => f32::from_bits(rounded(self.0[i]) & !0xffff)))
    }
    #[inline(never)]
    fn bf16_bits(self) -> Self::Int {
        lanes!(i => rounded(self.0[i]))
    }
    #[inline(never)]
    fn floor(self) -> Self {
        Self(lanes!(i => self.0[i].floor()))
    }
    #[inline(never)]
    fn round(self) -> Self {
        const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23, around which floats are integers
        Self(lanes!(i => (self.0[i] + MAGIC) - MAGIC))
    }
    #[inline(never)]
    unsafe fn load_bytes(from: *const u8) -> Self::Int {
        // SAFETY: sixteen bytes are readable.
        unsafe { from.cast::<[u8; LANES]>().read_unaligned() }.map(u32::from)
    }
}

impl F32x16 for Scalar {
    #[inline(never)]
    fn call<F: Function>(x: Self) -> Self {
        F::of(x)
    }
    #[inline(never)]
    fn dot_bf16(self, a: Self::Int, b: Self::Int) -> Self {
        dot_bf16_by_halves(self, a, b)
    }
    #[inline(never)]
    fn dot_bytes(sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int {
        dot_bytes_in_turn::<Self>(sum, a, b)
    }
    #[inline(never)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        from_fn(|i| Self(from_fn(|j| rows[j].0[i])))
    }
    #[inline(never)]
    fn permute(self, index: Self::Int) -> Self {
        Self(lanes!(i => self.0[index[i] as usize % LANES]))
    }
    #[inline(never)]
    fn low_fp4(a: Self::Int) -> Self {
        const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let sign = |lane: u32| if lane & 8 == 0 { 1.0 } else { -1.0 };
        Self(lanes!(i => sign(a[i]) * MAGNITUDES[(a[i] & 7) as usize]))
    }
    #[inline(never)]
    unsafe fn load_lanes<const BITS: usize>(from: *const u8) -> Self::Int {
        // SAFETY: the caller upholds the contract.
        unsafe { stream::lanes::<Self, BITS>(from) }
    }
    #[inline(never)]
    unsafe fn load_stream<const BITS: usize>(from: *const u8) -> Self::Int {
        // SAFETY: the caller upholds the contract.
        unsafe { stream::load::<Self, BITS>(from) }
    }
    #[inline(never)]
    unsafe fn store_stream<const BITS: usize>(a: Self::Int, to: *mut u8) {
        // SAFETY: the caller upholds the contract.
        unsafe { stream::store::<Self, BITS>(a, to) }
    }
    #[inline(never)]
    fn nibble_pairs(words: Self::Int) -> [Self::Int; 4] {
        dots::nibble_pairs::<Self>(words)
    }
}
