//! Models that are split into several files with names such as `NAME-00001-of-00003.gguf`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use mlx_primitives::io::gguf::Entries;
use mlx_primitives::{Array, Error, Result, io};

use super::keys::whole;
use super::tensors::Files;

/// The maximum number of parts. The five digits in a file name allow more parts, but no known
/// model has more.
const MOST: u64 = 1024;

/// Returns the files of a model in order. If `path` is a part of a split model, these are all parts
/// of the model. Otherwise only `path` is returned.
pub(super) fn of(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = io::gguf_entries(path)?;
    let Some((number, count)) = place(&entries).map_err(|e| Error::file(path, e))? else {
        return Ok(vec![path.to_owned()]);
    };
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let ending = |number: u64| format!("-{:05}-of-{count:05}.gguf", number + 1);
    let Some(stem) = name.strip_suffix(&ending(number)) else {
        let (part, ending) = (number + 1, ending(number));
        return Err(Error::file(
            path,
            format_args!(
                "this is part {part} of {count}, expected a name that ends in {ending}, beside the \
                 other parts"
            ),
        ));
    };
    let mut parts = Vec::new();
    for other in 0..count {
        let part = path.with_file_name(format!("{stem}{}", ending(other)));
        if other != number {
            if !part.exists() {
                let (here, missing) = (number + 1, part.display());
                return Err(Error::file(
                    path,
                    format_args!("this is part {here} of {count}, expected {missing} beside it"),
                ));
            }
            let found = place(&io::gguf_entries(&part)?).map_err(|e| Error::file(&part, e))?;
            if found != Some((other, count)) {
                let part_number = other + 1;
                let expected = format_args!("expected part {part_number} of {count}, got another");
                return Err(Error::file(&part, expected));
            }
        }
        parts.push(part);
    }
    Ok(parts)
}

/// The index of this part, from 0, and the number of parts; `None` if the model is not split.
fn place(entries: &Entries) -> Result<Option<(u64, u64)>> {
    let count = whole(entries, "split.count")?.unwrap_or(1);
    if count <= 1 {
        return Ok(None);
    }
    let number = whole(entries, "split.no")?.unwrap_or(0);
    if count > MOST || number >= count {
        return Err(Error::argument(
            "gguf",
            format_args!("split.no below a split.count of at most {MOST}, got {number} of {count}"),
        ));
    }
    Ok(Some((number, count)))
}

/// Returns an error if the number of tensors in all files differs from the number in `entries`.
pub(super) fn check(path: &Path, entries: &Entries, files: &Files) -> Result<()> {
    let expected = whole(entries, "split.tensors.count").map_err(|e| Error::file(path, e))?;
    let (Some(expected), true) = (expected, files.len() > 1) else { return Ok(()) };
    // A packed tensor is read as three arrays (weight, scales, biases), which count as one tensor.
    let own = |arrays: &HashMap<String, Array>| {
        let part = |name: &str, end: &str| {
            name.strip_suffix(end).is_some_and(|stem| {
                arrays.contains_key(stem) || arrays.contains_key(&format!("{stem}.weight"))
            })
        };
        arrays.keys().filter(|name| !part(name, ".scales") && !part(name, ".biases")).count()
    };
    let found: usize = files.iter().map(|(_, arrays)| own(arrays)).sum();
    if found as u64 != expected {
        return Err(Error::file(
            path,
            format_args!("expected {expected} tensors in all parts, got {found}"),
        ));
    }
    Ok(())
}
