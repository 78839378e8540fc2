#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod buffer;
mod cache;
mod compiler;
mod dispatch;
mod error;
mod exec;
mod library;
mod module;
mod report;
mod rewrite;
pub mod rules;
mod shim;

pub use buffer::{Access, Buffer, Plain};
pub use compiler::Compiler;
pub use dispatch::{Dispatch, Schedule};
pub use error::{Error, Result};
pub use library::{ConstantBits, Constants, Kernel, KernelInfo, Library, Source};
pub use module::{Argument, ArgumentKind, Place};
pub use report::{Fault, FaultKind, Report, ThreadPlace, Traffic};
pub use rewrite::Constant;
