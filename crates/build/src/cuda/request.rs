//! Requests to the rewriter, and the faults in a source that the rewriter reports.

use std::fmt;

/// Selects one kernel of a source, and describes its launch.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// The Metal source, in which every `#include "..."` is replaced by the text of that file.
    pub source: &'a str,
    /// The name of the kernel: the name of its function, or the `host_name` of an instantiation.
    pub kernel: &'a str,
    /// The buffer indices that the launch binds.
    pub bound: &'a [Bound],
    /// The values of the function constants.
    pub constants: &'a [Constant],
    /// Whether the launch gives the size of the grid in threads instead of threadgroups. The
    /// threadgroups at the end of such a grid may be smaller.
    pub counts_threads: bool,
}

/// A value or an array that a launch binds to a buffer index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The index.
    pub index: u32,
    /// The number of bytes, if the launch passes the contents by value; 0 for an array; `u32::MAX`
    /// if the kernel's declaration decides.
    pub bytes: u32,
}

impl Bound {
    /// Lets the kernel's declaration decide: a reference gets bytes by value, a pointer gets an
    /// array.
    pub const fn as_declared(index: u32) -> Self {
        Self { index, bytes: u32::MAX }
    }
}

/// The value of a function constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constant {
    /// The index in `[[function_constant(index)]]`.
    pub index: u32,
    /// The number of the constant's type in Metal's `MTLDataType`.
    pub data_type: u32,
    /// The value, in the low bytes.
    pub bits: u64,
}

/// A fault in Metal source that prevents rewriting it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file from a `#line` directive; empty if there is no such directive.
    pub file: String,
    /// The line in that file; 0 if the fault does not belong to a line.
    pub line: u32,
    /// The reason.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.text),
            line => write!(f, "{}:{line}: {}", self.file, self.text),
        }
    }
}

impl std::error::Error for Fault {}
