//! Finds and runs the clang that compiles kernels. It is the system's clang or the clang in zig.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::error::{Error, Result, at_path};

/// The oldest version of clang that can compile kernels. Older versions lack `__bf16` arithmetic
/// and the flags that turn off excess precision.
const OLDEST: u32 = 17;

/// A C++ compiler: clang, or zig, which contains clang.
#[derive(Clone, Debug)]
pub struct Compiler {
    program: PathBuf,
    zig: bool,
    version: String,
    number: u32,
}

/// The checkout of the workspace in which this crate was built. It contains tools and their
/// installer. The folder does not exist on machines that only run the program.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The script in a checkout that installs a compiler.
const SCRIPT: &str = "scripts/build_metal.sh";

impl Compiler {
    /// Looks for a compiler. If the variable `METAL_SIM_CLANG` is set, it names a clang++, a zig,
    /// or a folder into which `pip install --target` put `ziglang`. Otherwise this function tries,
    /// in this order, the `ziglang` that pip installed with the running program; `clang++-22` ...
    /// `clang++-17`, `clang++`, `zig` and `python-zig` on the `PATH`; and the zig in `.mlx/` of the
    /// checkout in which this crate was built. If the zig in the checkout is missing,
    /// `scripts/build_metal.sh --simulator` installs it, which downloads 90 MB.
    ///
    /// # Errors
    ///
    /// Returns [`crate::Error::NoCompiler`] if there is no compiler, or if `METAL_SIM_CLANG` names
    /// something else.
    ///
    /// ```
    /// let compiler = metal_sim::Compiler::find()?;
    /// assert!(compiler.version().contains("clang"));
    /// # Ok::<(), metal_sim::Error>(())
    /// ```
    pub fn find() -> Result<Self> {
        if let Some(path) = std::env::var_os("METAL_SIM_CLANG") {
            return Self::at(path);
        }
        let program = std::env::current_exe().and_then(|program| program.canonicalize());
        if let Some(compiler) = program.ok().and_then(|program| Self::beside(&program)) {
            return Ok(compiler);
        }
        let versioned = (OLDEST..=22).rev().map(|version| format!("clang++-{version}"));
        let names = versioned.chain(["clang++", "zig", "python-zig"].map(String::from));
        let path = std::env::var_os("PATH").unwrap_or_default();
        for name in names {
            for folder in std::env::split_paths(&path) {
                let program = folder.join(&name);
                if program.is_file()
                    && let Ok(compiler) = Self::probe(program)
                {
                    return Ok(compiler);
                }
            }
        }
        let checkout = Path::new(CHECKOUT);
        if checkout.join(SCRIPT).is_file() {
            return Self::brought(checkout);
        }
        Err(Error::NoCompiler(
            "set METAL_SIM_CLANG to a clang++ (17 or later) or a zig, put one on the PATH, or \
             `pip install ziglang`"
                .to_string(),
        ))
    }

    /// Finds the zig in the Python environment that contains a program.
    fn beside(program: &Path) -> Option<Self> {
        Self::at(program.parent()?.parent()?).ok()
    }

