//! The feature `cuda` in the build script: finds CUDA's headers. On a machine without an NVIDIA
//! GPU, replaces the GPU's libraries.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// Returns whether the feature is on. It has an effect only on Linux.
pub fn is_on() -> bool {
    env::var_os("CARGO_FEATURE_CUDA").is_some()
        && env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux")
}

/// Returns whether this MLX was built for CUDA. All wheels contain the headers of MLX's CUDA
/// backend, but only wheels for CUDA contain NVIDIA's headers, which MLX needs to compile kernels
/// at run time.
pub fn has_backend(prefix: &Path) -> bool {
    prefix.join("include/cccl").is_dir()
        && prefix.join("include/mlx/backend/cuda/device.h").is_file()
}

/// The folder that contains cuda_runtime.h, in the Python wheels installed beside MLX or in a CUDA
/// toolkit.
pub fn include(prefix: &Path) -> Result<PathBuf> {
    let beside = prefix.parent().unwrap_or(prefix).join("nvidia");
    let mut folders: Vec<PathBuf> =
        ["cu13", "cu12", "cuda_runtime"].map(|name| beside.join(name).join("include")).into();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
        folders.extend(env::var_os(variable).map(|home| Path::new(&home).join("include")));
    }
    folders.push(PathBuf::from("/usr/local/cuda/include"));
    let found = folders.into_iter().find(|folder| {
        folder.join("cuda_runtime.h").is_file() && folder.join("crt/host_defines.h").is_file()
    });
    found.context(
        "CUDA's headers were not found: run scripts/build_metal.sh --cuda, or `python3 -m pip \
         install nvidia-cuda-runtime nvidia-cuda-crt` beside MLX, or set CUDA_HOME to a CUDA toolkit",
    )
}

/// The libraries that libmlx needs and that this machine lacks. They are missing without an NVIDIA
/// GPU, or if pip installed MLX without its dependencies.
pub fn missing(libmlx: &Path) -> Result<Vec<String>> {
    let listed = Command::new("ldd").arg(libmlx).output().context("ldd")?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let missing: Vec<String> = listed
        .lines()
        .filter(|line| line.contains("not found"))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| name.contains(".so"))
        .map(str::to_owned)
        .collect();
    let known = ["cublas", "cuda", "cudnn", "cufft", "cusolver", "nccl", "nvrtc"];
    let other = missing.iter().find(|name| !known.iter().any(|part| name.contains(part)));
    if let Some(other) = other {
        bail!("{} needs {other}, which is not installed", libmlx.display());
    }
    Ok(missing)
}

/// Creates empty libraries in place of the missing libraries. With them, programs start that only
/// ask libmlx for its version.
pub fn stand_ins(missing: &[String]) -> Result<PathBuf> {
    let folder = empty_folder("stand_ins")?;
    let source = folder.join("empty.c");
    fs::write(&source, "typedef int empty;\n")?;
    for name in missing {
        // Each library gets the symbol version that libmlx needs. Otherwise the loader warns at
        // each start.
        let versions = folder.join(format!("{name}.versions"));
        fs::write(&versions, format!("{name} {{ global: *; }};\n"))?;
        let ran = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-shared", "-fPIC", "-nostdlib", "-o"])
            .arg(folder.join(name))
            .arg(format!("-Wl,-soname,{name}"))
            .arg(format!("-Wl,--version-script,{}", versions.display()))
            .arg(&source)
            .status()
            .context("the C compiler `cc`, which CC may name")?;
        ensure!(ran.success(), "the C compiler did not make a stand-in for {name}");
    }
    Ok(folder)
}

/// Creates a folder with the library of MLX for CPUs. cargo's `run` and `test` look for libraries
/// in this folder. Without a GPU, they need it, because MLX's CUDA library would not allocate
/// memory. The library for CPUs has the same version and types. It lacks the CUDA functions, but
/// without a GPU no program calls them.
pub fn without_gpu(cpu: &Path) -> Result<PathBuf> {
    let folder = empty_folder("without_gpu")?;
    let mut libraries = vec![cpu.join("lib/libmlx.so")];
    if let Ok(bundled) = fs::read_dir(cpu.with_file_name("mlx_cpu.libs")) {
        for entry in bundled {
            libraries.push(entry?.path());
        }
    }
    for library in libraries {
        let name = library.file_name().context("a library")?;
        std::os::unix::fs::symlink(library.canonicalize()?, folder.join(name))?;
    }
    Ok(folder)
}

fn empty_folder(name: &str) -> Result<PathBuf> {
    let folder = PathBuf::from(env::var("OUT_DIR")?).join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    Ok(folder)
}
