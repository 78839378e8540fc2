//! NEON, the aarch64 baseline. A block of sixteen lanes is four registers; the first has the low
//! lanes.

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::{Add, Div, Mul, Sub};

use super::dots::dot_bytes_in_turn;
use super::registers::{DOTPROD, I8MM, Neon};
use super::{F32x16, LANES, Lanes, stream::Places, tiles::Tiles};

const INDEX: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Wraps intrinsics. If one accesses memory, the contract of the method that uses it allows this,
/// or the memory is an array of the method or of this file.
macro_rules! lanes {
    ($call:expr) => {
        // SAFETY: NEON is part of every aarch64 target that this crate builds for.
        unsafe { $call }
    };
}

/// Evaluates an expression for each of the four registers.
macro_rules! each {
    ($i:ident => $call:expr) => {
        lanes!([
            {
                const $i: usize = 0;
                $call
            },
            {
                const $i: usize = 1;
                $call
            },
            {
                const $i: usize = 2;
                $call
            },
            {
                const $i: usize = 3;
                $call
            },
        ])
    };
}

/// Uses assembly: all aarch64 processors have the instruction, but its intrinsic needs unstable
/// `f16`.
#[inline(always)]
fn widen_f16(half: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: the instruction only converts one register to another.
    unsafe {
        asm!("fcvtl {0:v}.4s, {1:v}.4h", lateout(vreg) wide, in(vreg) half,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

#[inline(always)]
fn narrow_f16(wide: float32x4_t) -> uint16x4_t {
    let half: uint16x4_t;
    // SAFETY: the instruction only converts one register to another. It rounds to the nearest, ties
    // to even, by default.
    unsafe {
        asm!("fcvtn {0:v}.4h, {1:v}.4s", lateout(vreg) half, in(vreg) wide,
            options(pure, nomem, nostack, preserves_flags));
    }
    half
}

/// Adds to each lane the four products of its bytes, which are signed in `a` and `b`. In assembly,
/// because the intrinsic is not stable.
///
/// # Safety
/// The processor has FEAT_DotProd, and the caller is compiled for it.
#[inline(always)]
unsafe fn dot_signed(mut sum: uint32x4_t, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
    // SAFETY: the caller upholds the contract; the instruction accesses only registers.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// Like [`dot_signed`], but the bytes of `a` are unsigned.
///
/// # Safety
/// The contract of [`dot_signed`] applies, with FEAT_I8MM instead.
#[inline(always)]
unsafe fn dot_mixed(mut sum: uint32x4_t, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
    // SAFETY: as in `dot_signed`.
    unsafe {
        asm!("usdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

impl<const DOTS: u8> Add for Neon<DOTS> {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(each!(I => vaddq_f32(self.0[I], other.0[I])))
    }
}

impl<const DOTS: u8> Sub for Neon<DOTS> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(each!(I => vsubq_f32(self.0[I], other.0[I])))
    }
}

impl<const DOTS: u8> Mul for Neon<DOTS> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(each!(I => vmulq_f32(self.0[I], other.0[I])))
    }
}

impl<const DOTS: u8> Div for Neon<DOTS> {
    type Output = Self;
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        Self(each!(I => vdivq_f32(self.0[I], other.0[I])))
    }
}

impl<const DOTS: u8> Tiles for Neon<DOTS> {}

impl<const DOTS: u8> Lanes for Neon<DOTS> {
    type Register = float32x4_t;
    type Int = [uint32x4_t; 4];
    type Half = [uint16x4_t; 4];

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([lanes!(vdupq_n_f32(value)); 4])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // The caller vouches for sixteen readable floats. `vld1q` needs only the alignment of a
        // float.
        Self(each!(I => vld1q_f32(from.add(4 * I))))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        each!(I => vst1q_f32(to.add(4 * I), self.0[I]));
    }
    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self::Half {
        each!(I => vld1_u16(from.add(4 * I)))
    }
    #[inline(always)]
    unsafe fn store_half(half: Self::Half, to: *mut u16) {
        each!(I => vst1_u16(to.add(4 * I), half[I]));
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(each!(I => vfmaq_f32(addend.0[I], self.0[I], factor.0[I])))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(each!(I => vmaxq_f32(self.0[I], other.0[I])))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Self(each!(I => vabsq_f32(self.0[I])))
    }
    #[inline(always)]
    fn floor(self) -> Self {
        Self(each!(I => vrndmq_f32(self.0[I])))
    }
    #[inline(always)]
    fn swap_pairs(self) -> Self {
        Self(each!(I => vrev64q_f32(self.0[I])))
    }
    #[inline(always)]
    fn reduce_add(self) -> f32 {
        let [a, b, c, d] = self.0;
        lanes!({
            let sum = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let sum = vadd_f32(vget_low_f32(sum), vget_high_f32(sum));
            vget_lane_f32::<0>(sum) + vget_lane_f32::<1>(sum)
        })
    }
    #[inline(always)]
    fn reduce_max(self) -> f32 {
        let [a, b, c, d] = self.0;
        lanes!(vmaxvq_f32(vmaxq_f32(vmaxq_f32(a, c), vmaxq_f32(b, d))))
    }
    #[inline(always)]
    fn any_above(self, limit: f32) -> bool {
        let [a, b, c, d] = each!(I => vcgtq_f32(self.0[I], vdupq_n_f32(limit)));
        lanes!(vmaxvq_u32(vorrq_u32(vorrq_u32(a, b), vorrq_u32(c, d)))) != 0
    }
    #[inline(always)]
    fn keep_first(self, count: usize, fill: f32) -> Self {
        let (count, fill) = lanes!((vdupq_n_u32(count as u32), vdupq_n_f32(fill)));
        Self(each!(I => {
            let index = vld1q_u32(INDEX.as_ptr().add(4 * I));
            vbslq_f32(vcltq_u32(index, count), self.0[I], fill)
        }))
    }

    #[inline(always)]
    fn splat_int(value: i32) -> Self::Int {
        [lanes!(vdupq_n_u32(value as u32)); 4]
    }
    #[inline(always)]
    fn add_int(a: Self::Int, b: Self::Int) -> Self::Int {
        each!(I => vaddq_u32(a[I], b[I]))
    }
    #[inline(always)]
    fn and_int(a: Self::Int, b: Self::Int) -> Self::Int {
        each!(I => vandq_u32(a[I], b[I]))
    }
    #[inline(always)]
    fn shift_left<const N: u32>(a: Self::Int) -> Self::Int {
        each!(I => vshlq_u32(a[I], vdupq_n_s32(N as i32)))
    }
    #[inline(always)]
    fn shift_right<const N: u32>(a: Self::Int) -> Self::Int {
        // `vshlq` shifts right by a negative count.
        each!(I => vshlq_u32(a[I], vdupq_n_s32(-(N as i32))))
    }
    #[inline(always)]
    fn to_int(self) -> Self::Int {
        each!(I => vreinterpretq_u32_s32(vcvtq_s32_f32(self.0[I])))
    }
    #[inline(always)]
    fn from_int(a: Self::Int) -> Self {
        Self(each!(I => vcvtq_f32_s32(vreinterpretq_s32_u32(a[I]))))
    }
    #[inline(always)]
    fn to_bits(self) -> Self::Int {
        each!(I => vreinterpretq_u32_f32(self.0[I]))
    }
    #[inline(always)]
    fn from_bits(a: Self::Int) -> Self {
        Self(each!(I => vreinterpretq_f32_u32(a[I])))
    }
    #[inline(always)]
    fn xor_bits(self, a: Self::Int) -> Self {
        Self(each!(I => vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(self.0[I]), a[I]))))
    }
    #[inline(always)]
    fn select(mask: Self::Int, a: Self, b: Self) -> Self {
        Self(each!(I => vbslq_f32(vtstq_u32(mask[I], mask[I]), a.0[I], b.0[I])))
    }
    #[inline(always)]
    fn is_nan(self) -> Self::Int {
        each!(I => vmvnq_u32(vceqq_f32(self.0[I], self.0[I])))
    }

    #[inline(always)]
    fn from_f16(half: Self::Half) -> Self {
        Self(half.map(widen_f16))
    }
    #[inline(always)]
    fn to_f16(self) -> Self::Half {
        self.0.map(narrow_f16)
    }
    #[inline(always)]
    fn widen(half: Self::Half) -> Self::Int {
        each!(I => vmovl_u16(half[I]))
    }
    #[inline(always)]
    fn narrow(a: Self::Int) -> Self::Half {
        each!(I => vmovn_u32(a[I]))
    }
    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> Self::Int {
        // The caller vouches for sixteen readable bytes.
        lanes!({
            let bytes = vld1q_u8(from);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            [
                vmovl_u16(vget_low_u16(low)),
                vmovl_high_u16(low),
                vmovl_u16(vget_low_u16(high)),
                vmovl_high_u16(high),
            ]
        })
    }
    #[inline(always)]
    unsafe fn store_bytes(a: Self::Int, to: *mut u8) {
        // The caller vouches for sixteen writable bytes.
        lanes!({
            let low = vmovn_high_u32(vmovn_u32(a[0]), a[1]);
            let high = vmovn_high_u32(vmovn_u32(a[2]), a[3]);
            vst1q_u8(to, vmovn_high_u16(vmovn_u16(low), high));
        });
    }
}

