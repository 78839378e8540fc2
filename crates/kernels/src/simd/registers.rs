//! The vector types of the instruction sets.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::float32x4_t;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};

use super::lanes::LANES;

/// A block of AVX2. With `DOTS` the machine also has AVX-VNNI, dot products of bytes.
#[derive(Clone, Copy)]
#[repr(C)]
#[cfg(target_arch = "x86_64")]
pub struct Avx2<const DOTS: bool>(pub(super) __m256, pub(super) __m256);

/// A block of AVX-512. With `BF16` the machine also has AVX512_BF16, AVX512_VNNI and GFNI.
#[derive(Clone, Copy)]
#[repr(transparent)]
#[cfg(target_arch = "x86_64")]
pub struct Avx512<const BF16: bool>(pub(super) __m512);

/// A block of NEON. `DOTS` says which dot-product instructions for bytes the processor has.
#[derive(Clone, Copy)]
#[repr(transparent)]
#[cfg(target_arch = "aarch64")]
pub struct Neon<const DOTS: u8>(pub(super) [float32x4_t; 4]);
/// The processor has no dot-product instruction for bytes.
#[cfg(target_arch = "aarch64")]
pub const NO_DOTS: u8 = 0;
/// FEAT_DotProd: dot products of signed bytes.
#[cfg(target_arch = "aarch64")]
pub const DOTPROD: u8 = 1;
/// FEAT_I8MM: also dot products of unsigned bytes with signed bytes.
#[cfg(target_arch = "aarch64")]
pub const I8MM: u8 = 2;

#[derive(Clone, Copy)]
pub struct Scalar(pub(super) [f32; LANES]);
