//! Finds the path of a model.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use mlx_primitives::{Error, Result};

#[cfg(feature = "hub")]
use super::download::download;
use super::name::Name;
use super::{Download, cache};

/// Returns the path of a model. If `model` is an existing file or folder, this is `model` itself.
/// Otherwise `model` is a name on the Hugging Face hub, and the path is the model's folder or
/// `.gguf` file in the cache, after a download if necessary.
///
/// A name is `org/name`, or `org/name@revision` for a branch, tag or commit other than `main`.
/// `org/name/file.gguf` names one GGUF file of a repository, which is necessary if the repository
/// has several GGUF files and no other weights. Only files that this crate can use are downloaded:
/// configuration, tokenizer, chat templates and weights.
///
/// A path that neither exists nor has the form of a name is returned as it is.
///
/// The function calls `watch` as bytes arrive. If `watch` returns `Break`, the download stops. If a
/// download stopped early, even because the process ended, the next call for the model continues
/// it.
///
/// # Errors
///
/// Returns an error if the model is not in the cache and cannot be downloaded: offline, without the
/// feature `hub`, or without permission to read it. It is also an error if the hub does not know
/// the model, if the model has no weights that this crate reads, or if the connection breaks five
/// times without a new byte in between. The error names the model and says what to do.
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
