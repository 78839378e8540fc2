//! The kernels' thread pool alone, with its own tests, for ThreadSanitizer.

#![allow(dead_code)]

#[path = "../../crates/kernels/src/pool.rs"]
mod pool;

mod simd {
    /// Kernels store past the caches; these tests do not.
    pub fn fence() {}
}
