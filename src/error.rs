use std::io;
use std::path::{Path, PathBuf};

use crate::dtype::Dtype;
use crate::printable::{line, lines};

/// The result of the fallible functions of this crate, with [`Error`] as the default error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation was refused or failed.
///
/// The text of an error begins with the op that failed, in brackets, or with the path of a file. It
/// quotes at most about a line of a file or an argument, without control characters. `Debug` writes
/// the same text as `Display`, since Rust prints the error of `main` with `Debug`.
///
/// ```
/// use mlx_primitives::{Array, Dtype, Error};
///
/// let x = Array::zeros::<f32>([2, 3])?;
/// match x.to_vec::<i32>() {
///     Err(Error::Dtype { op, got, .. }) => assert_eq!((&*op, got), ("to_vec", Dtype::Float32)),
///     other => panic!("{other:?}"),
/// }
/// let text = x.reshape([4, 4]).unwrap_err().to_string();
/// assert!(text.starts_with("[reshape]"), "{text}");
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An array does not have the shape that an operation needs.
    #[error("[{op}] expected {expected}, got shape {got:?}")]
    Shape {
        /// The operation that refused the array.
        op: String,
        /// The shapes that the operation takes, in words.
        expected: String,
        /// The shape of the array.
        got: Vec<i32>,
    },
    /// An array does not have the element type that an operation needs.
    #[error("[{op}] expected {expected}, got {got}")]
    Dtype {
        /// The operation that refused the array.
        op: String,
        /// The types that the operation takes, in words.
        expected: String,
        /// The type of the array.
        got: Dtype,
    },
    /// An axis or an index lies outside the array.
    #[error("[{op}] expected {expected}, got {got}")]
    OutOfRange {
        /// The operation that refused the number.
        op: String,
        /// The numbers that the operation takes, in words.
        expected: String,
        /// The number.
        got: i64,
    },
    /// Another argument was refused before it reached MLX.
    #[error("{}{message}", bracketed(op))]
    Argument {
        /// The operation that refused the argument, if the error names one.
        op: Option<String>,
        /// The expectation and the actual value, in words.
        message: String,
    },
    /// MLX, or one of this crate's primitives in C++, refused its arguments or failed.
    #[error("{}{message}", bracketed(op))]
    Mlx {
        /// The operation, if the error names one.
        op: Option<String>,
        /// The expectation and the actual value, in words.
        message: String,
    },
    /// The ranks of a group (`mlx-primitives-ranks`) do not agree, a rank failed or could not be
    /// reached, or an earlier failure has made the group unusable.
    #[error("[{op}] {message}")]
    Distributed {
        /// The operation of the group.
        op: String,
        /// The reason, in words, with the rank that it concerns.
        message: String,
    },
    /// A closure given to a transform, or a method of a custom primitive, panicked.
    #[error("[{op}] {message}")]
    Panic {
        /// The transform or the primitive that called the code.
        op: String,
        /// The closure or the method that panicked, and the text of the panic.
        message: String,
    },
    /// The operating system refused to open, read or write a file.
    ///
    /// The text of this error contains the text of `error`. For this reason `error` is not the
    /// [`source`](std::error::Error::source): programs that print both would print it twice.
    #[error("{}: {error}", shown(path))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        error: io::Error,
    },
    /// A file does not have the expected name or contents.
    #[error("{}: {reason}", shown(path))]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The reason, in words.
        reason: String,
    },
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// An error with the text `[op] expected …`, for an argument that `op` refuses. For primitives
    /// and helpers outside this crate.
    ///
    /// ```
    /// use mlx_primitives::Error;
    ///
    /// let error = Error::argument("soft_cap", "a positive cap, got -1");
    /// assert_eq!(error.to_string(), "[soft_cap] expected a positive cap, got -1");
    /// ```
    pub fn argument(op: impl Into<String>, expected: impl std::fmt::Display) -> Self {
        Self::Argument { op: Some(op.into()), message: line(&format!("expected {expected}")) }
    }

    /// Like [`argument`](Self::argument), but keeps the line breaks of `expected`.
    #[doc(hidden)]
    pub fn report(op: &str, expected: impl std::fmt::Display) -> Self {
        let message = lines(&format!("expected {expected}"));
        Self::Argument { op: Some(op.to_owned()), message }
    }

    #[doc(hidden)]
    pub fn shape(op: &str, expected: impl std::fmt::Display, got: &[i32]) -> Self {
        Self::Shape { op: op.to_owned(), expected: expected.to_string(), got: got.to_vec() }
    }

    #[doc(hidden)]
    pub fn dtype(op: &str, expected: impl std::fmt::Display, got: Dtype) -> Self {
        Self::Dtype { op: op.to_owned(), expected: expected.to_string(), got }
    }

    #[doc(hidden)]
    pub fn distributed(op: &str, message: impl std::fmt::Display) -> Self {
        Self::Distributed { op: op.to_owned(), message: line(&message.to_string()) }
    }

    #[doc(hidden)]
    pub fn out_of_range(op: &str, expected: impl std::fmt::Display, got: impl Into<i64>) -> Self {
        Self::OutOfRange { op: op.to_owned(), expected: expected.to_string(), got: got.into() }
    }

    /// Makes an [`Error::Mlx`] from MLX's text, which may begin with the op in brackets.
    #[doc(hidden)]
    pub fn mlx(text: &str) -> Self {
        let (op, message) = split(&lines(text));
        Self::Mlx { op, message }
    }

    #[doc(hidden)]
    pub fn file(path: impl AsRef<Path>, reason: impl std::fmt::Display) -> Self {
        Self::File { path: path.as_ref().to_owned(), reason: line(&reason.to_string()) }
    }

    #[doc(hidden)]
    pub fn io(path: impl AsRef<Path>, error: io::Error) -> Self {
        Self::Io { path: path.as_ref().to_owned(), error }
    }

    /// The file that the error is about, or `None` if it is about no file.
    #[doc(hidden)]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. } | Self::File { path, .. } => Some(path),
            _ => None,
        }
    }
}

/// Makes an [`Error::Argument`] from a message, which may begin with the op in brackets.
///
/// ```
/// use mlx_primitives::Error;
///
/// let Error::Argument { op, message } = "[scale] expected a number".into() else { panic!() };
/// assert_eq!((op.as_deref(), &*message), (Some("scale"), "expected a number"));
/// ```
impl From<&str> for Error {
    fn from(text: &str) -> Self {
        let (op, message) = split(&lines(text));
        Self::Argument { op, message }
    }
}

/// Makes an [`Error::Argument`] from a message, which may begin with the op in brackets.
impl From<String> for Error {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<cxx::Exception> for Error {
    fn from(exception: cxx::Exception) -> Self {
        Self::mlx(exception.what())
    }
}

/// A path in the form that messages print.
fn shown(path: &Path) -> String {
    line(&path.display().to_string())
}

/// Splits `[op] rest` into the op and the rest; the op is `None` if the text does not begin with
/// brackets.
fn split(text: &str) -> (Option<String>, String) {
    match text.strip_prefix('[').and_then(|inside| inside.split_once("] ")) {
        Some((op, message)) => (Some(op.to_owned()), message.to_owned()),
        None => (None, text.to_owned()),
    }
}

fn bracketed(op: &Option<String>) -> String {
    op.as_ref().map_or_else(String::new, |op| format!("[{op}] "))
}
