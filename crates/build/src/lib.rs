#![doc = include_str!("../README.md")]
#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![forbid(unsafe_code)]

pub mod cuda;
mod error;
mod flatten;
#[doc(hidden)]
pub mod front;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub use error::Error;
use error::file;
pub use flatten::flatten;

/// A `.metal` file and the options for compiling it.
#[derive(Clone, Debug)]
pub struct Metal {
    source: PathBuf,
    name: Option<String>,
    include_dirs: Vec<PathBuf>,
    flags: Vec<String>,
    standard: String,
    deployment_target: String,
    require_xcode: bool,
    xcrun: PathBuf,
    target: Option<String>,
    out_dir: Option<PathBuf>,
}

impl Metal {
    /// Compiles `source`, a path relative to the package. The library is named after this file.
    pub fn new(source: impl Into<PathBuf>) -> Self {
        Self {
            source: source.into(),
            name: None,
            include_dirs: Vec::new(),
            flags: Vec::new(),
            standard: "metal3.1".to_owned(),
            deployment_target: "14.0".to_owned(),
            require_xcode: false,
            xcrun: PathBuf::from("xcrun"),
            target: None,
            out_dir: None,
        }
    }

    /// Sets another name for the library.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Adds a folder that is searched for `#include "..."` after the source's folder.
    pub fn include_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.include_dirs.push(folder.into());
        self
    }

    /// Sets the version of the Metal language. The default is `metal3.1`, which macOS 14 and later
    /// support. A newer version may need a newer [`deployment_target`](Self::deployment_target).
    pub fn standard(self, standard: impl Into<String>) -> Self {
        Self { standard: standard.into(), ..self }
    }

    /// Sets the oldest macOS that can load the library. The default is `14.0`. Older systems refuse
    /// the library, whatever its language version is.
    pub fn deployment_target(self, macos: impl Into<String>) -> Self {
        Self { deployment_target: macos.into(), ..self }
    }

    /// Adds a flag for the Metal compiler.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// On macOS, makes a missing Xcode an error instead of a warning.
    pub fn require_xcode(self) -> Self {
        Self { require_xcode: true, ..self }
    }

    /// Sets the path of `xcrun`. By default, `xcrun` is found on the `PATH`.
    pub fn xcrun(self, program: impl Into<PathBuf>) -> Self {
        Self { xcrun: program.into(), ..self }
    }

    /// Sets the operating system to build for, such as `macos`. The default is cargo's target.
    pub fn target_os(self, os: impl Into<String>) -> Self {
        Self { target: Some(os.into()), ..self }
    }

    /// Sets the output folder of the library. The default is cargo's `OUT_DIR`.
    pub fn out_dir(self, folder: impl Into<PathBuf>) -> Self {
        Self { out_dir: Some(folder.into()), ..self }
    }

    /// Writes two files into the output folder: `<name>.metal`, the source with the files that it
    /// includes, and `<name>.metallib`, the compiled library or an empty file. Prints cargo's
    /// `rerun-if-changed` lines, and a warning if Xcode is missing on macOS.
    ///
    /// # Errors
    ///
    /// Returns an error if a source cannot be read or is not ASCII, the folder cannot be written,
    /// the Metal compiler refuses the source, or a variable that cargo sets for build scripts is
    /// missing. A missing Xcode is an error only after [`Metal::require_xcode`].
    pub fn build(&self) -> Result<(), Error> {
        println!("cargo::rerun-if-env-changed=DEVELOPER_DIR");
        let folder = match &self.out_dir {
            Some(folder) => folder.clone(),
            None => PathBuf::from(variable("OUT_DIR")?),
        };
        let flat = flatten::files(&self.source, &self.include_dirs)?;
        for path in &flat.files {
            println!("cargo::rerun-if-changed={}", path.display());
        }
        let stem = self.source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name = self.name.as_ref().unwrap_or(&stem);
        let (source, library) =
            (folder.join(format!("{name}.metal")), folder.join(format!("{name}.metallib")));
        fs::write(&source, &flat.text).map_err(|error| file(&source, error))?;
        let os = match &self.target {
            Some(os) => os.clone(),
            None => variable("CARGO_CFG_TARGET_OS")?,
        };
        let compiled = if os == "macos" { self.compile(&folder, &library) } else { Ok(false) };
        let made = match compiled {
            Err(Error::NoXcode(text)) if !self.require_xcode => {
                println!("cargo::warning={text}");
                false
            }
            other => other?,
        };
        if !made {
            fs::write(&library, []).map_err(|error| file(&library, error))?;
        }
        Ok(())
    }

    fn compile(&self, folder: &Path, library: &Path) -> Result<bool, Error> {
        // In recent versions of Xcode, `metal` may be a stub that only tells how to download the
        // compiler. So check that it runs, not only that it exists.
        let version = self.ask_xcrun(&["metal", "--version"])?;
        if !version.status.success() {
            return Err(no_xcode(&String::from_utf8_lossy(&version.stderr)));
        }
        let air = library.with_extension("air");
        let oldest = format!("-mmacosx-version-min={}", self.deployment_target);
        let mut arguments = vec![format!("-std={}", self.standard), oldest];
        arguments.extend(["-O2", "-Wall", "-Wextra", "-fno-fast-math"].map(String::from));
        arguments.extend(self.include_dirs.iter().map(|dir| format!("-I{}", dir.display())));
        arguments.extend(self.flags.iter().cloned());
        arguments.extend(["-c".to_owned(), self.source.display().to_string()]);
        self.run("metal", &arguments, &air)?;
        self.run("metallib", &[air.display().to_string()], library)?;
        let _ = fs::remove_file(folder.join(air));
        Ok(true)
    }

    fn run(&self, tool: &str, arguments: &[String], output: &Path) -> Result<(), Error> {
        let output = output.display().to_string();
        let mut all = vec![tool];
        all.extend(arguments.iter().map(String::as_str));
        all.extend(["-o", &output]);
        let ran = self.ask_xcrun(&all)?;
        match ran.status.success() {
            true => Ok(()),
            false => Err(Error::Compiler(String::from_utf8_lossy(&ran.stderr).into_owned())),
        }
    }

    fn ask_xcrun(&self, arguments: &[&str]) -> Result<Output, Error> {
        let output = Command::new(&self.xcrun).args(["--sdk", "macosx"]).args(arguments).output();
        output.map_err(|error| no_xcode(&format!("{}: {error}", self.xcrun.display())))
    }
}

fn no_xcode(said: &str) -> Error {
    let said = said.lines().next().unwrap_or_default();
    Error::NoXcode(format!(
        "Xcode's `metal` does not run ({said}): the kernels will be compiled when first used. To \
         compile them now, install Xcode (the command line tools alone have no Metal compiler), \
         then run `xcode-select --switch /Applications/Xcode.app` and, from Xcode 26 on, \
         `xcodebuild -downloadComponent MetalToolchain`"
    ))
}

fn variable(name: &'static str) -> Result<String, Error> {
    env::var(name).map_err(|_| Error::NotABuildScript(name))
}
