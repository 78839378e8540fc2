//! The errors of this crate.

use std::fmt;
use std::path::PathBuf;

use crate::report::{Fault, Report};

/// The result of a function of this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate. [`Error::Faults`] contains the faults of a kernel. The other errors are
/// not faults of a kernel.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No usable compiler was found. The string gives the reason or says what to do.
    NoCompiler(String),
    /// The compiler refused the source.
    Compile {
        /// The Metal source.
        path: PathBuf,
        /// The compiler's output.
        messages: String,
    },
    /// A file could not be read or written.
    Io {
        /// The file.
        path: PathBuf,
        /// The error that the system reported.
        source: std::io::Error,
    },
    /// A compiled library or file could not be loaded. The string gives the reason.
    Load(String),
    /// The library has no such kernel. The string is the error message.
    NoKernel(String),
    /// The kernel needs a feature that the simulator lacks. The string names the feature.
    Unsupported(String),
    /// A function constant has no value or is not an integer, or the source does not declare it.
    FunctionConstant(String),
    /// The host could not provide the memory for a dispatch.
    Memory(std::io::Error),
    /// A dispatch ended with faults.
    Faults(Vec<Fault>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoCompiler(text) => write!(f, "no clang found: {text}"),
            Error::Compile { path, messages } => {
                write!(f, "{} does not compile:\n{messages}", path.display())
            }
            Error::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Load(text) => write!(f, "the compiled kernels cannot be loaded: {text}"),
            Error::NoKernel(text) | Error::Unsupported(text) => f.write_str(text),
            Error::FunctionConstant(text) => f.write_str(text),
            Error::Memory(source) => write!(f, "no memory for a dispatch: {source}"),
            Error::Faults(faults) => {
                writeln!(f, "{} fault(s):", faults.len())?;
                faults.iter().try_for_each(|fault| writeln!(f, "  {fault}"))
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } | Error::Memory(source) => Some(source),
            _ => None,
        }
    }
}

impl Report {
    /// Returns the report, or an error if the report has faults.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Faults`] if the report has faults.
    pub fn check(self) -> Result<Self> {
        if self.faults.is_empty() { Ok(self) } else { Err(Error::Faults(self.faults)) }
    }
}

/// Adds the path to an I/O error.
pub(crate) fn at_path<T>(path: &std::path::Path, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|source| Error::Io { path: path.to_path_buf(), source })
}
