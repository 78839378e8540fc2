//! The memory of MLX's allocator, in bytes, and its limits.
//!
//! # When memory runs out
//!
//! The system may refuse memory for the result of one of our primitives, for a copy of an input in
//! row-major order or in another type, or for [`Array::astype`](crate::Array::astype).
//! Evaluating the array then returns an error, and later evaluations are not affected. This crate
//! cannot turn four cases into an error:
//!
//! - MLX 0.32's own ops on a CPU write to a null pointer if the system refuses them memory, which
//!   ends the process. On a GPU they return an error. Type conversions in functions that
//!   [`compile`](crate::transforms::compile) traces are such ops, since MLX fuses them with
//!   neighboring ops.
//! - Rust's own collections end the process when the system refuses them memory, as in every Rust
//!   program. They are small compared with the arrays: names, tokens, texts, a checkpoint's JSON
//!   files. The `mlx-primitives` command then prints "out of memory" and exits with status 1.
//! - MLX 0.32 ends the process if the system refuses a thread for one of its streams.
//! - Unless `vm.overcommit_memory` is 2, Linux grants more memory than the machine has. When
//!   programs use more of it than there is, Linux kills this process or another one.
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

use crate::array::{Array, to_list};
use crate::device::{self, Device};
use crate::error::Result;
use crate::ffi::bridge as ffi;

/// Starts to move the memory of evaluated arrays to the NVIDIA GPU that ops of this thread use.
/// Otherwise a kernel that reads a small part of an array waits while the system moves that part.
/// Does nothing for other devices and for arrays that do not fit.
///
/// # Errors
///
/// Returns an error if CUDA reports one.
#[doc(hidden)]
pub fn prefetch<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    if !crate::support::CUDA || device::current()? == Device::Cpu {
        return Ok(());
    }
    Ok(ffi::prefetch(&to_list(arrays))?)
}

/// The bytes of live arrays.
pub fn active_memory() -> usize {
    ffi::active_memory()
}

/// The largest value of [`active_memory`], in bytes, since the process started or since the last
/// [`reset_peak_memory`].
pub fn peak_memory() -> usize {
    ffi::peak_memory()
}

/// The bytes that MLX keeps for reuse by later arrays.
pub fn cache_memory() -> usize {
    ffi::cache_memory()
}

/// Restarts the measurement of [`peak_memory`].
pub fn reset_peak_memory() {
    ffi::reset_peak_memory();
}

/// Returns the memory of [`cache_memory`] to the system.
///
/// # Errors
///
/// Returns an error if the memory cannot be given back.
pub fn clear_cache() -> Result<()> {
    Ok(ffi::clear_cache()?)
}

/// Sets how many bytes MLX keeps for reuse, and returns the previous limit. Without a GPU, MLX
/// keeps 32 MB by default: larger arrays then get new pages from the system, which cost more time
/// than most ops.
///
/// # Errors
///
/// Returns an error if MLX's allocator cannot be made.
pub fn set_cache_limit(bytes: usize) -> Result<usize> {
    Ok(ffi::set_cache_limit(bytes)?)
}

/// The limit, in bytes of arrays, above which MLX waits for running work and returns cached buffers
/// to the system before it allocates more. Evaluations may exceed this limit.
pub fn memory_limit() -> usize {
    ffi::memory_limit()
}

/// Sets [`memory_limit`], in bytes, and returns the previous limit. By default it is 1.5 times the
/// GPU's recommended working set or, without a GPU, 0.8 times the machine's memory.
///
/// # Errors
///
/// Returns an error if MLX's allocator cannot be made.
pub fn set_memory_limit(bytes: usize) -> Result<usize> {
    Ok(ffi::set_memory_limit(bytes)?)
}

/// Sets how many bytes stay resident for the GPU, and returns the previous limit. The default is 0.
///
/// This is of use only on macOS 15 and later, which may page out a model's weights between tokens
/// unless the limit covers them. It should be at most [`recommended_working_set`]. Without a GPU
/// the call changes nothing and returns 0.
///
/// # Errors
///
/// Returns an error if `bytes` is more than the system allows.
///
/// ```
/// use mlx_primitives::{device::Device, memory};
///
/// if !Device::Gpu.is_available()? {
///     assert_eq!((memory::set_wired_limit(1 << 30)?, memory::set_wired_limit(0)?), (0, 0));
/// }
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn set_wired_limit(bytes: usize) -> Result<usize> {
    Ok(ffi::set_wired_limit(bytes)?)
}

/// The most bytes that the system recommends to keep resident for the GPU; `None` on a CPU, and on
/// a GPU that is not Apple's.
///
/// # Errors
///
/// Returns an error if MLX cannot find out whether the system has a GPU.
pub fn recommended_working_set() -> Result<Option<usize>> {
    if device::current()? == Device::Cpu {
        return Ok(None);
    }
    Ok(Some(ffi::recommended_working_set()?).filter(|&bytes| bytes > 0))
}

/// The size of Linux's large pages.
#[doc(hidden)]
pub const LARGE_PAGE: usize = 2 << 20;

/// Advises Linux to use large pages for new memory, except at its two ends, which may not fill a
/// large page. With large pages, reads wait less for the page tables.
#[doc(hidden)]
#[cfg(target_os = "linux")]
pub fn advise_large_pages(start: usize, bytes: usize) {
    let first = start.next_multiple_of(LARGE_PAGE);
    let length = (start + bytes).saturating_sub(first) / LARGE_PAGE * LARGE_PAGE;
    if length > 0 {
        // SAFETY: this advice does not change the contents of any memory.
        unsafe {
            let first = std::ptr::with_exposed_provenance_mut(first);
            libc::madvise(first, length, libc::MADV_HUGEPAGE);
        }
    }
}

#[doc(hidden)]
#[cfg(not(target_os = "linux"))]
pub fn advise_large_pages(_start: usize, _bytes: usize) {}
