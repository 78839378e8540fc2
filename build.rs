//! Finds MLX, builds `cpp/` against it with CMake, compiles `metal/` if Xcode is installed, and
//! tells cargo what to link.
//!
//! The build never uses the network: `scripts/build_metal.sh` installs missing tools in a clone,
//! and errors tell users of the package what to install.

#[path = "cmake/bridge.rs"]
mod bridge;
#[path = "cmake/cuda.rs"]
mod cuda;
#[path = "cmake/hash.rs"]
mod hash;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The script that installs MLX and CMake in a clone of the repository. The package on crates.io
/// does not contain it.
const SCRIPT: &str = "scripts/build_metal.sh";
/// The folder of a replacement for a Mac's Metal device, which tests use.
const STAND_IN: &str = "tests/metal_device";

fn main() -> Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    // The program looks the metallib up at run time, so cargo need not watch it. If cargo watched a
    // missing file, it would rebuild everything each time.
    let watched =
        ["build.rs", "cpp", "metal", "cmake"].into_iter().chain(bridge::files(simulates_metal()));
    for path in watched.chain(simulates_metal().then_some(STAND_IN)) {
        println!("cargo::rerun-if-changed={path}");
    }
    let variables = ["MLX_DIR", "CMAKE", "DOCS_RS", "CXX", "CXXFLAGS", "DEVELOPER_DIR"];
    for variable in variables.into_iter().chain(["MLX_PRIMITIVES_WERROR"]) {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rustc-env=MLX_PRIMITIVES_KERNELS_HASH={}", kernels_hash(&root)?);
    // docs.rs has no MLX and no network, and rustdoc needs neither the library nor its headers.
    if env::var_os("DOCS_RS").is_some() {
        return Ok(());
    }

    let mlx = Mlx::find(&root)?;
    println!("cargo::rerun-if-changed={}", mlx.header().display());
    let cmake = find_cmake(&root)?;
    let kernels = compile_metal(&root, &cmake)?; // in parallel with the C++ compiler
    bridge::generate(simulates_metal())?;
    build_cpp(&root, &mlx, &cmake)?;
    kernels.map_or(Ok(()), say_of_metal)?;
    link(&root, &mlx)?;
    if cuda::is_on() { link_for_cuda(&root, &mlx) } else { Ok(()) }
}

