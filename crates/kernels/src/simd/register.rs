//! Implements [`Register`] for the registers that make up blocks of sixteen lanes.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::kernel::F32x16;
use super::lanes::{LANES, Register};

/// A complete block. On levels with one register per block, the block is the register.
impl<V: F32x16> Register for V {
    const LANES: usize = LANES;
    const ROWS: usize = 4;
    const DECODED_ROWS: usize = 6;
    #[inline(always)]
    fn zero() -> Self {
        V::splat(0.0)
    }
    #[inline(always)]
    unsafe fn read(from: *const f32) -> Self {
        // SAFETY: the caller upholds the contract.
        unsafe { V::load(from) }
    }
    #[inline(always)]
    unsafe fn write(self, to: *mut f32) {
        // SAFETY: the caller upholds the contract.
        unsafe { self.store(to) }
    }
    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        a.mul_add(b, self)
    }
}

/// An AVX2 register, which is half of a block.
#[cfg(target_arch = "x86_64")]
impl Register for __m256 {
    const LANES: usize = 8;
    const ROWS: usize = 3;
    const DECODED_ROWS: usize = 4;
    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: this function and the ones below are used only on a machine with AVX2.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn read(from: *const f32) -> Self {
        // SAFETY: the caller upholds the contract.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn write(self, to: *mut f32) {
        // SAFETY: the caller upholds the contract.
        unsafe { _mm256_storeu_ps(to, self) }
    }
    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: as in `zero`.
        unsafe { _mm256_fmadd_ps(a, b, self) }
    }
}

/// A NEON register, which is a quarter of a block.
#[cfg(target_arch = "aarch64")]
impl Register for float32x4_t {
    const LANES: usize = 4;
    const ROWS: usize = 4;
    const DECODED_ROWS: usize = 6;
    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: NEON is part of every aarch64 target that this crate builds for.
        unsafe { vdupq_n_f32(0.0) }
    }
    #[inline(always)]
    unsafe fn read(from: *const f32) -> Self {
        // SAFETY: the caller upholds the contract.
        unsafe { vld1q_f32(from) }
    }
    #[inline(always)]
    unsafe fn write(self, to: *mut f32) {
        // SAFETY: the caller upholds the contract.
        unsafe { vst1q_f32(to, self) }
    }
    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: as in `zero`.
        unsafe { vfmaq_f32(self, a, b) }
    }
}
