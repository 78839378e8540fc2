//! Finds and runs the clang that compiles kernels: a system's clang, or the clang in zig.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::error::{Error, Result, at_path};

/// The oldest clang that can compile kernels. Older ones lack `__bf16` arithmetic and the flags
/// that turn off excess precision.
const OLDEST: u32 = 17;

/// A C++ compiler: clang, or zig, which contains clang.
#[derive(Clone, Debug)]
pub struct Compiler {
    program: PathBuf,
    zig: bool,
    version: String,
    number: u32,
}

/// The workspace in which this crate was built, with its tools and their installer. The folder is
/// missing on machines that only run the program.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The script of a checkout that installs a compiler.
const SCRIPT: &str = "scripts/build_metal.sh";

impl Compiler {
    /// Looks for a compiler, in this order: `METAL_SIM_CLANG` (a clang++ or a zig, or a folder into
    /// which `pip install --target` put `ziglang`); the `ziglang` that pip installed with the
    /// running program; `clang++-22` ... `clang++-17`, `clang++`, `zig` and `python-zig` on the
    /// `PATH`; and the zig in `.mlx/` of the checkout that this crate was built in. In a checkout,
    /// `scripts/build_metal.sh --simulator` installs zig the first time, which fetches 90 MB.
    ///
    /// # Errors
    ///
    /// Returns [`crate::Error::NoCompiler`] if there is none, or if `METAL_SIM_CLANG` names
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

    /// The zig of the Python environment that contains a program.
    fn beside(program: &Path) -> Option<Self> {
        Self::at(program.parent()?.parent()?).ok()
    }

    /// The zig of a checkout. The script installs it if it is missing.
    fn brought(checkout: &Path) -> Result<Self> {
        let tools = checkout.join(".mlx");
        let zig = tools.join("python");
        if let Ok(found) = Self::at(&zig) {
            return Ok(found);
        }
        let lock = tools.join("simulator.lock");
        at_path(&tools, std::fs::create_dir_all(&tools))?;
        let held = at_path(&lock, File::create(&lock))?;
        at_path(&lock, held.lock())?; // until this function returns
        if let Ok(found) = Self::at(&zig) {
            return Ok(found); // another process brought it meanwhile
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

    /// The compiler at `path`: a clang++, a zig, or a folder that holds the PyPI package
    /// `ziglang` (the `--target` of pip, or a virtual environment).
    ///
    /// # Errors
    ///
    /// Returns [`crate::Error::NoCompiler`] if nothing there is a clang of version 17 or later,
    /// [`crate::Error::Io`] if it does not start.
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

    /// The first line of the compiler's output about its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The path of the compiler's program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A text that identifies the compiler's output: its version and its flags for this machine.
    pub(crate) fn identity(&self) -> String {
        format!("{}\n{} {}", self.version, self.machine_flags().join(" "), self.line_flags())
    }

    /// If both arms of a branch store, the optimizer may merge the stores. These flags give the
    /// merged store the line of the first one. Before version 21 there are no such flags, and the
    /// store has no line.
    pub(crate) fn line_flags(&self) -> &'static str {
        if self.number >= 21 { "-mllvm -pick-merged-source-locations" } else { "" }
    }

    /// Flags for fast half conversions, if the host has instructions for them.
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

    /// Flags that only type-check a source. zig always writes an object file.
    pub(crate) fn check_flags(&self, object: &Path) -> Vec<String> {
        if self.zig {
            let object = object.display().to_string();
            return ["-c", "-O0", "-fno-sanitize=all", "-o", &object].map(String::from).to_vec();
        }
        vec!["-fsyntax-only".to_string()]
    }

    /// Runs the compiler. If zig has no folder for its cache, the cache is put into `scratch`.
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

    /// Like [`Self::run`], but reports a failure as an error of the source.
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

    /// An executable script.
    fn script(path: &Path, body: &str) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, format!("#!/bin/sh\n{body}\n")).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("permissions");
    }

    /// A checkout whose installer script has this text.
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
