//! The definition of a fuzzer.

use std::path::Path;

use fastrand::Rng;

/// A fuzzer of one part of the library.
pub struct Fuzzer {
    pub name: &'static str,
    /// The bytes of memory that a case may take in addition to twice its input.
    pub allowance: usize,
    /// Makes the state that all cases share, with a folder for files, and returns the function that
    /// runs a case.
    pub prepare: fn(&Path) -> anyhow::Result<Run>,
}

/// Runs a case that is drawn from the generator. It panics if the library breaks a promise.
pub type Run = Box<dyn FnMut(&mut Rng) -> Case>;

/// How a case ended.
pub struct Case {
    /// The bytes of the input.
    pub input: usize,
    /// Whether the library accepted the input; otherwise it returned an `Err`.
    pub accepted: bool,
}

impl Case {
    pub fn new<T>(input: usize, result: &mlx_primitives::Result<T>) -> Self {
        if let Err(error) = result {
            assert!(!error.to_string().is_empty(), "an error without words");
        }
        Self { input, accepted: result.is_ok() }
    }
}

/// The generator of one case, which depends only on the seed, the fuzzer and the number.
pub fn generator(fuzzer: &str, seed: u64, case: u64) -> Rng {
    let name = fuzzer
        .bytes()
        .fold(0u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut rng = Rng::with_seed(seed ^ name);
    let mixed = rng.u64(..) ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Rng::with_seed(mixed)
}
