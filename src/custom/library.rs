//! Metal libraries of custom primitives.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::metallib::{self, MetalVersion};
use crate::error::{Error, Result};
use crate::files;

/// Metal kernels, either compiled ahead of time, or as source that MLX compiles when a kernel is
/// first used.
///
/// Handles with the same contents refer to one library. Libraries with different contents never
/// share a kernel, even of the same name. MLX loads a library at the first launch and keeps it
/// until the process ends, so an array may outlive all handles to its library.
///
/// On Linux, the simulator and NVIDIA GPUs run the kernels of a library's source.
#[derive(Clone)]
pub struct MetalLibrary(Arc<Library>);

#[derive(Clone, PartialEq, Eq, Hash)]
struct Contents {
    metallib: Option<Cow<'static, [u8]>>,
    source: Option<Cow<'static, str>>,
}

struct Library {
    name: String,
    contents: Contents,
    version: Option<MetalVersion>,
    /// The file from which MLX reads the metallib, since it cannot read one from memory.
    file: OnceLock<Result<PathBuf, String>>,
}

impl MetalLibrary {
    /// Reads the `.metallib` at a path.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or is not a metallib that this machine can
    /// load; see [`MetalLibrary::from_bytes`].
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = files::read(path)?;
        Self::from_bytes(bytes).map_err(|error| Error::file(path, error))
    }

    /// A library from the bytes of a `.metallib`, as `include_bytes!` gives them.
    ///
    /// # Errors
    ///
    /// Returns an error if the metallib's header or list of functions is damaged, if it is not for
    /// macOS, if it needs a later macOS than this one, or if its version of Metal is newer than
    /// this macOS runs or, on other systems, than this crate knows.
    pub fn from_bytes(metallib: impl Into<Cow<'static, [u8]>>) -> Result<Self> {
        Self::new(Contents { metallib: Some(metallib.into()), source: None })
    }

    /// A library from source in the Metal shading language, which may `#include` only Metal's own
    /// headers. It is compiled at the first launch, which fails if the source is wrong.
    ///
    /// # Errors
    ///
    /// Returns an error if the source contains a NUL.
    ///
    /// ```
    /// use mlx_primitives::custom::MetalLibrary;
    ///
    /// let library = MetalLibrary::from_source("#include <metal_stdlib>\n/* kernels */")?;
    /// assert_eq!(library.version(), None);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn from_source(source: impl Into<Cow<'static, str>>) -> Result<Self> {
        Self::new(Contents { metallib: None, source: Some(source.into()) })
    }

    /// A library from a metallib and its source, as `mlx-primitives-build` writes them. If
    /// `mlx-primitives-build` could not compile the source, the metallib is empty, and MLX compiles
    /// the source when a kernel is first used.
    ///
    /// # Errors
    ///
    /// Returns an error if the metallib is not empty and [`MetalLibrary::from_bytes`] refuses it,
    /// or if the source contains a NUL.
    pub fn from_build(metallib: &'static [u8], source: &'static str) -> Result<Self> {
        let metallib = (!metallib.is_empty()).then_some(Cow::Borrowed(metallib));
        Self::new(Contents { metallib, source: Some(source.into()) })
    }

    /// Adds the source of the library, which the simulator and NVIDIA GPUs need.
    ///
    /// # Errors
    ///
    /// Returns an error if the source contains a NUL.
    pub fn with_source(self, source: impl Into<Cow<'static, str>>) -> Result<Self> {
        Self::new(Contents { source: Some(source.into()), ..self.0.contents.clone() })
    }

    /// The newest version of Metal that a function of the metallib was compiled for; `None` without
    /// a metallib.
    pub fn version(&self) -> Option<MetalVersion> {
        self.0.version
    }

    fn new(mut contents: Contents) -> Result<Self> {
        static LIBRARIES: OnceLock<Mutex<HashMap<Contents, MetalLibrary>>> = OnceLock::new();

        let version = match &contents.metallib {
            Some(bytes) => Some(metallib::check(bytes)?),
            None => None,
        };
        // MLX passes sources to Metal as ASCII. Other characters can occur only in comments, so
        // spaces may replace them.
        if let Some(source) = contents.source.take_if(|source| !source.is_ascii()) {
            let ascii = source.chars().map(|c| if c.is_ascii() { c } else { ' ' });
            contents.source = Some(Cow::Owned(ascii.collect()));
        }
        if contents.source.as_ref().is_some_and(|source| source.contains('\0')) {
            return Err(Error::argument("metal_library", "a source without a NUL"));
        }
        let libraries = LIBRARIES.get_or_init(Mutex::default);
        let mut libraries = libraries.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("mlx_primitives_custom_{}", libraries.len());
        let library = libraries.entry(contents.clone()).or_insert_with(|| {
            Self(Arc::new(Library { name, contents, version, file: OnceLock::new() }))
        });
        Ok(library.clone())
    }

    pub(super) fn handle(&self) -> LibraryHandle {
        LibraryHandle(Arc::clone(&self.0))
    }
}

impl std::fmt::Debug for MetalLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetalLibrary")
            .field("name", &self.0.name)
            .field("version", &self.0.version)
            .finish_non_exhaustive()
    }
}

/// A library in the form that C++ calls.
pub(crate) struct LibraryHandle(Arc<Library>);

impl LibraryHandle {
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn metallib(&self) -> Result<String> {
        let Some(bytes) = &self.0.contents.metallib else {
            return Ok(String::new());
        };
        let file = self.0.file.get_or_init(|| write(bytes).map_err(|error| error.to_string()));
        let path = file.as_ref().map_err(|said| Error::from(format!("[metal_library] {said}")))?;
        Ok(path.display().to_string())
    }

    /// Removes the file, since MLX has loaded the library and does not need the file again.
    pub(crate) fn loaded(&self) {
        if let Some(Ok(path)) = self.0.file.get() {
            let _ = fs::remove_file(path);
        }
    }

    pub(crate) fn source(&self) -> Result<String> {
        let source = self.0.contents.source.as_ref().ok_or_else(|| {
            Error::argument(
                "metal_library",
                "the source of a metallib, which only a Mac runs, got none",
            )
        })?;
        Ok(source.clone().into_owned())
    }
}

/// Writes the bytes to a file that this function creates, so it cannot be another program's file.
fn write(bytes: &[u8]) -> std::io::Result<PathBuf> {
    for attempt in 0..100 {
        let name = format!("mlx-primitives-{}-{attempt}.metallib", std::process::id());
        let path = std::env::temp_dir().join(name);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(mut file) => {
                let written = file.write_all(bytes);
                if written.is_err() {
                    let _ = fs::remove_file(&path);
                }
                return written.map(|()| path);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(std::io::Error::other("no name is free for a metallib in the temporary folder"))
}
