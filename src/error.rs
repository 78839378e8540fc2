use std::path::{Path, PathBuf};

/// What the fallible functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation was refused or failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// MLX or one of our primitives refused its arguments or failed; `[op] expected …, got …`.
    Mlx(String),
    /// An argument was refused before it reached MLX; `[op] expected …, got …`.
    Argument(String),
    /// A closure given to a transform, or a method of a hosted primitive, panicked.
    Panic(String),
    /// A file is missing, unreadable or not what it should be.
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    pub(crate) fn argument(op: &str, expected: impl std::fmt::Display) -> Self {
        Self::Argument(format!("[{op}] expected {expected}"))
    }

    pub(crate) fn file(path: impl AsRef<Path>, reason: impl std::fmt::Display) -> Self {
        Self::File { path: path.as_ref().to_owned(), reason: reason.to_string() }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mlx(message) | Self::Argument(message) | Self::Panic(message) => {
                f.write_str(message)
            }
            Self::File { path, reason } => write!(f, "{}: {reason}", path.display()),
        }
    }
}

impl std::error::Error for Error {}

impl From<cxx::Exception> for Error {
    fn from(exception: cxx::Exception) -> Self {
        Self::Mlx(exception.what().to_owned())
    }
}
