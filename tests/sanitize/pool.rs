//! The kernels' thread pool, with its tests, for ThreadSanitizer.

#![allow(dead_code)]

extern crate self as mlx_primitives_kernels;

#[path = "../../crates/kernels/src/pool.rs"]
pub mod pool;
#[path = "../../crates/kernels/tests/suite/pool.rs"]
mod tests;

mod simd {
    /// The kernels' stores bypass the caches; these tests do not use such stores.
    pub fn fence() {}

    pub fn prefetch_far(_from: *const u8, _bytes: usize) {}
}
