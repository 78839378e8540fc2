//! Makes file names from hashes of contents, and creates files atomically.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Result, at_path};

/// Returns a 128-bit hash of the parts in hexadecimal.
pub(crate) fn key<'a, T: Hash + ?Sized + 'a>(parts: impl Iterator<Item = &'a T>) -> String {
    let mut low = DefaultHasher::new();
    let mut high = DefaultHasher::new();
    high.write_u8(1);
    for part in parts {
        part.hash(&mut low);
        part.hash(&mut high);
    }
    format!("{:016x}{:016x}", high.finish(), low.finish())
}

/// Returns a path in `folder` that no other thread or process uses.
pub(crate) fn draft(folder: &Path) -> PathBuf {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("draft-{}-{serial}", std::process::id()))
}

/// Renames `draft` to `place`. If the rename fails because another process has already created
/// `place`, keeps the existing `place`.
pub(crate) fn publish(draft: &Path, place: &Path) -> Result<()> {
    let renamed = std::fs::rename(draft, place);
    if renamed.is_err() && place.exists() {
        let _ = std::fs::remove_dir_all(draft);
        return Ok(());
    }
    at_path(place, renamed)
}
