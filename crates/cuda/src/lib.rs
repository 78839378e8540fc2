#![doc = include_str!("../README.md")]
#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod cache;
mod compile;
mod nvrtc;
mod report;

pub use cache::folder;
pub use compile::{Cubin, compile, compile_in};
pub use mlx_primitives_build::cuda::{Argument, Bound, Constant, Request, kernels};
pub use nvrtc::{Error, Nvrtc, Result, search_in};
pub use report::Report;
