//! Opens regular files, refuses others such as named pipes, and replaces files atomically.

use std::fs::{self, File, FileType};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// This crate's folder in the user's cache folder, or `None` if neither `XDG_CACHE_HOME` nor `HOME`
/// names an absolute folder.
pub fn user_cache() -> Option<PathBuf> {
    let folder = |name: &str| {
        std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
    };
    let of_home = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(of_home)))?;
    Some(cache.join("mlx-primitives"))
}

/// Opens a regular file for reading.
///
/// Other files are refused before they are opened: opening a named pipe waits until another process
/// writes to it, and opening a device can act on the device.
///
/// # Errors
///
/// Returns an error if the path does not lead to a regular file that can be read.
pub fn open(path: &Path) -> io::Result<File> {
    check(path)?;
    File::open(path)
}

/// Reads the bytes of a regular file.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    check(path).and_then(|()| fs::read(path)).map_err(|e| Error::io(path, e))
}

/// Reads the text of a regular file.
///
/// # Errors
///
/// Returns an error that names the file if it is not a regular file, cannot be read or is not
/// UTF-8.
pub fn read_to_string(path: &Path) -> Result<String> {
    check(path).and_then(|()| fs::read_to_string(path)).map_err(|e| Error::io(path, e))
}

/// Reads the text of a regular file, or returns `None` if there is no file of that name.
pub fn read_if_present(path: &Path) -> Result<Option<String>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        _ => read_to_string(path).map(Some),
    }
}

/// Returns an error unless the path leads to a regular file.
fn check(path: &Path) -> io::Result<()> {
    regular(fs::metadata(path)?.file_type())
}

fn regular(kind: FileType) -> io::Result<()> {
    match kind.is_file() {
        true => Ok(()),
        false => Err(io::Error::other(format!("expected a regular file, got {}", name(kind)))),
    }
}

/// Checks that a file may be written to the path: the path leads to a regular file or to nothing.
///
/// # Errors
///
/// Returns an error if the path leads to something else, such as a directory or a named pipe.
pub fn check_replaceable(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(found) => regular(found.file_type()).map_err(|e| Error::io(path, e)),
        Err(_) => Ok(()), // creating the file will show whether it can be written
    }
}

fn name(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a named pipe";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    if kind.is_dir() { "a directory" } else { "another kind of file" }
}

pub mod partial;
pub use partial::abandon;
pub use replacement::{NewFolders, Replacement, parent, reason, sync_folder};

mod replacement {
    use std::fs::{self, File};
    use std::io;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    use tempfile::{Builder, TempPath};

    use super::partial;

    use crate::error::{Error, Result};

    /// A new file. When it is complete, it replaces another file in the same folder.
    ///
    /// Dropping a `Replacement` without [`commit`](Self::commit) removes the new file, and the
    /// other file stays as it was. If the process is killed, the new file stays, under a name that
    /// begins with `.partial-`. The next `Replacement` in that folder removes it. If the other file
    /// is a link, the link is replaced and not its target, so another user's link cannot damage a
    /// file.
    pub struct Replacement {
        path: PathBuf,
        partial: TempPath,
        _alive: partial::Alive,
    }

    impl Replacement {
        /// Creates the new, empty file, or returns an error if no file of that name can be written.
        /// The new file gets the permissions of the other file, or default permissions if there is
        /// no other file.
        pub fn of(path: &Path) -> Result<Self> {
            Self::with_mode(path, 0o666)
        }

        /// Creates a file like [`of`](Self::of) that only its owner may read and write, unless the
        /// other file has different permissions.
        pub fn private(path: &Path) -> Result<Self> {
            Self::with_mode(path, 0o600)
        }

        fn with_mode(path: &Path, mode: u32) -> Result<Self> {
            super::check_replaceable(path)?;
            partial::remove_stale(parent(path));
            let extension = path.extension().unwrap_or_default().to_string_lossy();
            let suffix = format!(".{extension}");
            let mut builder = Builder::new();
            builder.prefix(partial::PREFIX).suffix(&suffix);
            // The process's umask limits these permissions.
            builder.permissions(fs::Permissions::from_mode(mode));
            // Reports only the kind of the error, since its text names the temporary file.
            let failed = |error: io::Error| {
                Error::file(path, format_args!("cannot be written: {}", error.kind()))
            };
            let (file, alive) =
                partial::create(|| builder.tempfile_in(parent(path)), |it| it.path())
                    .map_err(failed)?;
            if let Ok(other) = fs::symlink_metadata(path)
                && other.is_file()
            {
                let mode = fs::Permissions::from_mode(other.permissions().mode() & 0o777);
                file.as_file().set_permissions(mode).map_err(failed)?;
            }
            Ok(Self { path: path.to_owned(), partial: file.into_temp_path(), _alive: alive })
        }

        /// Calls `write` with the path of the new file, and waits until its contents are on the
        /// disk.
        pub fn write(&self, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
            write(&self.partial).map_err(|error| self.failed(&error))?;
            File::open(&self.partial)
                .and_then(|file| file.sync_all())
                .map_err(|e| self.failed(&Error::io(&self.partial, e)))
        }

        /// Replaces the other file with the new one.
        pub fn commit(self) -> Result<()> {
            let Self { path, partial, .. } = self;
            partial
                .persist(&path)
                .map_err(|e| Error::file(&path, format_args!("cannot be replaced: {}", e.error)))?;
            sync_folder(parent(&path));
            Ok(())
        }

        fn failed(&self, error: &Error) -> Error {
            Error::file(&self.path, format_args!("cannot be written: {}", reason(error)))
        }
    }

    /// The reason why a file was not written, without the name of the temporary file.
    pub fn reason(error: &Error) -> String {
        let reason = match error {
            Error::File { reason, .. } => reason.clone(),
            Error::Io { error, .. } => error.to_string(),
            other => other.to_string(),
        };
        // MLX's error tells how many bytes it could not write, but not why.
        let hint = if reason.contains("Unable to write") { " Is the disk full?" } else { "" };
        reason + hint
    }

    /// New folders that files will be written to. Dropping this value removes those folders that
    /// are empty, unless [`keep`](Self::keep) was called.
    pub struct NewFolders(Vec<PathBuf>);

    impl NewFolders {
        /// Creates a folder and the folders above it that are missing.
        pub fn create(folder: &Path) -> io::Result<Self> {
            let named = folder.ancestors().filter(|above| !above.as_os_str().is_empty());
            let missing = named.take_while(|above| !above.exists());
            let new = Self(missing.map(Path::to_owned).collect());
            fs::create_dir_all(folder)?;
            Ok(new)
        }

        pub fn keep(mut self) {
            self.0.clear();
        }
    }

    impl Drop for NewFolders {
        fn drop(&mut self) {
            for folder in &self.0 {
                let _ = fs::remove_dir(folder); // the caller reports an earlier failure
            }
        }
    }

    /// The folder that a path lies in.
    pub fn parent(path: &Path) -> &Path {
        match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        }
    }

    /// Makes sure that the names in a folder are on the disk, if the file system supports this.
    pub fn sync_folder(folder: &Path) {
        // An error does no harm: if the machine crashes and loses the new name, the earlier file is
        // still complete.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
}
