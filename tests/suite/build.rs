//! What the build refuses.

use std::path::Path;
use std::process::Command;

use mlx_primitives::device;

/// The CMake that build.rs would take.
fn cmake() -> Command {
    let brought = Path::new(env!("CARGO_MANIFEST_DIR")).join(".mlx/python/cmake/data/bin/cmake");
    match std::env::var_os("CMAKE") {
        Some(path) => Command::new(path),
        None if brought.exists() => Command::new(brought),
        None => Command::new("cmake"),
    }
}

#[test]
fn headers_of_another_version_than_the_library_stop_the_build() {
    let (_, version) = device::mlx_versions();
    let directory = tempfile::tempdir().unwrap();
    let output = cmake()
        .arg("-S")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/cpp"))
        .arg("-B")
        .arg(directory.path())
        .arg(format!("-DMLX_DIR={}/share/cmake/MLX", device::mlx_prefix()))
        .arg("-DMLX_HEADER_VERSION=0.32.99")
        .output()
        .expect("the CMake that built this crate");
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(error.contains("MLX's headers are version 0.32.99"), "{error}");
    assert!(error.contains(&format!("is version {version}")), "{error}");
}
