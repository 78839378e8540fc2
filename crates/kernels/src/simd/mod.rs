//! Sixteen-lane vectors, with one implementation for each instruction set (a "level").
//!
//! Every level processes blocks of sixteen floats and adds up the lanes of a block in the same
//! order. So a kernel's result does not depend on the level that ran it, except where only some of
//! the levels multiply pairs of bf16, bytes, or tiles.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dots;
mod floats;
mod kernel;
mod lanes;
pub mod level;
mod memory;
#[cfg(target_arch = "aarch64")]
mod neon;
mod register;
mod registers;
mod scalar;
mod shuffles;
mod stream;
pub mod tiles;
pub mod transpose;
pub use kernel::{F32x16, Function, Kernel, Parts};
pub use lanes::{INTEGERS, LANES, Lanes, Register};
pub use level::Level;
pub use memory::{Lines, fence, prefetch, prefetch_block, prefetch_far};
#[cfg(target_arch = "x86_64")]
pub use registers::Avx512;
