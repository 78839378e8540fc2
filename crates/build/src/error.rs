//! The error type of this crate.

use std::fmt;
use std::path::{Path, PathBuf};

/// The reason why no library was built.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    File {
        /// The file.
        path: PathBuf,
        /// The error that the system reported.
        reason: String,
    },
    /// Xcode or its Metal compiler is missing. The text says what the user should do.
    NoXcode(String),
    /// The Metal compiler rejected the source. The text is the compiler's output.
    Compiler(String),
    /// A variable that cargo sets for build scripts is missing.
    NotABuildScript(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, reason } => write!(f, "{}: {reason}", path.display()),
            Self::NoXcode(text) => f.write_str(text),
            Self::Compiler(text) => write!(f, "the Metal compiler failed:\n{text}"),
            Self::NotABuildScript(variable) => {
                write!(f, "{variable} is not set: this is for build scripts, run by cargo")
            }
        }
    }
}

impl std::error::Error for Error {}

pub(crate) fn file(path: &Path, reason: impl fmt::Display) -> Error {
    Error::File { path: path.to_owned(), reason: reason.to_string() }
}
