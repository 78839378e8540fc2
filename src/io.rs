//! Files of named arrays: safetensors and GGUF. Loading is lazy: elements are read when they are
//! used.

pub(crate) mod block;
mod bridge;
#[doc(hidden)]
pub mod gguf;
mod safetensors;
#[doc(hidden)]
pub mod stored;

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::array::{Array, to_list};
use crate::error::{Error, Result};
use crate::files;
use bridge::ffi;

#[doc(inline)]
pub use gguf::{GgufType, KQuants};
pub use safetensors::Tensors;

/// Loads a safetensors file, whose header and length are checked first. See [`save_safetensors`].
///
/// # Errors
///
/// Returns an error if the file is missing, truncated or not safetensors, if shapes and types do
/// not fit their offsets, or if offsets lie outside the file. The error names the file, and the
/// tensor if it concerns one. If the file becomes shorter later, evaluating an array that is read
/// from the file fails.
pub fn load_safetensors(path: impl AsRef<Path>) -> Result<Tensors> {
    let path = path.as_ref();
    let file = files::open(path).map_err(|e| Error::io(path, e))?;
    let header = map(&file, safetensors::check).map_err(|reason| Error::file(path, reason))?;
    header.load(stored::Source::File { file, path: path.to_owned() })
}

/// Loads a safetensors file from its bytes, which are copied.
///
/// # Errors
///
/// Returns an error if [`load_safetensors`] would refuse a file with these bytes.
pub fn load_safetensors_bytes(bytes: &[u8]) -> Result<Tensors> {
    let header = safetensors::check(bytes)
        .map_err(|e| Error::argument("load_safetensors", format_args!("a whole file, got {e}")))?;
    header.load(stored::Source::Bytes(bytes.to_owned()))
}

/// Evaluates named arrays and writes them, with metadata, as a safetensors file.
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

/// Loads a GGUF file, whose header and length are checked first.
///
/// Tensors of F32, F16, BF16 and of integers keep their types. A tensor `NAME.weight` of a type
/// that packs weights becomes three arrays of MLX's affine layout with groups of 32, as
/// [`QuantizedWeight::new`](crate::ops::QuantizedWeight::new) takes them: `NAME.weight` (uint32),
/// `NAME.scales` and `NAME.biases`. The scales and biases of Q4_0, Q4_1 and Q8_0 are float16, and
/// float32 for the other types.
///
/// | type | bits a weight in the file | bits of a code | bits a weight in memory | the weights |
/// |---|---|---|---|---|
/// | Q4_0, Q4_1 | 4.5, 5 | 4 | 5 | the same numbers |
/// | Q8_0 | 8.5 | 8 | 9 | the same numbers |
/// | Q5_0, Q5_1 | 5.5, 6 | 5 | 7 | the same numbers |
/// | Q4_K | 4.5 | 4 | 6 | the same numbers |
/// | Q5_K | 5.5 | 5 | 7 | the same numbers |
/// | IQ4_NL, IQ4_XS | 4.5, 4.25 | 8 | 10 | the same numbers |
/// | Q3_K | 3.44 | 8 | 10 | the same numbers |
/// | Q6_K | 6.56 | 8 | 10 | rounded by at most 1/6 of a step |
/// | Q2_K | 2.63 | 6 | 8 | rounded by at most 1/62 of a group's range |
///
/// [`load_gguf_with`] can keep Q4_K, Q5_K and Q6_K at nearly the file's number of bits per weight.
///
/// In Q6_K and Q2_K, 16 weights share a step, the distance between neighboring numbers. In MLX, at
/// least 32 weights share a step. In a group of 32, the half with the larger step keeps its
/// numbers, and the numbers of the other half are rounded. The table gives the error of Q6_K as a
/// part of the larger step, and the error of Q2_K as a part of the range of the group's numbers.
///
/// [`Tensors::metadata`] has the entries of the header as strings: strings, numbers, `True` and
/// `False`, and lists of up to 1000 numbers as `[1, 2]`. It does not have longer lists and lists of
/// strings.
///
/// ```no_run
/// use mlx_primitives::io;
/// use mlx_primitives::ops::{QuantizedMode, QuantizedWeight};
///
/// let arrays = io::load_gguf("model-Q4_K_M.gguf")?.arrays;
/// let part = |name: &str| arrays[&format!("blk.0.ffn_up.{name}")].clone();
/// let (packed, scales, biases) = (part("weight"), part("scales"), part("biases"));
/// let weight = QuantizedWeight::new(packed, scales, Some(biases), 32, 4, QuantizedMode::Affine)?;
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
///
/// # Errors
///
/// Returns an error if the file is missing, truncated or of another format or version, for a type
/// that is not listed here, dimensions that are not whole blocks, offsets outside the file, tensors
/// that overlap, two tensors or two entries of one name, and more than 65,536 tensors or entries.
/// The error names the file, and the tensor if it concerns one. If the file becomes shorter later,
/// evaluating an array that is read from it fails.
pub fn load_gguf(path: impl AsRef<Path>) -> Result<Tensors> {
    load_gguf_with(path, KQuants::Affine)
}

