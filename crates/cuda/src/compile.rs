//! Compiles one kernel.

use std::path::Path;

use mlx_primitives_build::cuda::{Argument, HEADERS, Kernel, Request, rewrite};

use crate::nvrtc::Nvrtc;
use crate::report::Report;
use crate::{Error, Result, cache};

/// A compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// The machine code, which `cuModuleLoadData` can load.
    pub code: Vec<u8>,
    /// The name of the kernel in the machine code.
    pub symbol: String,
    /// The resources that the kernel needs.
    pub report: Report,
    /// The arguments of the kernel, in order.
    pub arguments: Vec<Argument>,
}

/// If a source contains one of these words, it uses Metal's matrices. Then a lane's number in Metal
/// differs from its number in CUDA: see `metal_lane` in `msl/places.h` of `mlx-primitives-build`.
const MATRICES: [&str; 2] = ["simdgroup_matrix", "simdgroup_float8x8"];

/// Compiles a kernel for an architecture, such as 90 for `sm_90`, or reads it from the cache.
///
/// # Errors
///
/// Returns an error if the source does not compile, or if NVRTC or CUDA's headers are not
/// installed.
pub fn compile(request: &Request, architecture: u32) -> Result<Cubin> {
    compile_in(cache::folder().as_deref(), request, architecture)
}

/// Compiles a kernel with a cache in `folder` instead of the default [`folder`](crate::folder). If
/// `folder` is `None`, caches nothing.
///
/// # Errors
///
/// Returns an error if the source does not compile, or if NVRTC or CUDA's headers are not
/// installed.
pub fn compile_in(folder: Option<&Path>, request: &Request, architecture: u32) -> Result<Cubin> {
    let (nvrtc, kernel, options) = prepare(request, architecture)?;
    let key = cache::key(&kernel, &options, nvrtc.version);
    let path = folder.map(|folder| folder.join(format!("{key}.cubin")));
    if let Some((symbol, report, code)) = path.as_deref().and_then(cache::find) {
        return Ok(Cubin { code, symbol, report, arguments: kernel.arguments });
    }
    let made = nvrtc.compile(&kernel.text, &kernel.expression, &HEADERS, &options)?;
    let report = Report::parse(&made.log)
        .ok_or_else(|| Error::Nvrtc(format!("a report that cannot be read: {}", made.log)))?;
    if let Some(path) = path {
        cache::keep(&path, &made.symbol, report, &made.cubin);
    }
    Ok(Cubin { code: made.cubin, symbol: made.symbol, report, arguments: kernel.arguments })
}

fn prepare(request: &Request, architecture: u32) -> Result<(&'static Nvrtc, Kernel, Vec<String>)> {
    let nvrtc = Nvrtc::get()?;
    let kernel = rewrite(request).map_err(|fault| Error::Source(fault.to_string()))?;
    let mut options: Vec<String> = [
        "-default-device",
        "-std=c++17",
        "-DNDEBUG",
        "-D__METAL_VERSION__=310",
        "-D__METAL__=1",
        "--ptxas-options=-v",
    ]
    .map(String::from)
    .into();
    options.push(format!("-arch=sm_{architecture}"));
    // Warning 550: a variable is set but never used. Warning 177: a variable is declared but never
    // used.
    options.push("-diag-suppress=550,177".to_owned());
    options.push(format!("-I{}", nvrtc.include.display()));
    if MATRICES.iter().any(|word| kernel.text.contains(word)) {
        options.push("-DMSL_MATRIX_LANES".to_owned());
    }
    Ok((nvrtc, kernel, options))
}
