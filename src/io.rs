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

/// Named arrays and the metadata of the file that they came from.
#[derive(Default)]
pub struct Tensors {
    /// The arrays by name.
    pub arrays: HashMap<String, Array>,
    /// The entries of the file's header, as text.
    pub metadata: HashMap<String, String>,
}

/// Loads a safetensors file, whose header and length are checked first.
///
/// # Errors
/// Errors name the file, and the tensor where there is one: missing, truncated, not safetensors,
/// shapes and types that do not fit their offsets, offsets outside the file. A file that becomes
/// shorter later is an error of the array that is read from it.
pub fn load_safetensors(path: impl AsRef<Path>) -> Result<Tensors> {
    let path = path.as_ref();
    let file = files::open(path).map_err(|e| Error::io(path, e))?;
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

/// Loads a GGUF file, whose header and length are checked first.
///
/// Tensors of F32, F16, BF16 and of integers keep their types. A tensor `NAME.weight` of a type that
/// packs weights becomes three arrays of MLX's affine layout with groups of 32, as
/// [`QuantizedWeight::new`](crate::ops::QuantizedWeight::new) takes them: `NAME.weight` (uint32),
/// `NAME.scales` and `NAME.biases`. The scales and biases of Q4_0, Q4_1 and Q8_0 are float16, those of
/// the other types float32.
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
/// A step of Q6_K and of Q2_K, the distance between neighboring numbers, belongs to 16 weights, and MLX
/// has none for fewer than 32. Of the two halves of a group the one with the larger step, by which the
/// error is stated, keeps its numbers. The numbers of the other half are rounded.
///
/// Entries of the header are texts, numbers as such, `True` and `False`, and lists of up to 1000 numbers
/// as `[1, 2]`. Longer lists and lists of texts are left out.
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
/// Errors name the file, and the tensor where there is one: missing, truncated, another format or
/// version, a type that is not listed here, dimensions that are not whole blocks, offsets outside the
/// file, two tensors of one name. A file that becomes shorter later is an error of the array that is
/// read from it.
pub fn load_gguf(path: impl AsRef<Path>) -> Result<Tensors> {
    let path = path.as_ref();
    let (file, header) = gguf_header(path)?;
    header.load(stored::Source::File { file, path: path.to_owned() })
}

/// A type of a GGUF file's tensors, and what [`load_gguf`] makes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GgufType {
    /// The format's name for it, such as `Q4_K`.
    pub name: &'static str,
    /// Tensors of that type.
    pub tensors: usize,
    /// Bytes of them in the file.
    pub bytes: u64,
    /// Bits of a code in MLX's affine layout; none for a type that does not pack weights.
    pub bits: Option<i32>,
    /// By how much weights are rounded at most; none where all stay the same numbers.
    pub rounding: Option<&'static str>,
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
/// As [`load_gguf`].
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
