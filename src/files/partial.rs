//! Incomplete files and folders. A process locks each file or folder that it writes. An unlocked
//! file or folder is stale: the process that wrote it was killed, so other processes remove it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The prefix of the names of incomplete files and folders. Random letters follow.
pub const PREFIX: &str = ".partial-mlx-primitives-";

/// How often another process may remove a new file as stale before `create` returns an error.
const ATTEMPTS: usize = 16;

/// The incomplete files and folders of this process.
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn live() -> MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lock that tells other processes, while the value exists, that a file or folder is not stale.
pub struct Alive {
    path: PathBuf,
    /// The locked file. The system releases the lock when the process ends.
    _lock: File,
}

impl Drop for Alive {
    fn drop(&mut self) {
        live().retain(|path| *path != self.path);
    }
}

/// Creates a file or folder and locks it.
pub fn create<T>(
    create: impl Fn() -> io::Result<T>,
    path: impl Fn(&T) -> &Path,
) -> io::Result<(T, Alive)> {
    for _ in 0..ATTEMPTS {
        let mut live = live(); // locked, so that `abandon` sees every file that is created
        let made = create()?;
        // Until this process locks the new file, another process may consider it stale, and lock or
        // remove it.
        let file = match File::open(path(&made)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        let lock = file.try_lock();
        let locked = match lock {
            Ok(()) => true,
            Err(fs::TryLockError::WouldBlock) => false,
            // File systems without locks return an error. `remove_stale` removes nothing there.
            Err(fs::TryLockError::Error(_)) => true,
        };
        let same = |found: fs::Metadata| file.metadata().is_ok_and(|own| own.ino() == found.ino());
        if locked && fs::symlink_metadata(path(&made)).is_ok_and(same) {
            let path = path(&made).to_owned();
            live.push(path.clone());
            return Ok((made, Alive { path, _lock: file }));
        }
    }
    Err(io::Error::other("other processes remove what is being written"))
}

/// Removes files and folders in `folder` that killed processes left.
pub fn remove_stale(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(kind) = entry.file_type() else { continue };
        if !kind.is_file() && !kind.is_dir() {
            continue;
        }
        let path = entry.path();
        let Ok(file) = File::open(&path) else { continue };
        if file.try_lock().is_ok() {
            remove(&path); // before the lock is released
        }
    }
}

fn remove(path: &Path) {
    // If a file cannot be removed, the next call tries again.
    let _ = match path.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
}

/// Removes the files and folders that this process is writing. Call this before the process ends
/// without running destructors. No file can be created afterwards.
#[doc(hidden)]
pub fn abandon() {
    let live = live();
    for path in &*live {
        // Another thread may still write into a folder, so its removal may need several attempts.
        for _ in 0..ATTEMPTS {
            remove(path);
            if !path.exists() {
                break;
            }
        }
    }
    std::mem::forget(live); // stays locked
}
