//! What MLX's allocator holds, in bytes.
//!
//! ```
//! use mlx_primitives::{Array, memory};
//!
//! memory::reset_peak_memory();
//! let x = Array::ones::<f32>(&[1024])?;
//! x.eval()?;
//! assert!(memory::active_memory() >= 4096 && memory::peak_memory() >= 4096);
//! drop(x);
//! memory::clear_cache()?;
//! # Ok::<(), mlx_primitives::Error>(())
//! ```

use crate::error::Result;
use crate::ffi::bridge as ffi;

/// Bytes of live arrays.
pub fn active_memory() -> usize {
    ffi::active_memory()
}

/// The most that [`active_memory`] has been since the start or [`reset_peak_memory`].
pub fn peak_memory() -> usize {
    ffi::peak_memory()
}

/// Bytes kept for reuse by later arrays.
pub fn cache_memory() -> usize {
    ffi::cache_memory()
}

/// Starts a new [`peak_memory`].
pub fn reset_peak_memory() {
    ffi::reset_peak_memory();
}

/// Gives the cached bytes back to the system.
pub fn clear_cache() -> Result<()> {
    Ok(ffi::clear_cache()?)
}

/// Sets how many bytes are kept for reuse, and returns the limit before. Without a GPU MLX keeps
/// 32 MB: larger arrays then get new pages from the system, which cost more than most ops.
pub fn set_cache_limit(bytes: usize) -> Result<usize> {
    Ok(ffi::set_cache_limit(bytes)?)
}
