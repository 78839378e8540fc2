//! Makes a Metal pipeline of each kernel of `metal/`, to learn whether this system's compiler and
//! GPU accept it, and how many threads a threadgroup can have.

use crate::error::Result;
use crate::ffi::bridge::{self as ffi, MetalKernel};

/// A kernel of this crate.
pub struct Pipeline(MetalKernel);

/// All kernels of this crate; none if it was built without Metal.
pub fn all() -> Vec<Pipeline> {
    ffi::metal_kernels().into_iter().map(Pipeline).collect()
}

impl Pipeline {
    /// The file that the kernel is in, `metal/<stem>.metal`.
    pub fn stem(&self) -> &str {
        &self.0.stem
    }

    /// The name of the kernel.
    pub fn kernel(&self) -> &str {
        &self.0.name
    }

    /// The most threads of a threadgroup. Loads or compiles the kernel's library and makes its
    /// pipeline, once in a process.
    ///
    /// # Errors
    ///
    /// Returns an error if Metal does not compile, load or accept the kernel.
    pub fn most_threads(&self) -> Result<u32> {
        Ok(ffi::metal_kernel_threads(&self.0)?)
    }
}
