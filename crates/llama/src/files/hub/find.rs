//! Finds the path of a model.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use mlx_primitives::{Error, Result};

#[cfg(feature = "hub")]
use super::download::download;
use super::name::Name;
use super::{Download, cache};

/// The path of a model: the argument, if there is such a file or folder, and otherwise the folder
/// or the `.gguf` file of the model with this name on the Hugging Face hub.
///
/// A name is `org/name`, and `org/name@revision` a branch, tag or commit other than `main`. Of a
/// repository with GGUF files, `org/name/file.gguf` is one of them; without the file's name the
/// repository must have one alone. Only files that a model here can need are downloaded:
/// configuration, tokenizer, chat templates and weights.
///
/// A path that neither exists nor has the form of a name is returned as it is.
///
/// `watch` is called as bytes arrive, and ends the download if it returns a break. A download that
/// ended early, also by the end of the process, goes on where it ended when the model is asked for
/// again.
///
/// # Errors
///
/// Returns an error that names the model and the cure if it is not in the cache and cannot be
/// downloaded: offline or without the feature `hub`, without a right to read it, because the hub
/// does not know it, because it has no weights that this crate reads, or because the connection
/// breaks five times without a byte.
///
/// ```
/// use std::ops::ControlFlow;
/// use mlx_primitives_llama::hub;
///
/// let folder = hub::find("assets/demo", |download| {
///     println!("{}: {} of {} bytes", download.file, download.done, download.total);
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(folder, std::path::Path::new("assets/demo"));
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn find(
    model: impl AsRef<Path>,
    mut watch: impl FnMut(Download<'_>) -> ControlFlow<()>,
) -> Result<PathBuf> {
    let path = model.as_ref();
    let Some(name) = Name::of(path).filter(|_| !path.exists()) else {
        return Ok(path.to_owned());
    };
    let folder = cache::folder()?;
    if let Some(found) = cache::find(&folder, &name) {
        return Ok(found);
    }
    let refused = |reason: &dyn std::fmt::Display| {
        Error::file(path, format_args!("there is no such file or folder here, and {reason}"))
    };
    if cache::is_offline() {
        let place = folder.join(name.folder());
        return Err(refused(&format_args!(
            "the model is not complete in {}, and HF_HUB_OFFLINE is set: unset it to download the \
             model",
            place.display()
        )));
    }
    download(&folder, &name, &mut watch).map_err(|reason| refused(&reason))?;
    cache::find(&folder, &name).ok_or_else(|| refused(&"its files do not make a model"))
}

#[cfg(not(feature = "hub"))]
fn download(
    folder: &Path,
    name: &Name,
    _: &mut dyn FnMut(Download<'_>) -> ControlFlow<()>,
) -> Result<(), String> {
    Err(format!(
        "the model is not in {}, and this program was built without the feature `hub`: run \
         `hf download {}`",
        folder.display(),
        name.repository
    ))
}
