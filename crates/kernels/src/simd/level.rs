//! The instruction set that runs the kernels. It is detected once, and an environment variable can
//! override it.

use std::sync::OnceLock;

use super::Kernel;
#[cfg(target_arch = "x86_64")]
use super::avx512::amx;

/// An instruction set that this build supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// `Avx512Bf16` and AMX instructions for products of tiles.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// `Avx512Bf16`, but matrices of bf16 are multiplied as f32, for Intel's processors. On a Xeon
    /// of 2023, an instruction for sixteen pairs of bf16 takes as long as four for sixteen floats.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// `Avx2` and AVX-VNNI, dot products of bytes, for Intel's processors without AVX-512.
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// `Neon` and instructions for products of unsigned with signed bytes.
    #[cfg(target_arch = "aarch64")]
    I8mm,
    /// `Neon` and instructions for products of signed bytes.
    #[cfg(target_arch = "aarch64")]
    Dotprod,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Scalar,
    /// `Scalar`, with loops that stand in for tile instructions. Tests with the feature
    /// `reference-tiles` use it to check the code that multiplies tiles.
    ScalarTiles,
}

impl Level {
    /// All levels except `ScalarTiles`, the best first.
    const ALL: &[Level] = &[
        #[cfg(target_arch = "x86_64")]
        Level::Amx,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Bf16,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2Vnni,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2,
        #[cfg(target_arch = "aarch64")]
        Level::I8mm,
        #[cfg(target_arch = "aarch64")]
        Level::Dotprod,
        #[cfg(target_arch = "aarch64")]
        Level::Neon,
        Level::Scalar,
    ];

    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Amx => "amx",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 => "avx512bf16",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2Vnni => "avx2vnni",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => "i8mm",
            #[cfg(target_arch = "aarch64")]
            Level::Dotprod => "dotprod",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
            Level::Scalar => "scalar",
            Level::ScalarTiles => "scalar with tiles",
        }
    }

    fn supported(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Amx => Level::Avx512Bf16.supported() && amx::is_permitted(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni => Level::Avx512Bf16.supported() && is_from_intel(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 => {
                Level::Avx512.supported()
                    && is_x86_feature_detected!("avx512bf16")
                    && is_x86_feature_detected!("avx512vnni")
                    && is_x86_feature_detected!("gfni")
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2Vnni => Level::Avx2.supported() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "aarch64")]
            Level::I8mm => {
                Level::Dotprod.supported() && std::arch::is_aarch64_feature_detected!("i8mm")
            }
            #[cfg(target_arch = "aarch64")]
            Level::Dotprod => {
                Level::Neon.supported() && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            #[cfg(target_arch = "aarch64")]
            Level::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Level::Scalar | Level::ScalarTiles => true,
        }
    }

    /// Whether vectors have eight floats, on x86-64.
    pub fn is_avx2(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self, Level::Avx2 | Level::Avx2Vnni);
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }

    /// The levels that this machine can run, except `ScalarTiles`, the best first.
    pub fn available() -> impl Iterator<Item = Level> {
        Self::ALL.iter().copied().filter(|level| level.supported())
    }

    /// Returns the level named `wanted` if this machine can run it, or else the best level of this
    /// machine.
    pub fn choose(wanted: Option<&str>) -> Level {
        Self::available()
            .find(|level| wanted.is_some_and(|name| name.eq_ignore_ascii_case(level.name())))
            .or_else(|| Self::available().next())
            .unwrap_or(Level::Scalar)
    }

    /// Returns the level of this process: the level that `MLX_PRIMITIVES_SIMD` names (amx,
    /// avx512vnni, avx512bf16, avx512, avx2vnni, avx2, i8mm, dotprod, neon, scalar), or else the
    /// best level.
    pub fn current() -> Level {
        static CURRENT: OnceLock<Level> = OnceLock::new();
        *CURRENT.get_or_init(|| Self::choose(Some(&Self::wanted())))
    }

    /// The value of `MLX_PRIMITIVES_SIMD`, or an empty string if the variable is not set.
    pub fn wanted() -> String {
        let text = std::env::var_os("MLX_PRIMITIVES_SIMD").unwrap_or_default();
        text.to_string_lossy().into_owned()
    }

    /// Runs a kernel with the vectors and instructions of this level, or of a lower one if the
    /// kernel's constants say that it does not need what this level adds.
    ///
    /// # Safety
    /// `self` came from [`Level::current`] or [`Level::available`], or is a scalar level. The
    /// caller upholds the kernel's contract.
    #[inline]
    pub unsafe fn run<K: Kernel>(self, kernel: K) {
        // SAFETY: the caller upholds the contract; `current` and `available` return only levels
        // that this machine supports.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Level::Amx | Level::Avx512Vnni | Level::Avx512Bf16 if K::BF16 => {
                    kernel.on_avx512_bf16()
                }
                #[cfg(target_arch = "aarch64")]
                Level::I8mm if K::BYTES => kernel.on_i8mm(),
                #[cfg(target_arch = "aarch64")]
                Level::Dotprod if K::BYTES => kernel.on_dotprod(),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2Vnni if K::DOTS => kernel.on_avx2_vnni(),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 if K::PAIRS => kernel.on_avx512(),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2Vnni | Level::Avx2 if K::PAIRS => kernel.on_avx2(),
                _ if K::ONLY_BF16 && !cfg!(feature = "reference-tiles") => self.cannot_run(),
                Level::Scalar | Level::ScalarTiles => kernel.on_scalar(),
                _ if K::ONLY_BF16 => self.cannot_run(),
                #[cfg(target_arch = "x86_64")]
                Level::Amx | Level::Avx512Vnni | Level::Avx512Bf16 | Level::Avx512 => {
                    kernel.on_avx512()
                }
                #[cfg(target_arch = "x86_64")]
                Level::Avx2Vnni | Level::Avx2 => kernel.on_avx2(),
                #[cfg(target_arch = "aarch64")]
                Level::I8mm | Level::Dotprod | Level::Neon => kernel.on_neon(),
            }
        }
    }
    fn cannot_run(self) -> ! {
        unreachable!("a kernel of other instructions on {}", self.name())
    }
}

/// Whether Intel made the processor.
#[cfg(target_arch = "x86_64")]
fn is_from_intel() -> bool {
    // SAFETY: every x86-64 processor has `cpuid` and its leaf 0.
    #[allow(unused_unsafe, reason = "Rust 1.89 marks the intrinsic unsafe")]
    let name = unsafe { std::arch::x86_64::__cpuid(0) };
    [name.ebx, name.edx, name.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
}
