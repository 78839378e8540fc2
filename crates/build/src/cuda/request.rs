//! A request to the rewriter, and the faults of a source that prevent the rewriting.

use std::fmt;

/// One kernel of a source, and how it is launched.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// The Metal source, with the text of all files that it includes in quotation marks.
    pub source: &'a str,
    /// The name of the kernel: its function's name, or the `host_name` of an instantiation.
    pub kernel: &'a str,
    /// The buffer indices that the launch binds.
    pub bound: &'a [Bound],
    /// The values of the function constants.
    pub constants: &'a [Constant],
    /// Whether the launch is given in threads and not in threadgroups, so that the threadgroups at
    /// the end of the grid may be smaller.
    pub counts_threads: bool,
}

/// A buffer index that a launch binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The index.
    pub index: u32,
    /// The length of the contents if they are passed by value; 0 for an array.
    pub bytes: u32,
}

impl Bound {
    /// Binds what the kernel declares: bytes by value for a reference, an array for a pointer.
    pub const fn as_declared(index: u32) -> Self {
        Self { index, bytes: u32::MAX }
    }
}

/// The value of a function constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constant {
    /// The index in `[[function_constant(index)]]`.
    pub index: u32,
    /// The type, by its number in Metal's `MTLDataType`.
    pub data_type: u32,
    /// The value, in the low bytes.
    pub bits: u64,
}

/// A fault of Metal source that prevents the rewriting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The path in a `#line` directive; empty if there is no such directive.
    pub file: String,
    /// The line in the file; 0 if the fault does not belong to a line.
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