/// Returns a hash of the kernels and of the code that dispatches them. In a package from crates.io,
/// the hash leaves out the CPU kernels, because they are another crate.
fn kernels_hash(root: &Path) -> Result<String> {
    let folders = ["metal", "cpp/ops", "crates/kernels/src"].map(|folder| root.join(folder));
    let mut left: Vec<_> = folders.into_iter().filter(|folder| folder.is_dir()).collect();
    let mut files = Vec::new();
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() { left.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    let mut hash = hash::Fnv::default();
    for file in files {
        hash.add(&fs::read(&file).with_context(|| file.display().to_string())?);
    }
    Ok(format!("{:016x}", hash.0))
}

/// Returns whether `eval_gpu` is compiled for the simulator. This is possible only on Linux,
/// because a Mac uses Metal.
fn simulates_metal() -> bool {
    env::var_os("CARGO_FEATURE_SIMULATE_METAL").is_some()
        && env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux")
}

/// An MLX install prefix: `include`, `lib`, `share/cmake/MLX`.
struct Mlx {
    prefix: PathBuf,
    version: String,
}

impl Mlx {
    /// If MLX_DIR is set, looks for MLX only there. Otherwise looks in the script's folder, in
    /// Homebrew, and in the Python package, in this order.
    fn find(root: &Path) -> Result<Self> {
        let mlx = Self::find_supported(root)?;
        let newest = newest(root)?;
        if patch_of(&mlx.version) > patch_of(&newest) {
            println!(
                "cargo::warning=MLX {} is later than {newest}, the latest that this version was tested with",
                mlx.version
            );
        }
        Ok(mlx)
    }

    fn find_supported(root: &Path) -> Result<Self> {
        let pinned = newest(root)?;
        let line = pinned.rsplit_once('.').context("cmake/mlx_version.txt")?.0.to_owned();
        let oldest = fs::read_to_string(root.join("cmake/mlx_oldest.txt"))?;
        let supported = format!("{line}.z from {} on", oldest.trim());

        if let Some(dir) = env::var_os("MLX_DIR") {
            let mlx = Self::at(Path::new(&dir)).with_context(|| {
                format!("MLX_DIR={} holds no MLX (include/mlx/version.h)", dir.display())
            })?;
            ensure!(
                mlx.is_supported(&line, &oldest),
                "MLX_DIR holds MLX {}, but MLX {supported} is needed: point it elsewhere or unset it",
                mlx.version
            );
            ensure!(
                mlx.has_backend(),
                "MLX_DIR holds MLX {} without CUDA, but the feature cuda needs mlx-cuda-13 or mlx-cuda-12 {supported}",
                mlx.version
            );
            return Ok(mlx);
        }
        let mut refused = Vec::new();
        let own = if cuda::is_on() { ".mlx/cuda/mlx" } else { ".mlx/python/mlx" };
        let mut candidates = vec![
            root.join(own),
            PathBuf::from("/opt/homebrew/opt/mlx"),
            PathBuf::from("/usr/local/opt/mlx"),
        ];
        candidates.extend(python_prefix());
        for prefix in candidates {
            match Self::at(&prefix) {
                Some(mlx) if mlx.is_supported(&line, &oldest) && mlx.has_backend() => {
                    return Ok(mlx);
                }
                Some(mlx) => refused.push(format!("MLX {} in {}", mlx.version, prefix.display())),
                None => {}
            }
        }
        let seen = match refused.as_slice() {
            [] => String::new(),
            found => format!(" (found only {})", found.join(", ")),
        };
        let advice = if cuda::is_on() && root.join(SCRIPT).is_file() {
            format!("run {SCRIPT} --cuda")
        } else if cuda::is_on() {
            format!("run `python3 -m pip install \"mlx[cuda13]=={}\"`", pinned)
        } else if root.join(SCRIPT).is_file() {
            format!("run {SCRIPT}")
        } else if env::var("CARGO_CFG_TARGET_OS")? == "macos" {
            format!("run `brew install mlx` or `python3 -m pip install mlx=={}`", pinned)
        } else {
            format!("run `python3 -m pip install \"mlx[cpu]=={}\"`", pinned)
        };
        bail!(
            "MLX {supported} {}was not found{seen}: {advice}, or set MLX_DIR to the folder of an installed MLX that \
             holds include/mlx/version.h",
            if cuda::is_on() { "with CUDA " } else { "" }
        )
    }

    fn at(prefix: &Path) -> Option<Self> {
        let header = fs::read_to_string(prefix.join("include/mlx/version.h")).ok()?;
        let part = |name: &str| {
            let (_, rest) = header.split_once(&format!("#define MLX_VERSION_{name} "))?;
            Some(rest.lines().next()?.trim().to_owned())
        };
        let version = [part("MAJOR")?, part("MINOR")?, part("PATCH")?].join(".");
        Some(Self { prefix: prefix.to_owned(), version })
    }

    fn is_supported(&self, line: &str, oldest: &str) -> bool {
        self.version.rsplit_once('.').is_some_and(|(found, _)| found == line)
            && patch_of(&self.version) >= patch_of(oldest)
    }

    /// Returns whether the feature `cuda` is off, or this MLX was built for CUDA.
    fn has_backend(&self) -> bool {
        !cuda::is_on() || cuda::has_backend(&self.prefix)
    }

    fn header(&self) -> PathBuf {
        self.prefix.join("include/mlx/version.h")
    }

    fn lib(&self) -> PathBuf {
        self.prefix.join("lib")
    }
}

/// The latest version of MLX with which this crate was tested. `SCRIPT` installs this version.
fn newest(root: &Path) -> Result<String> {
    Ok(fs::read_to_string(root.join("cmake/mlx_version.txt"))?.trim().to_owned())
}

/// The last number of a version.
fn patch_of(version: &str) -> Option<u32> {
    version.trim().rsplit_once('.')?.1.parse().ok()
}

/// Returns the prefix of MLX's Python package, if `python3` finds the package.
fn python_prefix() -> Option<PathBuf> {
    let output = Command::new("python3").args(["-m", "mlx", "--cmake-dir"]).output().ok()?;
    // The command prints the prefix or <prefix>/share/cmake/MLX, depending on the version.
    let said = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    said.ancestors().take(4).find(|folder| Mlx::at(folder).is_some()).map(Path::to_owned)
}

/// Returns the CMake that the variable CMAKE names, the CMake that `SCRIPT` installed, or the one
/// on the PATH.
fn find_cmake(root: &Path) -> Result<PathBuf> {
    if let Some(named) = env::var_os("CMAKE") {
        return Ok(PathBuf::from(named));
    }
    let brought = root.join(".mlx/python/cmake/data/bin/cmake");
    if brought.exists() {
        return Ok(brought);
    }
    let advice = if root.join(SCRIPT).is_file() {
        format!("run {SCRIPT}")
    } else {
        "run `brew install cmake`, `apt-get install cmake` or `python3 -m pip install cmake`"
            .to_owned()
    };
    ensure!(
        Command::new("cmake").arg("--version").output().is_ok(),
        "CMake was not found: {advice}, or put CMake 3.25 or later on the PATH, or its path into CMAKE"
    );
    Ok(PathBuf::from("cmake"))
}

/// The metallib that `SCRIPT` compiled.
fn metallib_of_script(root: &Path) -> PathBuf {
    root.join(".mlx/mlx_primitives.metallib")
}

/// The metallib of this build.
fn metallib() -> Result<PathBuf> {
    Ok(PathBuf::from(env::var("OUT_DIR")?).join("mlx_primitives.metallib"))
}

/// A metallib that was compiled on another Mac. A package or a clone may contain it beside this
/// file.
fn metallib_of_package(root: &Path) -> PathBuf {
    root.join("mlx_primitives.metallib")
}

/// Starts to compile the kernels with Xcode, if the target is macOS. CMake compiles nothing if one
/// of the metallibs above was compiled from these sources.
fn compile_metal(root: &Path, cmake: &Path) -> Result<Option<Child>> {
    if env::var("CARGO_CFG_TARGET_OS")? != "macos" {
        return Ok(None);
    }
    let define = |name: &str, path: &Path| format!("-D{name}={}", path.display());
    let brought = metallib_of_package(root);
    if brought.exists() {
        println!("cargo::rerun-if-changed={}", brought.display());
    }
    let child = Command::new(cmake)
        .arg(define("METAL_DIR", &root.join("metal")))
        .arg(define("OUTPUT", &metallib()?))
        .arg(define("INSTEAD", &metallib_of_script(root)))
        .arg(define("BROUGHT", &brought))
        .arg("-P")
        .arg(root.join("cmake/compile_metal.cmake"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| cmake.display().to_string())?;
    Ok(Some(child))
}

/// Waits for the compilation of the Metal kernels. Every failure is only a warning: a program
/// without compiled kernels is slower to start, but Metal compiles the embedded source when a
/// kernel is first used.
fn say_of_metal(compiling: Child) -> Result<()> {
    let output = compiling.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        println!(
            "cargo::warning=The Metal kernels do not compile; they will be compiled when first used:"
        );
        said.lines().for_each(|line| println!("cargo::warning={line}"));
    } else {
        let warns = |line: &&str| line.contains("does not run") || line.contains("is not used");
        said.lines().filter(warns).for_each(|line| println!("cargo::warning={line}"));
    }
    Ok(())
}

fn build_cpp(root: &Path, mlx: &Mlx, cmake: &Path) -> Result<()> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let tools = root.join(".mlx/python");
    let mut config = cmake::Config::new("cpp");
    // MLX's templates are slow without optimization. A level above `-Os` gains nothing, because
    // this C++ has no loop over elements.
    config
        .profile("Release")
        .define("CMAKE_CXX_FLAGS_RELEASE", "-Os -DNDEBUG")
        .build_target("mlx_primitives_cpp")
        .define("MLX_DIR", mlx.prefix.join("share/cmake/MLX"))
        .define("MLX_HEADER_VERSION", &mlx.version)
        .define("CXXBRIDGE_DIR", out.join("cxxbridge"))
        .define("BUILT_METALLIB", metallib()?)
        .define("SCRIPT_METALLIB", metallib_of_script(root))
        .define("SIMULATE_METAL", if simulates_metal() { "ON" } else { "OFF" })
        .define("CMAKE_EXPORT_COMPILE_COMMANDS", "ON");

    if cuda::is_on() {
        config.define("CUDA", "ON").define("CUDA_INCLUDE", cuda::include(&mlx.prefix)?);
        let missing = cuda::missing(&mlx.lib().join("libmlx.so"))?;
        if !missing.is_empty() {
            config.env("LD_LIBRARY_PATH", cuda::stand_ins(&missing)?);
        }
    }

    // The oldest macOS that MLX's wheels support; Rust's default is older.
    if env::var("CARGO_CFG_TARGET_OS")? == "macos" {
        config
            .env("MACOSX_DEPLOYMENT_TARGET", "14.0")
            .define("CMAKE_OSX_DEPLOYMENT_TARGET", "14.0");
    }

    // SAFETY: this build script has one thread, so no other thread reads the environment during the
    // call.
    unsafe { env::set_var("CMAKE", cmake) };
    let brought_ninja = tools.join("bin/ninja");
    if brought_ninja.exists() {
        config.generator("Ninja").define("CMAKE_MAKE_PROGRAM", &brought_ninja);
    }
    let built = config.build().join("build");
    println!("cargo::rustc-link-search=native={}", built.display());
    println!("cargo::rustc-link-lib=static=mlx_primitives_cpp");
    Ok(())
}

