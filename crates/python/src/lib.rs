//! The ops of `mlx-primitives` as C functions, for the Python package in `python/`.
//!
//! Python loads this library by ctypes after `mlx.core`, so both use one libmlx. A table in
//! `ops.rs` lists the ops. A new op is one entry in this table and one function in
//! `python/mlx_primitives/ops`. The C functions take `mx.array` objects by address (`objects.rs`),
//! and call Python's functions by address too (`api.rs`). The library links to no symbol of Python,
//! so one file works with every version of Python.
//!
//! The functions that ctypes calls return null, or the text of an error. The first letter of the
//! text stands for the type of the error in Python: `T`, `V` or `R`. After the letter `I`, the text
//! is a result and not an error. The text stays valid until the thread's next call.

mod api;
mod arguments;
mod call;
mod evaluate;
mod kernel;
mod objects;
mod ops;
mod probe;
mod refused;

use std::ffi::c_char;

use api::Api;
use call::finish;
use mlx_primitives::device;
use mlx_primitives::ops::RowOrder;
use mlx_primitives::support::guest;
use objects::Object;
use refused::Refused;

/// The version of MLX that this library was compiled for.
fn built_for() -> String {
    device::mlx_versions().0
}

/// Prepares the library, before any other call. `head` is the size of a Python object's header, and
/// `size` is the size of an `mx.array` object. `probe` is an `mx.array` of shape `[3, 5, 7]` and
/// float16.
///
/// # Safety
///
/// The addresses are correct, and `probe` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx_primitives_begin(
    api: *const Api,
    head: usize,
    size: usize,
    probe: Object,
) -> *const c_char {
    finish(|| {
        let (built, loaded) = device::mlx_versions();
        if loaded.split(".dev").next() != Some(&*built) {
            let why = format!(
                "this library is for MLX {built}, but the libmlx of this process is {loaded}"
            );
            return Err(Refused::Runtime(why));
        }
        // SAFETY: the caller's promise.
        let api = unsafe { *api };
        // SAFETY: the caller promises that these are objects of these sizes.
        let layout = unsafe { probe::examine(head, size, api.array_type, api.none, probe) };
        let layout = layout.map_err(Refused::Runtime)?;
        guest::begin();
        let refuses_gpu =
            device::Device::Gpu.is_available()? && device::kernels_origin()?.starts_with("none");
        api::begin(api);
        objects::begin(layout);
        call::begin(refuses_gpu);
        Ok(())
    })
}

/// Returns the table of ops. The last entry has no name.
#[unsafe(no_mangle)]
pub extern "C" fn mlx_primitives_table() -> *const ops::Method {
    ops::TABLE.as_ptr()
}

/// Returns the letter `I` and four lines: the version of this library, the version of MLX that it
/// was built for, its CPU kernels and its GPU kernels.
#[unsafe(no_mangle)]
pub extern "C" fn mlx_primitives_info() -> *const c_char {
    finish(|| {
        let kernels = device::kernels_origin()?;
        let lines = [env!("CARGO_PKG_VERSION"), &built_for(), device::cpu_kernels(), &kernels];
        Err(Refused::Info(lines.join("\n")))
    })
}

/// Sets the [`RowOrder`] of this thread's ops, and returns the previous one: 0 if the number of
/// rows decides, 1 for the order of a single row, 2 for the order of prompts.
#[unsafe(no_mangle)]
pub extern "C" fn mlx_primitives_row_order(order: i32) -> i32 {
    let order = match order {
        1 => RowOrder::Tokens,
        2 => RowOrder::Prompt,
        _ => RowOrder::ByCount,
    };
    call::set_row_order(order) as i32
}

/// Panics, for the tests of this library.
#[unsafe(no_mangle)]
pub extern "C" fn mlx_primitives_panic() -> *const c_char {
    finish(|| std::panic::resume_unwind(Box::new("as asked")))
}

/// Sets the number of threads of the CPU kernels, unless `threads` is 0. Returns the letter `I` and
/// the number of threads.
#[unsafe(no_mangle)]
pub extern "C" fn mlx_primitives_threads(threads: usize) -> *const c_char {
    finish(|| {
        if threads > 0 {
            device::set_cpu_threads(threads)?;
        }
        Err(Refused::Info(device::cpu_threads().to_string()))
    })
}
