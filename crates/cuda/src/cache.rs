//! Caches compiled kernels on disk. A file contains the name of the kernel, its resources, a zero
//! byte, and the machine code. If the cache cannot be read or written, kernels are compiled each
//! time.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use mlx_primitives_build::cuda::{HEADERS, Kernel};

use crate::report::Report;

const VARIABLE: &str = "MLX_PRIMITIVES_CUDA_CACHE";
/// The version of the file format. It must change when the layout of the files changes.
const FORMAT: &str = "1";

/// Returns the folder for compiled kernels, or `None` if the system has no folder for caches.
pub fn folder() -> Option<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return Some(PathBuf::from(named));
    }
    let of_user = env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let cache = of_user.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("mlx-primitives/cuda"))
}

/// Returns a hash of everything that the machine code depends on, in hexadecimal.
pub(crate) fn key(kernel: &Kernel, options: &[String], version: (i32, i32)) -> String {
    let version = format!("{FORMAT} {}.{}", version.0, version.1);
    let headers = HEADERS.iter().flat_map(|(name, text)| [*name, *text]);
    let parts = [version.as_str(), env!("CARGO_PKG_VERSION"), &kernel.expression, &kernel.text];
    // Leave out the path of the headers. It does not affect the machine code, and it differs
    // between machines.
    let options = options.iter().map(String::as_str).filter(|option| !option.starts_with("-I"));
    let all: Vec<&str> = parts.into_iter().chain(options).chain(headers).collect();
    format!("{:016x}{:016x}", hash(&all, 0xcbf2_9ce4_8422_2325), hash(&all, 0x9e37_79b9_7f4a_7c15))
}

/// Returns the FNV-1a hash of the parts and their lengths. `start` is the initial value.
fn hash(parts: &[&str], start: u64) -> u64 {
    let mut hash = start;
    for part in parts {
        for byte in (part.len() as u64).to_le_bytes().iter().chain(part.as_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash
}

/// Reads a kernel's symbol, resources and machine code. Returns `None` if the file is missing or
/// damaged.
pub(crate) fn find(path: &Path) -> Option<(String, Report, Vec<u8>)> {
    let bytes = fs::read(path).ok()?;
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let words = std::str::from_utf8(&bytes[..end]).ok()?;
    let words: Vec<&str> = words.split(' ').collect();
    let [symbol, registers, stack, spilled] = words[..] else { return None };
    let report = Report {
        registers: registers.parse().ok()?,
        stack: stack.parse().ok()?,
        spilled: spilled.parse().ok()?,
    };
    // Reject a file without machine code, which another program may have truncated.
    let code = &bytes[end + 1..];
    code.starts_with(b"\x7fELF").then(|| (symbol.to_owned(), report, code.to_owned()))
}

pub(crate) fn keep(path: &Path, symbol: &str, report: Report, code: &[u8]) {
    static DRAFTS: AtomicU32 = AtomicU32::new(0);
    let Some(folder) = path.parent() else { return };
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let draft = path.with_extension(format!("{}-{number}", process::id()));
    let Report { registers, stack, spilled } = report;
    let head = format!("{symbol} {registers} {stack} {spilled}\0");
    let bytes = [head.as_bytes(), code].concat();
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&draft, bytes));
    if written.and_then(|()| fs::rename(&draft, path)).is_err() {
        let _ = fs::remove_file(&draft);
    }
}
