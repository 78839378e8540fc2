//! Kernels for NVIDIA GPUs: Metal source compiled by NVRTC when a kernel is first used.

use mlx_primitives_cuda::{Argument, Bound, Constant, Request, compile, folder};

use crate::error::{Error, Result};
use ffi::{CudaArgument, CudaBound, CudaCode, CudaConstant};

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
mod ffi {
    /// A buffer index of a launch. It gets an array or, if `bytes` is not 0, a value of `bytes`
    /// bytes.
    struct CudaBound {
        index: u32,
        bytes: u32,
    }

    struct CudaConstant {
        index: u32,
        data_type: u32,
        bits: u64,
    }

    /// An argument of a kernel. Kind 0 is the array or value bound to a buffer index, kind 1 is the
    /// offset of threadgroup memory, and kind 2 is the number of threads of the grid.
    struct CudaArgument {
        kind: u8,
        index: u32,
    }

    struct CudaCode {
        code: Vec<u8>,
        symbol: String,
        arguments: Vec<CudaArgument>,
    }

    extern "Rust" {
        /// Compiles a kernel of Metal source for an NVIDIA architecture, such as 90 for `sm_90`.
        fn cuda_kernel(
            source: &str,
            kernel: &str,
            bound: &[CudaBound],
            constants: &[CudaConstant],
            counts_threads: bool,
            architecture: u32,
        ) -> Result<CudaCode>;
        fn cuda_description() -> String;
    }
}

/// In embedded sources, the text of each file follows a comment with the file's name. This function
/// replaces these comments by `#line` directives, so that compilers report the names.
fn with_lines(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    for line in source.lines() {
        let name = line.strip_prefix("// ").filter(|name| !name.contains(' '));
        match name.filter(|name| name.ends_with(".h") || name.ends_with(".metal")) {
            Some(name) => out.push_str(&format!("#line 1 \"metal/{name}\"")),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

fn cuda_kernel(
    source: &str,
    kernel: &str,
    bound: &[CudaBound],
    constants: &[CudaConstant],
    counts_threads: bool,
    architecture: u32,
) -> Result<CudaCode> {
    let bound: Vec<Bound> =
        bound.iter().map(|one| Bound { index: one.index, bytes: one.bytes }).collect();
    let constants: Vec<Constant> = constants
        .iter()
        .map(|one| Constant { index: one.index, data_type: one.data_type, bits: one.bits })
        .collect();
    let source = with_lines(source);
    let request =
        Request { source: &source, kernel, bound: &bound, constants: &constants, counts_threads };
    let made = compile(&request, architecture)
        .map_err(|error| Error::mlx(&format!("[cuda] {kernel}: {error}")))?;
    let arguments = made.arguments.into_iter().map(|argument| {
        let (kind, index) = match argument {
            Argument::Buffer(index) => (0, index),
            Argument::ThreadgroupMemory(index) => (1, index),
            Argument::Grid => (2, 0),
        };
        CudaArgument { kind, index }
    });
    Ok(CudaCode { arguments: arguments.collect(), code: made.code, symbol: made.symbol })
}

fn cuda_description() -> String {
    let cache = folder().map_or("no folder".to_owned(), |folder| folder.display().to_string());
    format!("source embedded in this binary, compiled at first use by NVRTC and kept in {cache}")
}
