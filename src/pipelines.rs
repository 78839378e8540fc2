//! Makes a Metal pipeline of each kernel in `metal/`. This tests that the system's compiler and the
//! GPU accept the kernel, and finds out how many threads a threadgroup can have.

use crate::error::Result;
use crate::ffi::bridge::{self as ffi, MetalKernel};

/// A kernel of this crate.
pub struct Pipeline(MetalKernel);

/// All kernels of this crate. The list is empty if the crate was built without Metal.
pub fn all() -> Vec<Pipeline> {
    ffi::metal_kernels().into_iter().map(Pipeline).collect()
}

impl Pipeline {
    /// The name of the kernel's file, `metal/<stem>.metal`, without folder and extension.
    pub fn stem(&self) -> &str {
        &self.0.stem
    }

    /// The name of the kernel.
    pub fn kernel(&self) -> &str {
        &self.0.name
    }

    /// The maximum number of threads of a threadgroup. The first call for a kernel in a process
    /// loads or compiles its library and makes the pipeline.
    ///
    /// # Errors
    ///
    /// Returns an error if Metal fails to compile or load the kernel, or refuses it.
    pub fn most_threads(&self) -> Result<u32> {
        Ok(ffi::metal_kernel_threads(&self.0)?)
    }
}
