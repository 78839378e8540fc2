//! Takes the place of `cuda.rs` in builds without the feature `cuda`, where nothing calls it.

use crate::error::{Error, Result};
use crate::ffi::cuda::bridge::{CudaBound, CudaCode, CudaConstant};

pub(crate) fn cuda_kernel(
    _source: &str,
    _kernel: &str,
    _bound: &[CudaBound],
    _constants: &[CudaConstant],
    _counts_threads: bool,
    _architecture: u32,
) -> Result<CudaCode> {
    Err(Error::mlx("[cuda] mlx-primitives was built without the feature cuda"))
}

pub(crate) fn cuda_description() -> String {
    String::new()
}