/// Loads a GGUF file like [`load_gguf`], with a choice of the layout of K-quants.
///
/// With [`KQuants::Own`], a tensor `NAME.weight` of a type in this table becomes two arrays of the
/// mode [`KQuant`](crate::ops::QuantizedMode::KQuant): `NAME.weight` (uint32) and `NAME.scales`
/// (uint8). The weights are the same numbers.
///
/// | type | bits a weight in the file | bits of a code | group | bits a weight in memory |
/// |---|---|---|---|---|
/// | Q4_K | 4.5 | 4 | 32 | 4.63 |
/// | Q5_K | 5.5 | 5 | 32 | 5.63 |
/// | Q6_K | 6.56 | 6 | 16 | 6.63 |
///
/// ```no_run
/// use mlx_primitives::io::{self, KQuants};
/// use mlx_primitives::ops::{QuantizedMode, QuantizedWeight};
///
/// let arrays = io::load_gguf_with("model-Q4_K_M.gguf", KQuants::Own)?.arrays;
/// let part = |name: &str| arrays[&format!("blk.0.ffn_up.{name}")].clone();
/// let (packed, scales) = (part("weight"), part("scales"));
/// let weight = QuantizedWeight::new(packed, scales, None, 32, 4, QuantizedMode::KQuant)?;
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
///
/// # Errors
///
/// Returns an error in the cases of [`load_gguf`].
pub fn load_gguf_with(path: impl AsRef<Path>, k_quants: KQuants) -> Result<Tensors> {
    let gguf::GgufTensors { arrays, entries, .. } = gguf_tensors(path.as_ref(), k_quants)?;
    Ok(Tensors { arrays, metadata: entries.to_texts() })
}

/// Loads a GGUF file like [`load_gguf_with`], but keeps the types of the header's entries.
#[doc(hidden)]
pub fn gguf_tensors(path: &Path, k_quants: KQuants) -> Result<gguf::GgufTensors> {
    let (file, header) = gguf_header(path)?;
    header.load(stored::Source::File { file, path: path.to_owned() }, k_quants)
}

/// The entries of a GGUF file.
#[doc(hidden)]
pub fn gguf_entries(path: &Path) -> Result<gguf::Entries> {
    Ok(gguf_header(path)?.1.entries)
}

/// The types of the tensors of a GGUF file, by name. Only the header is read.
///
/// ```no_run
/// for kind in mlx_primitives::io::gguf_types("model-Q4_K_M.gguf")? {
///     println!("{}: {} tensors, {:?} bits", kind.name, kind.tensors, kind.bits);
/// }
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
///
/// # Errors
///
/// Returns an error in the cases of [`load_gguf`].
pub fn gguf_types(path: impl AsRef<Path>) -> Result<Vec<GgufType>> {
    Ok(gguf_header(path.as_ref())?.1.types())
}

fn gguf_header(path: &Path) -> Result<(File, gguf::Header)> {
    let file = files::open(path).map_err(|e| Error::file(path, e))?;
    let header = map(&file, gguf::check).map_err(|reason| Error::file(path, reason))?;
    Ok((file, header))
}

fn as_str(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::file(path, "expected a path of valid UTF-8"))
}

type Failure = Box<dyn std::error::Error>;

/// Maps a file into memory and calls `check` with its bytes.
fn map<T>(file: &File, check: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<T, Failure> {
    if file.metadata()?.len() == 0 {
        return Ok(check(&[])?); // nothing to map
    }
    // SAFETY: this function only reads the map, and drops it before it returns. No reader of a map
    // can guard against another process that truncates the file during the call.
    let bytes = unsafe { Mmap::map(file)? };
    Ok(check(&bytes)?)
}
