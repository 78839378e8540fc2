//! Bitcode to text, by llvm-dis, by the PyPI package llvmlite, or by the compiler of kernels.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::cache;
use crate::compiler::Compiler;
use crate::error::{Error, Result, at_path};

const LLVMLITE: &str = include_str!("disassemble.py");

const BY_COMPILER: &str =
    "-x c -w -S -emit-llvm -O0 -Xclang -disable-llvm-passes -Xclang -mlink-bitcode-file -Xclang";

/// A disassembler for Apple's bitcode: LLVM 17 or later.
#[derive(Clone, Debug)]
pub enum Disassembler {
    /// A program `llvm-dis`.
    LlvmDis(PathBuf),
    /// A folder into which `pip install --target` put `llvmlite`.
    Llvmlite(PathBuf),
    /// The compiler, if its LLVM is as new as the bitcode.
    Compiler(Compiler),
}

impl Disassembler {
    /// `METAL_SIM_LLVM` (an llvm-dis, or a folder with llvmlite), then `llvm-dis-22` ...
    /// `llvm-dis-17` and `llvm-dis` on the `PATH`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoCompiler`] if there is none.
    pub fn find() -> Result<Self> {
        if let Some(path) = std::env::var_os("METAL_SIM_LLVM").map(PathBuf::from) {
            return Ok(match path.is_dir() {
                true => Disassembler::Llvmlite(path),
                false => Disassembler::LlvmDis(path),
            });
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let versioned = (17..=22).rev().map(|version| format!("llvm-dis-{version}"));
        versioned
            .chain(["llvm-dis".to_string()])
            .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(&name)))
            .find(|program| program.is_file())
            .map(Disassembler::LlvmDis)
            .ok_or_else(|| {
                let text = "no llvm-dis: set METAL_SIM_LLVM to one, or to a folder with llvmlite";
                Error::NoCompiler(text.to_string())
            })
    }

    /// The text of each module.
    pub(super) fn text(&self, folder: &Path, modules: &[Vec<u8>]) -> Result<Vec<String>> {
        let draft = cache::draft(folder);
        at_path(&draft, std::fs::create_dir_all(&draft))?;
        let result = self.text_in(&draft, modules);
        let _ = std::fs::remove_dir_all(&draft);
        result
    }

    fn text_in(&self, draft: &Path, modules: &[Vec<u8>]) -> Result<Vec<String>> {
        let mut paths = Vec::new();
        for (i, module) in modules.iter().enumerate() {
            let path = draft.join(format!("{i}.bc"));
            at_path(&path, std::fs::write(&path, module))?;
            paths.push(path);
        }
        match self {
            Disassembler::Llvmlite(site) => {
                let mut command = Command::new("python3");
                run(command.env("PYTHONPATH", site).arg("-c").arg(LLVMLITE).args(&paths))?;
            }
            Disassembler::Compiler(compiler) => {
                // Bitcode for another machine is linked into an empty program: it cannot be
                // compiled.
                let empty = draft.join("empty.c");
                at_path(&empty, std::fs::write(&empty, ""))?;
                for path in &paths {
                    let (path, output) = (path.display(), path.with_extension("bc.ll"));
                    let mut arguments: Vec<String> =
                        BY_COMPILER.split(' ').map(String::from).collect();
                    arguments.extend([path.to_string(), "-o".to_string()]);
                    arguments.extend([output.display().to_string(), empty.display().to_string()]);
                    said(compiler.run(Some(draft), arguments)?)?;
                }
            }
            Disassembler::LlvmDis(program) => {
                for path in &paths {
                    let output = path.with_extension("bc.ll");
                    run(Command::new(program).arg(path).arg("-o").arg(output))?;
                }
            }
        }
        let read = |path: &PathBuf| {
            let text = path.with_extension("bc.ll");
            at_path(&text, std::fs::read_to_string(&text))
        };
        paths.iter().map(read).collect()
    }
}

fn run(command: &mut Command) -> Result<()> {
    let result = command.output();
    said(at_path(Path::new(command.get_program()), result)?)
}

/// The end of a program that may have failed.
fn said(output: Output) -> Result<()> {
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Error::Load(format!("the bitcode could not be read: {said}")))
        }
    }
}
