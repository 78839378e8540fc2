//! Compiles one kernel.

use mlx_primitives_build::cuda::{Argument, HEADERS, Kernel, Request, rewrite};

use crate::nvrtc::Nvrtc;
use crate::{Error, Result, cache};

/// A compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// The machine code, for `cuModuleLoadData`.
    pub code: Vec<u8>,
    /// The name of the kernel in the machine code.
    pub symbol: String,
    /// The arguments of the kernel, in order.
    pub arguments: Vec<Argument>,
}

/// The resources of a kernel, as ptxas reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The registers of a thread.
    pub registers: u32,
    /// The bytes of local memory on a thread's stack.
    pub stack: u32,
    /// The bytes that a thread stores to local memory for want of registers.
    pub spilled: u32,
}

/// Sources that mention one of these need Metal's numbers of lanes for matrices.
const MATRICES: [&str; 2] = ["simdgroup_matrix", "simdgroup_float8x8"];

/// Compiles a kernel for an architecture, such as 90 for `sm_90`, or takes it from the cache.
///
/// # Errors
///
/// Returns an error if the source does not compile, or NVRTC or its headers are not installed.
pub fn compile(request: &Request, architecture: u32) -> Result<Cubin> {
    let (nvrtc, kernel, options) = prepare(request, architecture)?;
    let key = cache::key(&kernel, &options, nvrtc.version);
    if let Some((symbol, code)) = cache::find(&key) {
        return Ok(Cubin { code, symbol, arguments: kernel.arguments });
    }
    let made = nvrtc.compile(&kernel.text, &kernel.expression, &HEADERS, &options)?;
    cache::keep(&key, &made.symbol, &made.cubin);
    Ok(Cubin { code: made.cubin, symbol: made.symbol, arguments: kernel.arguments })
}

/// Compiles a kernel without the cache and reports its resources.
///
/// # Errors
///
/// Returns an error if the source does not compile, NVRTC or its headers are not installed, or
/// NVRTC's report cannot be read.
pub fn compile_uncached(request: &Request, architecture: u32) -> Result<(Cubin, Report)> {
    let (nvrtc, kernel, mut options) = prepare(request, architecture)?;
    options.push("--ptxas-options=-v".to_owned());
    let made = nvrtc.compile(&kernel.text, &kernel.expression, &HEADERS, &options)?;
    let report = Report::parse(&made.log)
        .ok_or_else(|| Error::Nvrtc(format!("a report that cannot be read: {}", made.log)))?;
    let cubin = Cubin { code: made.cubin, symbol: made.symbol, arguments: kernel.arguments };
    Ok((cubin, report))
}

fn prepare(request: &Request, architecture: u32) -> Result<(&'static Nvrtc, Kernel, Vec<String>)> {
    let nvrtc = Nvrtc::get()?;
    let kernel = rewrite(request).map_err(|fault| Error::Source(fault.to_string()))?;
    let mut options: Vec<String> =
        ["-default-device", "-std=c++17", "-DNDEBUG", "-D__METAL_VERSION__=310", "-D__METAL__=1"]
            .map(String::from)
            .into();
    options.push(format!("-arch=sm_{architecture}"));
    // 550: a variable that is set and not used, 177: one that is declared and not used.
    options.push("-diag-suppress=550,177".to_owned());
    options.push(format!("-I{}", nvrtc.include.display()));
    if MATRICES.iter().any(|word| kernel.text.contains(word)) {
        options.push("-DMSL_MATRIX_LANES".to_owned());
    }
    Ok((nvrtc, kernel, options))
}

impl Report {
    /// Reads `ptxas info : Used 40 registers` and `8 bytes stack frame, 0 bytes spill stores`.
    fn parse(log: &str) -> Option<Self> {
        let before = |line: &str, words: &str| -> Option<u32> {
            let text = line.split(words).next().filter(|text| text.len() < line.len())?;
            text.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        let find = |words: &str| log.lines().filter_map(|line| before(line, words)).max();
        Some(Self {
            registers: find(" registers")?,
            stack: find(" bytes stack frame")?,
            spilled: find(" bytes spill stores")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Report;

    #[test]
    fn reports_are_read() {
        let log = "ptxas info    : Compiling entry function 'f' for 'sm_90'\n\
                   ptxas info    : Function properties for f\n    \
                   16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n\
                   ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size";
        assert_eq!(Report::parse(log), Some(Report { registers: 40, stack: 16, spilled: 8 }));
        assert_eq!(Report::parse("nothing"), None);
    }
}
