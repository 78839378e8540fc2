#![doc = include_str!("../README.md")]
// On systems other than Linux this crate is empty, so that a Mac can build and test the workspace.
#![cfg(target_os = "linux")]
#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

#[cfg(feature = "air")]
pub mod air;
mod buffer;
mod build;
mod cache;
mod compiler;
mod constants;
mod dispatch;
mod error;
mod exec;
pub mod gpu;
mod library;
mod module;
mod report;
mod rewrite;
pub mod rules;
mod shim;
mod source;

pub use buffer::{Access, Buffer, Plain};
pub use compiler::Compiler;
pub use constants::{ConstantBits, Constants};
pub use dispatch::Dispatch;
pub use error::{Error, Result};
pub use exec::Schedule;
pub use library::{Kernel, KernelInfo, Library};
pub use module::{Argument, ArgumentKind, Value};
pub use report::{Fault, FaultKind, Place, Report, ThreadPlace, Traffic};
pub use rewrite::Constant;
pub use source::Source;
