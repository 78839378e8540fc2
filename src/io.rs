//! Files of named arrays. Loading is lazy: the elements are read when they are used.

mod gguf;
mod safetensors;
pub(crate) mod stored;

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::array::{Array, to_list};
use crate::error::{Error, Result};
use crate::ffi::io::bridge as ffi;
use crate::files;

/// Named arrays and the file's own metadata.
#[derive(Default)]
pub struct Tensors {
    /// The arrays by name.
    pub arrays: HashMap<String, Array>,
    /// Text entries of the file's header.
    pub metadata: HashMap<String, String>,
}

impl From<ffi::Loaded> for Tensors {
    fn from(loaded: ffi::Loaded) -> Self {
        Self {
            arrays: loaded.arrays.into_iter().map(|e| (e.name, Array::new(e.array))).collect(),
            metadata: loaded.metadata.into_iter().map(|e| (e.key, e.value)).collect(),
        }
    }
}

/// Loads a safetensors file, whose header and length are checked first.
///
/// # Errors
/// Errors name the file, and the tensor where there is one: missing, truncated, not safetensors,
/// shapes and types that do not fit their offsets, offsets outside the file. A file that becomes
/// shorter later is an error of the array that is read from it.
pub fn load_safetensors(path: impl AsRef<Path>) -> Result<Tensors> {
    let path = path.as_ref();
    let file = files::open(path).map_err(|e| Error::file(path, e))?;
    let header = map(&file, safetensors::check).map_err(|reason| Error::file(path, reason))?;
    header.load(stored::Source::File { file, path: path.to_owned() })
}

/// Loads a safetensors file that is in memory; the bytes are copied.
///
/// # Errors
/// As [`load_safetensors`], without a path.
pub fn load_safetensors_bytes(bytes: &[u8]) -> Result<Tensors> {
    let header = safetensors::check(bytes)
        .map_err(|e| Error::argument("load_safetensors", format_args!("a whole file, got {e}")))?;
    header.load(stored::Source::Bytes(bytes.to_owned()))
}

/// Writes arrays, which are evaluated first, and metadata as a safetensors file.
///
/// # Errors
///
/// Returns an error if the name does not end in `.safetensors`, an array cannot be evaluated, or
/// the file cannot be written. The error names the file.
///
/// ```
/// # use mlx_primitives::{Array, io};
/// # let path = std::env::temp_dir().join(format!("doc-{}.safetensors", std::process::id()));
/// let x = Array::ones::<f32>(&[2])?;
/// io::save_safetensors(&path, [("x", &x)], [("format", "mlx")])?;
/// assert_eq!(io::load_safetensors(&path)?.arrays["x"].to_vec::<f32>()?, [1.0, 1.0]);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn save_safetensors<'a>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = (&'a str, &'a Array)>,
    metadata: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<()> {
    let path = path.as_ref();
    let (names, arrays): (Vec<_>, Vec<_>) =
        arrays.into_iter().map(|(name, array)| (name.to_owned(), array)).unzip();
    let metadata: Vec<_> = metadata
        .into_iter()
        .map(|(key, value)| ffi::MetadataEntry { key: key.to_owned(), value: value.to_owned() })
        .collect();
    // MLX would append the extension where it is missing.
    if path.extension().is_none_or(|extension| extension != "safetensors") {
        return Err(Error::file(path, "expected a name that ends in .safetensors"));
    }
    ffi::save_safetensors(as_str(path)?, &names, &to_list(arrays), &metadata)
        .map_err(|e| Error::file(path, e.what()))
}

/// Loads a GGUF file, whose header is checked first: F32, F16, integer, Q4_0, Q4_1 and Q8_0
/// tensors as MLX keeps them, BF16, Q2_K, Q4_K and Q6_K as float16.
///
/// # Errors
///
/// Returns an error if the file is missing or truncated, has another format, or holds a type that
/// MLX cannot load. The error names the file.
pub fn load_gguf(path: impl AsRef<Path>) -> Result<Tensors> {
    let path = path.as_ref();
    files::open(path)
        .map_err(|e| e.into())
        .and_then(|file| map(&file, gguf::check))
        .map_err(|reason: Failure| Error::file(path, reason))?;
    ffi::load_gguf(as_str(path)?).map(Tensors::from).map_err(|e| Error::file(path, e.what()))
}

fn as_str(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::file(path, "expected a path of valid UTF-8"))
}

type Failure = Box<dyn std::error::Error>;

/// Shows a file's bytes to `check`.
fn map<T>(file: &File, check: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<T, Failure> {
    if file.metadata()?.len() == 0 {
        return Ok(check(&[])?); // nothing to map
    }
    // SAFETY: the map is only read, here, and dropped at the end of the function; a file that
    // another process truncates meanwhile is outside what a reader can guard against.
    let bytes = unsafe { Mmap::map(file)? };
    Ok(check(&bytes)?)
}