    /// Finds the zig of a checkout. If it is missing, the checkout's script installs it.
    fn brought(checkout: &Path) -> Result<Self> {
        let tools = checkout.join(".mlx");
        let zig = tools.join("python");
        if let Ok(found) = Self::at(&zig) {
            return Ok(found);
        }
        let lock = tools.join("simulator.lock");
        at_path(&tools, std::fs::create_dir_all(&tools))?;
        let held = at_path(&lock, File::create(&lock))?;
        at_path(&lock, held.lock())?; // the lock lasts until this function returns
        if let Ok(found) = Self::at(&zig) {
            return Ok(found); // another process has installed it
        }
        let script = checkout.join(SCRIPT);
        let output = at_path(&script, Command::new(&script).arg("--simulator").output())?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Error::NoCompiler(format!(
                "`{SCRIPT} --simulator` failed: {}",
                said.lines().last().unwrap_or_default()
            )));
        }
        Self::at(&zig)
    }

    /// Uses the compiler at `path`. This is a clang++, a zig, or a folder that contains the PyPI
    /// package `ziglang` (the `--target` of pip, or a virtual environment).
    ///
    /// # Errors
    ///
    /// Returns [`crate::Error::NoCompiler`] if `path` has no clang of version 17 or later, and
    /// [`crate::Error::Io`] if the compiler does not start.
    pub fn at(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if path.is_file() {
            return Self::probe(path.to_path_buf());
        }
        let mut candidates = vec![path.join("ziglang/zig"), path.join("zig")];
        if let Ok(libraries) = std::fs::read_dir(path.join("lib")) {
            for python in libraries.flatten() {
                let packages = ["site-packages", "dist-packages"].map(|it| python.path().join(it));
                candidates.extend(packages.map(|packages| packages.join("ziglang/zig")));
            }
        }
        match candidates.into_iter().find(|candidate| candidate.is_file()) {
            Some(zig) => Self::probe(zig),
            None => Err(Error::NoCompiler(format!(
                "{} is neither a compiler nor a folder with the PyPI package ziglang",
                path.display()
            ))),
        }
    }

    fn probe(program: PathBuf) -> Result<Self> {
        let zig = program.file_name().is_some_and(|name| name.to_string_lossy().contains("zig"));
        let mut compiler = Compiler { program, zig, version: String::new(), number: 0 };
        let output = compiler.run(None, ["--version"])?;
        let text = String::from_utf8_lossy(&output.stdout);
        compiler.version = text.lines().next().unwrap_or_default().to_string();
        let number = compiler.version.split_once("version ").and_then(|(_, rest)| {
            rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse::<u32>().ok())
        });
        let shown = compiler.program.display();
        match number {
            _ if !compiler.version.contains("clang") => {
                Err(Error::NoCompiler(format!("{shown} is not a clang")))
            }
            Some(number) if number >= OLDEST => Ok(Compiler { number, ..compiler }),
            _ => Err(Error::NoCompiler(format!(
                "{shown} is '{}', but clang {OLDEST} or later is needed",
                compiler.version
            ))),
        }
    }

    /// The first line that the compiler prints for `--version`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The path of the compiler's executable.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Returns a string for cache keys. It contains the compiler's version and the flags for this
    /// machine, since they affect the compiler's output.
    pub(crate) fn identity(&self) -> String {
        format!("{}\n{} {}", self.version, self.machine_flags().join(" "), self.line_flags())
    }

    /// If both arms of a branch store, the optimizer may merge the stores. These flags give the
    /// merged store the line of the first store. Before version 21, clang has no such flags, and
    /// the merged store has no line.
    pub(crate) fn line_flags(&self) -> &'static str {
        if self.number >= 21 { "-mllvm -pick-merged-source-locations" } else { "" }
    }

    /// Returns flags that enable the host's instructions for fast half conversions, if the host
    /// has them.
    pub(crate) fn machine_flags(&self) -> Vec<String> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi2")
        {
            let flag = if self.zig { "-mcpu=x86_64_v3" } else { "-march=x86-64-v3" };
            return vec![flag.to_string()];
        }
        if self.zig { vec!["-mcpu=baseline".to_string()] } else { Vec::new() }
    }

    /// Returns flags to type-check a source without compiling it. zig cannot do this, so it writes
    /// an object file.
    pub(crate) fn check_flags(&self, object: &Path) -> Vec<String> {
        if self.zig {
            let object = object.display().to_string();
            return ["-c", "-O0", "-fno-sanitize=all", "-o", &object].map(String::from).to_vec();
        }
        vec!["-fsyntax-only".to_string()]
    }

    /// Runs the compiler. If no environment variable gives zig a folder for its cache, the cache is
    /// in `scratch`.
    pub(crate) fn run<S: AsRef<OsStr>>(
        &self,
        scratch: Option<&Path>,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Output> {
        let mut command = Command::new(&self.program);
        if self.zig {
            command.arg("c++");
        }
        let home = ["ZIG_GLOBAL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"]
            .iter()
            .any(|name| std::env::var_os(name).is_some());
        if let (true, false, Some(scratch)) = (self.zig, home, scratch) {
            command.env("ZIG_GLOBAL_CACHE_DIR", scratch.join("zig"));
        }
        command.args(arguments);
        command.output().map_err(|source| Error::Io { path: self.program.clone(), source })
    }

    /// Runs the compiler like [`Self::run`]. If it fails, returns an error with the path of the
    /// source and the compiler's messages.
    pub(crate) fn compile<S: AsRef<OsStr>>(
        &self,
        scratch: &Path,
        source: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Vec<u8>> {
        let output = self.run(Some(scratch), arguments)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(Error::Compile { path: source.to_path_buf(), messages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// Writes an executable script.
    fn script(path: &Path, body: &str) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, format!("#!/bin/sh\n{body}\n")).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("permissions");
    }

    /// Makes a checkout whose installer script has this body.
    fn checkout(body: &str) -> tempfile::TempDir {
        let checkout = tempfile::tempdir().expect("a folder");
        script(&checkout.path().join(SCRIPT), body);
        checkout
    }

    #[test]
    fn a_program_finds_the_compiler_that_pip_installed_with_it() {
        for packages in ["lib/python3.12/site-packages", "lib/python3.11/dist-packages", ""] {
            let environment = tempfile::tempdir().expect("a folder");
            let zig = environment.path().join(packages).join("ziglang/zig");
            script(&zig, "echo 'clang version 21.1.0'");
            let found = Compiler::beside(&environment.path().join("bin/metal-check"));
            assert_eq!(found.expect("a compiler").program(), zig);
        }
        assert!(Compiler::beside(Path::new("/nowhere/bin/metal-check")).is_none());
    }

    #[test]
    fn a_checkout_brings_its_compiler_once() {
        let checkout = checkout(
            "cd \"$(dirname \"$0\")/..\" && echo \"$*\" >>log && mkdir -p .mlx/python/ziglang\n\
             sleep 0.2; zig=.mlx/python/ziglang/zig\n\
             printf '#!/bin/sh\\necho \"clang version 19.1.0\"\\n' >$zig.part\n\
             chmod +x $zig.part && mv $zig.part $zig",
        );
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let found = Compiler::brought(checkout.path()).expect("a compiler");
                    assert_eq!(found.version(), "clang version 19.1.0");
                });
            }
        });
        let log = fs::read_to_string(checkout.path().join("log")).expect("a log");
        assert_eq!(log, "--simulator\n");
    }

    #[test]
    fn a_compiler_that_cannot_be_brought_is_an_error_with_the_cause() {
        let checkout = checkout("echo quiet; echo 'error: pypi.org cannot be reached' >&2; exit 1");
        let error = Compiler::brought(checkout.path()).expect_err("no compiler").to_string();
        assert_eq!(
            error,
            "no clang found: `scripts/build_metal.sh --simulator` failed: error: pypi.org cannot be reached"
        );
    }
}