impl<const DOTS: u8> F32x16 for Neon<DOTS> {
    #[inline(always)]
    unsafe fn load_stream<const BITS: usize>(from: *const u8) -> Self::Int {
        // Each lane gets the two bytes that contain its number.
        let (bytes, shifts) = const { (&Places::<BITS>::PAIRS, &Places::<BITS>::SHIFTS) };
        let mut stream = [0u8; 16];
        // SAFETY: the caller vouches for `2 * BITS` bytes, which are at most sixteen.
        unsafe { std::ptr::copy_nonoverlapping(from, stream.as_mut_ptr(), 2 * BITS) };
        each!(I => {
            let order = vld1q_u8(bytes.as_ptr().add(16 * I));
            let words = vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(stream.as_ptr()), order));
            vshlq_u32(words, vnegq_s32(vld1q_s32(shifts.as_ptr().add(4 * I).cast())))
        })
    }
    #[inline(always)]
    fn zip_words(a: Self::Int, b: Self::Int) -> [Self::Int; 2] {
        let pair = |a, b| lanes!((vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
        [
            each!(I => { let (a, b) = pair(a[I], b[I]); vreinterpretq_u32_u64(vtrn1q_u64(a, b)) }),
            each!(I => { let (a, b) = pair(a[I], b[I]); vreinterpretq_u32_u64(vtrn2q_u64(a, b)) }),
        ]
    }
    #[inline(always)]
    fn unzip_lanes(a: Self::Int, b: Self::Int) -> [Self::Int; 2] {
        [each!(I => vuzp1q_u32(a[I], b[I])), each!(I => vuzp2q_u32(a[I], b[I]))]
    }
    #[inline(always)]
    fn unzip_quarters(a: Self::Int, b: Self::Int) -> [Self::Int; 2] {
        [[a[0], a[2], b[0], b[2]], [a[1], a[3], b[1], b[3]]]
    }
    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let mut out = rows;
        for i in 0..LANES / 4 {
            for j in 0..LANES / 4 {
                let [a, b, c, d] = [0, 1, 2, 3].map(|k| rows[4 * i + k].0[j]);
                let squares = lanes!([
                    [vtrn1q_f32(a, b), vtrn1q_f32(c, d)],
                    [vtrn2q_f32(a, b), vtrn2q_f32(c, d)],
                ]);
                for (k, [ab, cd]) in squares.into_iter().enumerate() {
                    let (ab, cd) = lanes!((vreinterpretq_f64_f32(ab), vreinterpretq_f64_f32(cd)));
                    let (low, high) = lanes!((vtrn1q_f64(ab, cd), vtrn2q_f64(ab, cd)));
                    out[4 * j + k].0[i] = lanes!(vreinterpretq_f32_f64(low));
                    out[4 * j + k + 2].0[i] = lanes!(vreinterpretq_f32_f64(high));
                }
            }
        }
        out
    }
    #[inline(always)]
    fn permute(self, index: Self::Int) -> Self {
        // Looks up the four bytes of each lane in the table of all sixty-four bytes.
        let [a, b, c, d] = each!(I => vreinterpretq_u8_f32(self.0[I]));
        Self(each!(I => {
            let first = vmulq_n_u32(index[I], 0x0404_0404);
            let places = vreinterpretq_u8_u32(vaddq_u32(first, vdupq_n_u32(0x0302_0100)));
            vreinterpretq_f32_u8(vqtbl4q_u8(uint8x16x4_t(a, b, c, d), places))
        }))
    }
    #[inline(always)]
    fn dot_bytes(sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int {
        match DOTS {
            // SAFETY: with this `DOTS`, the type is used only on processors that have the
            // instruction.
            I8MM => each!(I => dot_mixed(sum[I], a[I], b[I])),
            DOTPROD => each!(I => {
                // Flipping the top bit of a byte of `a` subtracts 128 and makes the byte signed.
                // The code adds the products with 128 separately.
                let (top, ones) = (vdupq_n_u32(0x8080_8080), vdupq_n_u32(0x0101_0101));
                let of_b = vshlq_n_u32::<7>(dot_signed(vdupq_n_u32(0), ones, b[I]));
                dot_signed(vaddq_u32(sum[I], of_b), veorq_u32(a[I], top), b[I])
            }),
            _ => dot_bytes_in_turn::<Self>(sum, a, b),
        }
    }
    #[inline(always)]
    fn dot_low_bytes(sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int {
        match DOTS {
            // SAFETY: with this `DOTS`, the type is used only on processors that have the
            // instruction.
            DOTPROD | I8MM => each!(I => dot_signed(sum[I], a[I], b[I])),
            _ => Self::dot_bytes(sum, a, b),
        }
    }
}
