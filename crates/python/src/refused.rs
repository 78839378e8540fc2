//! The errors that Python gets.

use mlx_primitives::Error;

/// The reason why a call has no result, by the type of the error in Python.
pub enum Refused {
    Type(String),
    Value(String),
    Runtime(String),
    /// Python's error has been set already.
    Raised,
    /// A text that the caller asked for. It is not an error.
    Info(String),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        let of_process = ["[thread] ", "[process] ", "[fork] ", "[allocate] "];
        let runtime = matches!(error, Error::Panic { .. } | Error::Io { .. })
            || of_process.iter().any(|start| text.starts_with(start));
        if runtime { Self::Runtime(text) } else { Self::Value(text) }
    }
}
