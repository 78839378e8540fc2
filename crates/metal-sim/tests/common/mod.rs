//! Helpers for all tests: one compiler, one cache, and functions that compile kernels from text.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use metal_sim::{Compiler, Constants, Kernel, Library, Source};

pub fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    COMPILER.get_or_init(|| Compiler::find().unwrap_or_else(|error| panic!("{error}")))
}

pub fn cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let folder = std::env::var_os("METAL_SIM_CACHE").map(PathBuf::from);
        folder.unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("metal-sim"))
    })
}

/// The path of one of the sources in the workspace's folder `metal`.
pub fn metal(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../metal/{name}.metal"))
}

const HEAD: &str = "#include <metal_stdlib>\nusing namespace metal;\n";
/// The number of lines that [`library`] puts before the text.
pub const HEAD_LINES: u32 = 2;

/// Compiles the text of a source.
pub fn library(text: &str) -> Library {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.metal");
    std::fs::write(&path, format!("{HEAD}{text}")).unwrap();
    Library::compile(&Source::new(&path), compiler(), cache()).unwrap_or_else(|e| panic!("{e}"))
}

/// Compiles the text of one kernel.
pub fn kernel(text: &str) -> Kernel {
    let library = library(text);
    let name = library.kernels().unwrap()[0].name.clone();
    library.kernel(&name, &Constants::new()).unwrap()
}
