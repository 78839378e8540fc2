//! Finds out whether the loaded MLX has kernels for the neural accelerators of the GPU's cores. MLX
//! contains them only if it is built for macOS 26.2 or later. MLX's wheels for macOS 14 and 15 and
//! some other packages do not contain them.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::OnceLock;

use crate::device;

/// A part of the names of MLX's kernels for neural accelerators.
const NAMED: &[u8] = b"nax";
/// The maximum number of bytes to read of a library's list of functions. MLX's list has three
/// million bytes.
const MOST: u64 = 64 << 20;

/// Returns whether the loaded MLX has kernels for neural accelerators. Returns `None` if MLX's
/// metallib is not in the folder of MLX's library, for example on systems other than macOS.
pub(super) fn in_mlx() -> Option<bool> {
    static FOUND: OnceLock<Option<bool>> = OnceLock::new();
    *FOUND.get_or_init(|| has_kernels(&device::mlx_library()?.with_file_name("mlx.metallib")).ok())
}

/// Returns whether a metallib has kernels for neural accelerators. Reads only its header and its
/// list of functions.
///
/// # Errors
///
/// Returns an error if the file cannot be read, or is not a metallib.
pub fn has_kernels(metallib: &Path) -> io::Result<bool> {
    let mut file = File::open(metallib)?;
    let mut header = [0; 40];
    file.read_exact(&mut header)?;
    let word = |at: usize| {
        header[at..at + 8].iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte))
    };
    if !header.starts_with(b"MTLB") {
        return Err(io::Error::other("no metallib"));
    }
    file.seek(SeekFrom::Start(word(24)))?;
    let mut list = Vec::new();
    file.take(word(32).min(MOST)).read_to_end(&mut list)?;
    Ok(list.windows(NAMED.len()).any(|part| part == NAMED))
}
