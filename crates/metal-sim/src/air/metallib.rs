//! Reads the container format of Apple's compiled kernels: the names of kernels, and the positions
//! of their bitcode.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, at_path};

/// A `.metallib`. It contains the AIR (Apple's LLVM IR) of each function as bitcode.
pub struct Metallib {
    path: PathBuf,
    file: File,
    /// The offset and the length of each function's bitcode.
    functions: BTreeMap<String, (u64, usize)>,
}

impl Metallib {
    /// Reads the list of functions.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the file cannot be read, and [`Error::Load`] if it is not a
    /// metallib.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = at_path(path, File::open(path))?;
        let mut header = [0u8; 88];
        at_path(path, file.read_exact_at(&mut header, 0))?;
        let broken = || Error::Load(format!("{} is not a Metal library", path.display()));
        if !header.starts_with(b"MTLB") {
            return Err(broken());
        }
        // From byte 16 on, a metallib has 64-bit numbers: its size, and then the offsets and sizes
        // of the function list, the public metadata, the private metadata, and the bitcode.
        let word = |i: usize| number(&header[16 + 8 * i..][..8]);
        let (list_at, list_size, bitcode_at) = (word(1), word(2), word(7));
        // A broken file may state any size, so the size is checked before the allocation.
        let whole = at_path(path, file.metadata())?.len();
        if list_size > whole {
            return Err(broken());
        }
        let mut list = vec![0u8; usize::try_from(list_size).map_err(|_| broken())? + 4];
        at_path(path, file.read_exact_at(&mut list, list_at))?;
        let functions = entries(&list, bitcode_at).ok_or_else(broken)?;
        if functions.values().any(|&(_, size)| size as u64 > whole) {
            return Err(broken());
        }
        Ok(Metallib { path: path.to_path_buf(), file, functions })
    }

    /// The names of all functions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.functions.keys().map(String::as_str)
    }

    /// Reads the bitcode of one function.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoKernel`] if the metallib has no such function, and [`Error::Io`] if the
    /// file cannot be read.
    pub fn bitcode(&self, name: &str) -> Result<Vec<u8>> {
        let Some(&(at, size)) = self.functions.get(name) else {
            return Err(Error::NoKernel(format!("{} has no '{name}'", self.path.display())));
        };
        let mut bitcode = vec![0u8; size];
        at_path(&self.path, self.file.read_exact_at(&mut bitcode, at))?;
        Ok(bitcode)
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Parses the function list. It begins with a count. An entry for each function follows, with the
/// size of the entry and a list of tags. Each tag has a name, a length and data.
fn entries(list: &[u8], bitcode_at: u64) -> Option<BTreeMap<String, (u64, usize)>> {
    let mut functions = BTreeMap::new();
    let mut at = 4;
    for _ in 0..number(list.get(..4)?) {
        let entry = list.get(at..)?.get(..number(list.get(at..at + 4)?) as usize)?;
        let (mut name, mut offset, mut size) = (None, None, None);
        let mut tag = 4;
        while let Some(head) = entry.get(tag..tag + 6).filter(|head| !head.starts_with(b"ENDT")) {
            let length = number(&head[4..]) as usize;
            let data = entry.get(tag + 6..tag + 6 + length)?;
            match &head[..4] {
                b"NAME" => {
                    let text = data.strip_suffix(b"\0").unwrap_or(data);
                    name = Some(String::from_utf8_lossy(text).into_owned());
                }
                b"OFFT" => offset = Some(number(data.get(16..24)?)), // the bitcode's offset
                b"MDSZ" => size = Some(number(data.get(..8)?) as usize),
                _ => {}
            }
            tag += 6 + length;
        }
        functions.insert(name?, (bitcode_at.checked_add(offset?)?, size?));
        at += entry.len().max(4);
    }
    Some(functions)
}
