//! Joins a source file and the files that it includes into one text.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, file};

pub(crate) struct Flat {
    pub(crate) text: String,
    /// The files that were read.
    pub(crate) files: Vec<PathBuf>,
}

/// Returns the text of a source, in which the text of each file replaces its first `#include "..."`
/// line. So the result compiles without include folders. `flatten` looks for a file beside the file
/// that includes it, then in `include_dirs`. Includes in angle brackets stay. Every character must
/// be ASCII, even in comments, because MLX passes sources to Metal as ASCII.
///
/// # Errors
///
/// Returns an error if a file cannot be read or is not ASCII, or an included file does not exist.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join("one.h"), "#pragma once\nconstant int one = 1;\n")?;
/// let path = folder.path().join("two.metal");
/// std::fs::write(&path, "#include \"one.h\"\n#include \"one.h\"\nconstant int two = 2;\n")?;
/// let text = mlx_primitives_build::flatten(&path, &[])?;
/// assert_eq!(text, "constant int one = 1;\nconstant int two = 2;\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn flatten(source: impl AsRef<Path>, include_dirs: &[PathBuf]) -> Result<String, Error> {
    Ok(files(source.as_ref(), include_dirs)?.text)
}

pub(crate) fn files(source: &Path, include_dirs: &[PathBuf]) -> Result<Flat, Error> {
    let mut flat = Flat { text: String::new(), files: Vec::new() };
    let mut seen = Vec::new();
    add(source, include_dirs, &mut flat, &mut seen)?;
    Ok(flat)
}

fn add(
    path: &Path,
    dirs: &[PathBuf],
    flat: &mut Flat,
    seen: &mut Vec<PathBuf>,
) -> Result<(), Error> {
    let identity = path.canonicalize().map_err(|error| file(path, error))?;
    if seen.contains(&identity) {
        return Ok(());
    }
    seen.push(identity);
    flat.files.push(path.to_owned());
    let text = fs::read_to_string(path).map_err(|error| file(path, error))?;
    if let Some(above) = text.lines().position(|line| !line.is_ascii()) {
        let line = above + 1;
        return Err(file(
            path,
            format_args!("line {line} is not ASCII, as MLX wants Metal source"),
        ));
    }
    for line in text.lines() {
        let directive = line.trim().strip_prefix('#').map_or("", str::trim_start);
        if directive == "pragma once" {
            continue;
        }
        let Some(included) = directive.strip_prefix("include").and_then(quoted) else {
            flat.text += line;
            flat.text.push('\n');
            continue;
        };
        let beside = path.parent().unwrap_or(Path::new(""));
        let folders = std::iter::once(beside).chain(dirs.iter().map(PathBuf::as_path));
        let mut candidates = folders.map(|folder| folder.join(included));
        let found = candidates.find(|candidate| candidate.is_file()).ok_or_else(|| {
            file(path, format_args!("includes \"{included}\", which is not there"))
        })?;
        add(&found, dirs, flat, seen)?;
    }
    Ok(())
}

fn quoted(rest: &str) -> Option<&str> {
    rest.trim().strip_prefix('"')?.split('"').next()
}
