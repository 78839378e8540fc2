//! Lists the files of the bridge between Rust and C++, and generates its C++. Part of `build.rs`.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;

/// The files that declare the bridge functions of every build.
const BRIDGES: [&str; 6] = [
    "src/collectives.rs",
    "src/custom/bridge.rs",
    "src/ffi/mod.rs",
    "src/ffi/ops.rs",
    "src/io/bridge.rs",
    "src/transforms/bridge.rs",
];

/// The files of this build.
pub fn files(simulates_metal: bool) -> impl Iterator<Item = &'static str> {
    let cuda = super::cuda::is_on().then_some("src/cuda.rs");
    let simulator = simulates_metal.then_some("src/simulate.rs");
    BRIDGES.into_iter().chain(cuda).chain(simulator)
}

/// Generates the C++. First removes the C++ of earlier builds, because it may belong to a deleted
/// file.
pub fn generate(simulates_metal: bool) -> Result<()> {
    let made = PathBuf::from(env::var("OUT_DIR")?).join("cxxbridge/sources/mlx-primitives/src");
    if made.exists() {
        fs::remove_dir_all(&made)?;
    }
    // Does not compile the generated C++, because CMake compiles it together with cpp/.
    drop(cxx_build::bridges(files(simulates_metal)));
    Ok(())
}