/// A folder outside the clone with the libraries of the MLX that `SCRIPT` installs in a clone, so
/// that an installed command still works if the clone is deleted. A user has one such folder for
/// each version of MLX. `None` unless MLX is in `.mlx/python/mlx`.
fn kept(root: &Path, mlx: &Mlx) -> Option<PathBuf> {
    if mlx.prefix != root.join(".mlx/python/mlx") {
        return None; // MLX stays where it was installed
    }
    let named = env::var_os("XDG_DATA_HOME").filter(|folder| !folder.is_empty());
    let data = named
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".local/share")))?;
    data.is_absolute().then(|| data.join(format!("mlx-primitives/mlx-{}/mlx/lib", mlx.version)))
}

fn link(root: &Path, mlx: &Mlx) -> Result<()> {
    let lib = mlx.lib();
    println!("cargo::rustc-link-search=native={}", lib.display());
    println!("cargo::rustc-link-lib=dylib=mlx");
    if env::var("CARGO_CFG_TARGET_OS")? == "macos" {
        println!("cargo::rustc-link-lib=dylib=objc");
    }
    let folders = [lib.clone()].into_iter().chain(kept(root, mlx));
    let rpath = |folder: PathBuf| format!("-Wl,-rpath,{}", folder.display());
    let mut arguments: Vec<_> = folders.map(rpath).collect();
    if env::var("CARGO_CFG_TARGET_OS")? == "linux" {
        // With `-z lazy`, the loader resolves functions when they are first called. So a program
        // also starts with an MLX that lacks some functions.
        arguments.push("-Wl,-z,lazy".to_owned());
        if cuda::is_on() {
            arguments.push("-Wl,--allow-shlib-undefined".to_owned());
        }
    }
    // These flags apply to this package's tests. The build scripts of other packages read the
    // metadata below.
    arguments.iter().for_each(|argument| println!("cargo::rustc-link-arg={argument}"));
    println!("cargo::metadata=link_args={}", arguments.join("\t"));
    println!("cargo::rustc-env=MLX_PRIMITIVES_MLX_PREFIX={}", mlx.prefix.display());
    println!("cargo::metadata=libdir={}", lib.display());
    println!("cargo::metadata=include={}", mlx.prefix.join("include").display());
    println!("cargo::metadata=mlx_version={}", mlx.version);
    Ok(())
}

/// Lets `cargo test` and `cargo run` start programs on a machine that cannot load MLX's CUDA
/// library.
fn link_for_cuda(root: &Path, mlx: &Mlx) -> Result<()> {
    let cpu = root.join(".mlx/python/mlx");
    let same_version = Mlx::at(&cpu).is_some_and(|cpu| cpu.version == mlx.version);
    if same_version && !cuda::missing(&mlx.lib().join("libmlx.so"))?.is_empty() {
        let folder = cuda::without_gpu(&cpu)?;
        // The linker does not need these folders; cargo adds them to the library path of programs
        // it runs.
        println!("cargo::rustc-link-search=dependency={}", folder.display());
    }
    Ok(())
}
