//! Kernels, and the functions that compile their bodies for the instruction sets.

#[cfg(target_arch = "aarch64")]
use super::neon::{DOTPROD, I8MM, NO_DOTS, Neon};
use super::{F32x16, scalar::Scalar};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};

/// A kernel body written once over the vector type.
///
/// The functions `on_…` are methods, so that the compiler places each with its kernel: all in one
/// module would take minutes to compile.
pub trait Kernel: Sized {
    /// Whether it gains from `avx512bf16`: it converts to bf16, or multiplies bf16 pairs or bytes.
    const BF16: bool;
    /// Whether only `avx512bf16` and `amx` run it, and in tests the portable level.
    const ONLY_BF16: bool = false;
    /// Whether it multiplies bytes, so that `dotprod` and `i8mm` run it in spite of `ONLY_BF16`.
    const BYTES: bool = false;

    /// # Safety
    /// The pointers the kernel holds must be valid for the work it describes. Implementations
    /// are `#[inline(always)]`, so that they compile with the features of the function below that
    /// calls them.
    unsafe fn run<V: F32x16>(self);

    /// # Safety
    /// The machine has the features, and the kernel's own contract holds.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,gfni")]
    #[inline(never)]
    unsafe fn on_avx512_bf16(self) {
        // SAFETY: the kernel's contract is the caller's.
        unsafe { self.run::<Avx512<true>>() }
    }

    /// # Safety
    /// As for [`on_avx512_bf16`](Self::on_avx512_bf16).
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    #[inline(never)]
    unsafe fn on_avx512(self) {
        // SAFETY: the kernel's contract is the caller's.
        unsafe { self.run::<Avx512<false>>() }
    }

    /// # Safety
    /// As for [`on_avx512_bf16`](Self::on_avx512_bf16).
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline(never)]
    unsafe fn on_avx2(self) {
        // SAFETY: the kernel's contract is the caller's.
        unsafe { self.run::<Avx2>() }
    }

    /// # Safety
    /// As for [`on_neon`](Self::on_neon).
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "neon,dotprod,i8mm")]
    #[inline(never)]
    unsafe fn on_i8mm(self) {
        // SAFETY: the kernel's contract is the caller's.
        unsafe { self.run::<Neon<I8MM>>() }
    }

    /// # Safety
    /// As for [`on_neon`](Self::on_neon).
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "neon,dotprod")]
    #[inline(never)]
    unsafe fn on_dotprod(self) {
        // SAFETY: the kernel's contract is the caller's.
        unsafe { self.run::<Neon<DOTPROD>>() }
    }

    /// # Safety
    /// The machine has the features, and the kernel's own contract holds.
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "neon")]
    #[inline(never)]
    unsafe fn on_neon(self) {
        // SAFETY: the kernel's contract is the caller's.
        unsafe { self.run::<Neon<NO_DOTS>>() }
    }

    /// # Safety
    /// The kernel's own contract holds.
    #[inline(never)]
    unsafe fn on_scalar(self) {
        // SAFETY: the kernel's contract is the caller's.
        unsafe { self.run::<Scalar>() }
    }
}

/// Runs parts of a kernel as functions, so that all callers in the kernel share one copy.
pub trait Parts {
    /// # Safety
    /// The machine has the features of the vectors, and the part's own contract holds.
    unsafe fn part<K: Kernel>(part: K);
}

#[cfg(target_arch = "x86_64")]
impl<const BF16: bool> Parts for Avx512<BF16> {
    #[inline(always)]
    unsafe fn part<K: Kernel>(part: K) {
        // SAFETY: the caller's contract.
        unsafe { if BF16 { part.on_avx512_bf16() } else { part.on_avx512() } }
    }
}

#[cfg(target_arch = "x86_64")]
impl Parts for Avx2 {
    #[inline(always)]
    unsafe fn part<K: Kernel>(part: K) {
        // SAFETY: the caller's contract.
        unsafe { part.on_avx2() }
    }
}

#[cfg(target_arch = "aarch64")]
impl<const DOTS: u8> Parts for Neon<DOTS> {
    #[inline(always)]
    unsafe fn part<K: Kernel>(part: K) {
        // SAFETY: the caller's contract.
        unsafe {
            match DOTS {
                I8MM if K::BYTES => part.on_i8mm(),
                DOTPROD if K::BYTES => part.on_dotprod(),
                _ => part.on_neon(),
            }
        }
    }
}

impl Parts for Scalar {
    #[inline(always)]
    unsafe fn part<K: Kernel>(part: K) {
        // SAFETY: the caller's contract.
        unsafe { part.on_scalar() }
    }
}
