//! Arrays that are read from a file, or from its bytes in memory, when they are used.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::array::Array;
use crate::cpu;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ffi::io::bridge as ffi;

/// Where a file's bytes are.
pub(super) enum Source {
    /// In an open file, which need not have a name anymore.
    File { file: File, path: PathBuf },
    /// In memory.
    Bytes(Vec<u8>),
}

/// One tensor's place in a file.
pub(crate) struct Stored {
    source: Arc<Source>,
    tensor: String,
    offset: u64,
    is_bool: bool,
}

impl Stored {
    /// A lazy array of the elements that `source` holds at `offset`.
    pub(super) fn array(
        source: &Arc<Source>,
        tensor: String,
        offset: u64,
        shape: &[i32],
        dtype: Dtype,
    ) -> Result<Array> {
        let is_bool = dtype == Dtype::Bool;
        let stored = Self { source: Arc::clone(source), tensor, offset, is_bool };
        Array::from_bridge(ffi::stored(Box::new(stored), shape, dtype.into()))
    }

    /// Fills `bytes`; an error names the file and the tensor.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> Result<()> {
        let failure = Mutex::new(None);
        cpu::for_each_part(bytes, |start, part| {
            if let Err(reason) = self.read_part(self.offset + start as u64, part) {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
            }
        });
        if let Some(reason) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let count = bytes.len();
            let text = format!("{}: expected {count} bytes, got fewer: {reason}", self.tensor);
            return Err(match &*self.source {
                Source::File { path, .. } => Error::file(path, text),
                Source::Bytes(_) => Error::argument("load_safetensors", text),
            });
        }
        if self.is_bool {
            // Other bytes than 0 and 1 are no bool in Rust.
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Ok(())
    }

    fn read_part(&self, offset: u64, part: &mut [u8]) -> std::io::Result<()> {
        match &*self.source {
            Source::File { file, .. } => file.read_exact_at(part, offset),
            Source::Bytes(bytes) => {
                let start = usize::try_from(offset).ok();
                let stored = start.and_then(|start| bytes.get(start..)?.get(..part.len()));
                part.copy_from_slice(stored.ok_or(std::io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }
}
