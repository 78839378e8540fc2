#![doc = include_str!("../README.md")]
#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod cache;
mod compile;
mod nvrtc;
mod report;

use std::fmt;

pub use cache::folder;
pub use compile::{Cubin, compile, compile_in};
pub use mlx_primitives_build::cuda::{Argument, Bound, Constant, Request, kernels};
pub use nvrtc::{Nvrtc, search_in};
pub use report::Report;

/// Why a kernel was not compiled.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// NVRTC, or CUDA's headers, are not installed; the text says what was tried.
    Missing(String),
    /// The rewriter or NVRTC refuses the source; the text names its files and lines.
    Source(String),
    /// NVRTC failed for another reason than the source.
    Nvrtc(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(text) | Self::Nvrtc(text) => f.write_str(text),
            Self::Source(text) => write!(f, "the kernel does not compile for CUDA:\n{text}"),
        }
    }
}

impl std::error::Error for Error {}

/// The result of a compilation.
pub type Result<T> = std::result::Result<T, Error>;
