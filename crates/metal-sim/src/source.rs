//! A Metal source and its preprocessing.

use std::path::{Path, PathBuf};

use crate::compiler::Compiler;
use crate::error::{Result, at_path};
use crate::shim;

/// A Metal source file and how to preprocess it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The `.metal` file.
    pub path: PathBuf,
    /// Folders for `#include`.
    pub include_dirs: Vec<PathBuf>,
    /// Macros, as `NAME` or `NAME=value`.
    pub defines: Vec<String>,
}

impl Source {
    /// Creates a source without include folders or macros.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Source { path: path.into(), ..Source::default() }
    }

    /// Adds a folder for `#include`.
    pub fn include_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.include_dirs.push(folder.into());
        self
    }

    /// Adds a macro, as `NAME` or `NAME=value`.
    pub fn define(mut self, define: impl Into<String>) -> Self {
        self.defines.push(define.into());
        self
    }

    pub(crate) fn preprocess(&self, compiler: &Compiler, folder: &Path) -> Result<Preprocessed> {
        at_path(folder, std::fs::create_dir_all(folder))?;
        let folder = at_path(folder, folder.canonicalize())?;
        let shim = shim::write(&folder)?;
        at_path(&self.path, std::fs::metadata(&self.path))?;
        let mut arguments: Vec<String> =
            ["-E", "-x", "c++", "-std=c++17", "-nostdinc", "-nostdinc++", "-Wno-everything"]
                .map(String::from)
                .to_vec();
        arguments.push(format!("-I{}", shim.display()));
        // Metal's compiler predefines the scalar and vector types, so include them first.
        for header in ["types", "traits", "vectors"] {
            arguments.extend(["-include".into(), format!("{}/msl/{header}.h", shim.display())]);
        }
        arguments.extend(self.include_dirs.iter().map(|dir| format!("-I{}", dir.display())));
        arguments.extend(
            ["__METAL__=1", "__METAL_VERSION__=320", "__METAL_MACOS__=1"].map(|d| format!("-D{d}")),
        );
        arguments.extend(self.defines.iter().map(|define| format!("-D{define}")));
        arguments.extend(["__linux__", "__x86_64__", "__aarch64__"].map(|d| format!("-U{d}")));
        arguments.push(self.path.display().to_string());
        let text = compiler.compile(&folder, &self.path, arguments)?;
        let text = String::from_utf8_lossy(&text);
        // Remove macros from `#pragma unroll`: the preprocessor does not expand them, and its
        // output does not define them.
        let named = |line: &str| {
            line.trim()
                .strip_prefix("#pragma unroll")
                .is_some_and(|it| it.contains(|c: char| c.is_alphabetic()))
        };
        let lines = text.lines().map(|line| if named(line) { "#pragma unroll" } else { line });
        let text = lines.flat_map(|line| [line, "\n"]).collect();
        Ok(Preprocessed { text, shim, folder })
    }
}

pub(crate) struct Preprocessed {
    pub(crate) text: String,
    pub(crate) shim: PathBuf,
    pub(crate) folder: PathBuf,
}
