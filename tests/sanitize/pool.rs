//! Compiles the kernels' thread pool and its tests alone, for ThreadSanitizer.

#![allow(dead_code)]

extern crate self as mlx_primitives_kernels;

#[path = "../../crates/kernels/src/pool.rs"]
pub mod pool;
#[path = "../../crates/kernels/tests/suite/pool.rs"]
mod tests;

mod simd {
    /// Does nothing. The real function orders stores that bypass the caches, and these tests have
    /// none.
    pub fn fence() {}

    pub fn prefetch_far(_from: *const u8, _bytes: usize) {}
}
