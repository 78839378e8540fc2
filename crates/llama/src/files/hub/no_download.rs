//! Stands for the downloads where the feature `hub` is off.

use std::ops::ControlFlow;
use std::path::Path;

use super::Download;
use super::name::Name;

pub(super) fn download(
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
