//! Runs kernels that Apple's compiler compiled. AIR, Apple's LLVM IR, is retargeted to the host and
//! runs on the same executor (`exec/`) as kernels from source. So the results of this crate's Metal
//! headers can be compared with the results of Apple's compiler.

mod disassemble;
mod file;
mod metallib;
mod retarget;
mod signature;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use file::{File, is_compiled};
pub use metallib::Metallib;

use crate::build::build_with;
use crate::compiler::Compiler;
use crate::constants::Constants;
use crate::error::{Error, Result, at_path};
use crate::exec::abi;
use crate::library::{Kernel, KernelInfo};
use crate::module::{ArgumentKind, Module};
use crate::rewrite::{self, Purpose, constant_prologue};
use crate::source::Source;
use signature::{Parameter, Signature};

const RUNTIME: &str = include_str!("runtime.metal");

/// Kernels as AIR text.
pub struct Library {
    folder: PathBuf,
    kernels: Vec<(String, String, Signature)>,
}

impl Library {
    /// Disassembles the named kernels. `cache` is the folder for compiled kernels, as for
    /// [`crate::Library`].
    ///
    /// # Errors
    ///
    /// Returns an error if the metallib lacks a kernel or cannot be read, if the cache cannot be
    /// written, if the compiler cannot read the bitcode, or if a kernel's arguments cannot be read
    /// from its text.
    pub fn read(
        metallib: &Metallib,
        names: &[impl AsRef<str>],
        compiler: &Compiler,
        cache: &Path,
    ) -> Result<Self> {
        at_path(cache, std::fs::create_dir_all(cache))?;
        let bitcode: Result<Vec<_>> =
            names.iter().map(|name| metallib.bitcode(name.as_ref())).collect();
        let texts = disassemble::text(compiler, cache, &bitcode?)?;
        let mut kernels = Vec::new();
        for (name, text) in names.iter().zip(texts) {
            let [(_, signature)] = <[_; 1]>::try_from(Signature::all(&text)?).map_err(|_| {
                Error::Load(format!("'{}' is a module without exactly one kernel", name.as_ref()))
            })?;
            kernels.push((name.as_ref().to_string(), text, signature));
        }
        Ok(Library { folder: cache.to_path_buf(), kernels })
    }

    /// Reads all kernels of a module.
    fn of_module(text: &str, cache: &Path) -> Result<Self> {
        let kernels = Signature::all(text)?;
        if kernels.is_empty() {
            return Err(Error::Load("it has no kernel".to_string()));
        }
        let with_text = |(name, signature)| (name, text.to_string(), signature);
        let kernels = kernels.into_iter().map(with_text).collect();
        Ok(Library { folder: cache.to_path_buf(), kernels })
    }

    /// Returns a library with one kernel. With two kernels of a module, `compile` would define the
    /// functions of the module twice.
    fn only(&self, name: &str, path: &Path) -> Result<Self> {
        let found = self.kernels.iter().find(|(known, ..)| known == name);
        let Some(found) = found else {
            let names: Vec<_> = self.kernels.iter().map(|(name, ..)| name.as_str()).collect();
            let (path, names) = (path.display(), names.join(", "));
            return Err(Error::NoKernel(format!("{path} has no kernel '{name}', only {names}")));
        };
        Ok(Library { folder: self.folder.clone(), kernels: vec![found.clone()] })
    }

    /// Lists the kernels with the arguments in the module's metadata.
    pub fn kernels(&self) -> Vec<KernelInfo> {
        let info = |(name, _, signature): &(String, String, Signature)| KernelInfo {
            name: name.clone(),
            file: String::new(),
            line: 0,
            arguments: signature.arguments(),
            values: signature.values(),
        };
        self.kernels.iter().map(info).collect()
    }

    /// Compiles all kernels with these function constants. A kernel ignores constants that it does
    /// not declare.
    ///
    /// # Errors
    ///
    /// Returns an error if the cache cannot be written, if a kernel uses a feature that the
    /// simulator lacks, or if the result does not compile or load.
    pub fn compile(
        &self,
        compiler: &Compiler,
        constants: &Constants,
    ) -> Result<BTreeMap<String, Kernel>> {
        let path = self.folder.join("air-runtime.metal");
        // The file is written under another name and then renamed, so that other threads never see
        // an incomplete file.
        let this = (std::process::id(), std::thread::current().id());
        let draft = path.with_extension(format!("{}-{:?}", this.0, this.1));
        at_path(&draft, std::fs::write(&draft, RUNTIME))?;
        at_path(&path, std::fs::rename(&draft, &path))?;
        let head = Source::new(&path).preprocess(compiler, &self.folder)?;
        let head_text = rewrite::rewrite(&head.text, &head.shim, Purpose::Run).text;
        let mut text = format!("{}{head_text}\n", constant_prologue(&BTreeMap::new()));
        let mut modules = Vec::new();
        for (serial, (name, air, signature)) in self.kernels.iter().enumerate() {
            modules.push(retarget::retarget(air, name, signature, constants, serial)?);
            text.push_str(&registration(name, signature, serial));
        }
        let library = build_with(&path, compiler, &head.folder, &text, &modules)?;
        let module = Arc::new(Module::load(&library, &abi::TABLE)?);
        let mut kernels = BTreeMap::new();
        for (name, ..) in &self.kernels {
            let Some(index) = module.kernels.iter().position(|kernel| kernel.name == *name) else {
                return Err(Error::NoKernel(format!("'{name}' was not registered")));
            };
            kernels.insert(name.clone(), Kernel { module: module.clone(), index });
        }
        Ok(kernels)
    }
}

/// Returns the C++ code of a kernel's entry in the registry (include/msl/registry.h). The rewriter
/// writes equivalent code for kernels in source.
fn registration(name: &str, signature: &Signature, serial: usize) -> String {
    let (mut parameters, mut types) = (String::new(), String::new());
    for parameter in &signature.parameters {
        match parameter {
            Parameter::Memory(argument) => {
                let kind = u32::from(argument.kind == ArgumentKind::Threadgroup);
                let (index, writable) = (argument.index, u32::from(argument.writable));
                parameters.push_str(&format!("{{{kind}, {index}, {writable}, 1, "));
                parameters.push_str(&format!("\"{}\"}}, ", argument.name));
                types.push_str(&format!("{{{}, {}}}, ", argument.size, argument.align));
            }
            Parameter::Value(name, row) => {
                parameters.push_str(&format!("{{2, {row}, 0, 1, \"{name}\"}}, "));
                types.push_str("{4, 4}, ");
            }
        }
    }
    let count = signature.parameters.len();
    format!(
        "extern \"C\" void msl_call_{serial}(const ::msl::Arguments&);\n\
         static const ::msl::Parameter msl_parameters_{serial}[] = {{{parameters}}};\n\
         static const ::msl::ParameterType msl_types_{serial}[] = {{{types}}};\n\
         static ::msl::Kernel msl_kernel_{serial} = {{\"{name}\", \"\", 0, 0, \
         &msl_call_{serial}, msl_parameters_{serial}, msl_types_{serial}, {count}, nullptr}};\n\
         __attribute__((constructor)) static void msl_register_{serial}() {{\n\
         msl_kernel_{serial}.next = ::msl::msl_kernels;\n\
         ::msl::msl_kernels = &msl_kernel_{serial};\n}}\n"
    )
}
