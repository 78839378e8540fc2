//! The ops of `mlx-primitives` as C functions, for the Python package in `python/`.
//!
//! Python loads this library by ctypes after `mlx.core`, so both use one libmlx. It passes
//! `mx.array` objects by address (`objects.rs`), and finds the functions, with their arguments, in
//! a table (`ops.rs`), so a new op is one entry there and one function in
//! `python/mlx_primitives/ops.py`. The library needs no symbol of Python: one file serves every
//! version of it.
//!
//! A function returns null, or the text of an error behind a letter for its type in Python: `T`,
//! `V` or `R`. The text stays valid until the thread's next call.

mod arguments;
mod call;
mod evaluate;
mod objects;
mod ops;
mod probe;
mod refused;

use std::ffi::c_char;

use call::finish;
use mlx_primitives::device;
use mlx_primitives::ops::RowOrder;
use mlx_primitives::support::guest;
use objects::{Object, Place};
use refused::Refused;

/// The version of MLX that this library was compiled for.
fn built_for() -> String {
    device::mlx_versions().0
}

/// Prepares the library, before any other call. `head` is the size of a Python object's header,
/// `size` that of an `mx.array`, whose type is `array_type`. `probe` is an `mx.array` of shape
/// `[3, 5, 7]` and float16, which `out` becomes.
///
/// # Safety
///
/// All pointers are Python objects; `probe` and `out` have `size` bytes and the type `array_type`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx_primitives_begin(
    head: usize,
    size: usize,
    array_type: Object,
    none: Object,
    probe: Object,
    out: Place,
) -> *const c_char {
    finish(|| {
        let (built, loaded) = device::mlx_versions();
        if loaded.split(".dev").next() != Some(&*built) {
            let why = format!(
                "this library is for MLX {built}, but the libmlx of this process is {loaded}"
            );
            return Err(Refused::Runtime(why));
        }
        // SAFETY: the caller promises that these are objects of that size.
        let layout = unsafe { probe::examine(head, size, array_type, none, probe) };
        let layout = layout.map_err(Refused::Runtime)?;
        guest::begin();
        let refuses_gpu =
            device::Device::Gpu.is_available()? && device::kernels_origin()?.starts_with("none");
        // SAFETY: the probe has shown that arrays of this type lie where the layout says.
        unsafe {
            let array = layout.array(probe, "probe")?;
            layout.assign(out, &array)?;
        }
        objects::begin(layout);
        call::begin(refuses_gpu);
        Ok(())
    })
}

/// The functions of the table, ended by one without a name.
#[unsafe(no_mangle)]
pub extern "C" fn mlx_primitives_table() -> *const ops::Entry {
    ops::TABLE.as_ptr()
}

/// The names of this library's version, the MLX that it is for, its CPU kernels and its GPU
/// kernels, one a line, behind the letter `I`.
#[unsafe(no_mangle)]
pub extern "C" fn mlx_primitives_info() -> *const c_char {
    finish(|| {
        let kernels = device::kernels_origin()?;
        let lines = [env!("CARGO_PKG_VERSION"), &built_for(), device::cpu_kernels(), &kernels];
        Err(Refused::Info(lines.join("\n")))
    })
}

/// Sets the order of rows of the ops that this thread builds, and returns the previous one: 0 by
/// their count, 1 of tokens, 2 of prompts.
#[unsafe(no_mangle)]
pub extern "C" fn mlx_primitives_row_order(order: i32) -> i32 {
    let order = match order {
        1 => RowOrder::Tokens,
        2 => RowOrder::Prompt,
        _ => RowOrder::ByCount,
    };
    call::set_row_order(order) as i32
}

/// A panic, for the tests of this library.
#[unsafe(no_mangle)]
pub extern "C" fn mlx_primitives_panic() -> *const c_char {
    finish(|| std::panic::resume_unwind(Box::new("as asked")))
}

/// Counts the threads of the CPU kernels; sets them first if `threads` is not 0.
#[unsafe(no_mangle)]
pub extern "C" fn mlx_primitives_threads(threads: usize) -> *const c_char {
    finish(|| {
        if threads > 0 {
            device::set_cpu_threads(threads)?;
        }
        Err(Refused::Info(device::cpu_threads().to_string()))
    })
}
