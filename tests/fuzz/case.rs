//! The definition of a fuzzer.

use std::path::Path;

use fastrand::Rng;

/// A fuzzer of one part of the library.
pub struct Fuzzer {
    pub name: &'static str,
    /// A case may take twice the size of its input plus this many bytes of memory.
    pub allowance: usize,
    /// Creates the state that all cases share, and returns the function that runs a case. The
    /// argument is a folder for files.
    pub prepare: fn(&Path) -> anyhow::Result<Run>,
}

/// Draws a case from the generator and runs it. Panics if the library breaks a promise.
pub type Run = Box<dyn FnMut(&mut Rng) -> Case>;

/// How a case ended.
pub struct Case {
    /// The bytes of the input.
    pub input: usize,
    /// True if the library accepted the input, and false if it returned an `Err`.
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

/// The random generator of one case. It depends only on the seed, the fuzzer's name and the case's
/// number.
pub fn generator(fuzzer: &str, seed: u64, case: u64) -> Rng {
    let name = fuzzer
        .bytes()
        .fold(0u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut rng = Rng::with_seed(seed ^ name);
    let mixed = rng.u64(..) ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Rng::with_seed(mixed)
}
