//! A Metal source, compiled for the host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::build::build;
use crate::cache;
use crate::compiler::Compiler;
use crate::constants::Constants;
use crate::error::{Error, Result, at_path};
use crate::exec::abi;
use crate::module::{Argument, Module, Value};
use crate::rewrite::{self, Constant, Purpose, Refused, constant_prologue};
use crate::source::Source;

/// The compiled modules, one for each set of values of function constants.
type Modules = BTreeMap<Vec<(u32, u64)>, Arc<Module>>;

/// A compiled Metal source. Clones are cheap, and threads can share them.
#[derive(Clone)]
pub struct Library(Arc<Inner>);

struct Inner {
    source: Source,
    compiler: Compiler,
    folder: PathBuf,
    text: String,
    constants: Vec<Constant>,
    remarks: Vec<String>,
    refused: Vec<Refused>,
    modules: Mutex<Modules>,
}

impl Library {
    /// Compiles `source`, or loads the compiled library from the folder `cache`. Several processes
    /// may share the folder, and it may be deleted at any time.
    ///
    /// # Errors
    ///
    /// Returns an error if the source or the cache cannot be read or written, or the source does
    /// not compile. A source with function constants is compiled later, when [`Library::kernel`]
    /// gets their values.
    ///
    /// ```
    /// use metal_sim::{Buffer, Compiler, Constants, Dispatch, Library, Source};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("double.metal");
    /// std::fs::write(&path, "
    ///     #include <metal_stdlib>
    ///     kernel void twice(const device float* x [[buffer(0)]],
    ///                       device float* y [[buffer(1)]],
    ///                       uint i [[thread_position_in_grid]]) {
    ///         y[i] = 2 * x[i];
    ///     }")?;
    /// let cache = folder.path().join("cache");
    /// let library = Library::compile(&Source::new(&path), &Compiler::find()?, &cache)?;
    /// let kernel = library.kernel("twice", &Constants::new())?;
    /// let x = [1.0f32, 2.0, 3.0];
    /// let mut y = [0.0f32; 3];
    /// let report = Dispatch::new(&kernel)
    ///     .buffer(0, Buffer::input(&x))
    ///     .buffer(1, Buffer::output(&mut y))
    ///     .threads([3, 1, 1], [32, 1, 1])
    ///     .run()?
    ///     .check()?;
    /// assert_eq!(report.buffers[&1].written_bytes, 12);
    /// assert_eq!(y, [2.0, 4.0, 6.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compile(source: &Source, compiler: &Compiler, cache: &Path) -> Result<Self> {
        let preprocessed = source.preprocess(compiler, cache)?;
        let rewritten = rewrite::rewrite(&preprocessed.text, &preprocessed.shim, Purpose::Run);
        let remarks = rewritten.remarks.iter().map(ToString::to_string).collect();
        let library = Library(Arc::new(Inner {
            source: source.clone(),
            compiler: compiler.clone(),
            folder: preprocessed.folder,
            text: rewritten.text,
            constants: rewritten.constants,
            remarks,
            refused: rewritten.refused,
            modules: Mutex::default(),
        }));
        if library.0.constants.is_empty() {
            library.module(&Constants::new())?;
        }
        Ok(library)
    }

    /// Compiles a source that is given as text, for example by `include_str!`. Uses the compiler
    /// that [`Compiler::find`] finds, and a cache beside the running program.
    ///
    /// # Errors
    ///
    /// Returns an error if no compiler is found, the text does not compile, or the folder beside
    /// the program cannot be written.
    ///
    /// ```
    /// let library = metal_sim::Library::from_text(
    ///     "#include <metal_stdlib>
    ///      kernel void one(device float* y [[buffer(0)]]) { y[0] = 1; }",
    /// )?;
    /// assert_eq!(library.kernels()?[0].name, "one");
    /// # Ok::<(), metal_sim::Error>(())
    /// ```
    pub fn from_text(text: &str) -> Result<Self> {
        let program = std::env::current_exe();
        let program = program.map_err(|source| Error::Io { path: "the program".into(), source })?;
        let folder = program.with_file_name("metal-sim");
        at_path(&folder, std::fs::create_dir_all(&folder))?;
        let path = folder.join(format!("{}.metal", cache::key([text].into_iter())));
        // Write a draft and rename it, since several programs may write this file at the same time.
        let draft = cache::draft(&folder);
        at_path(&draft, std::fs::write(&draft, text))?;
        at_path(&path, std::fs::rename(&draft, &path))?;
        Self::compile(&Source::new(path), &Compiler::find()?, &folder)
    }

    /// Returns every kernel with its arguments. Arguments that depend on function constants are
    /// listed for constants that are all zero.
    ///
    /// # Errors
    ///
    /// Returns an error if the source does not compile with all function constants at zero, or the
    /// compiled library does not load.
    pub fn kernels(&self) -> Result<Vec<KernelInfo>> {
        let module = self.module(&Constants::new())?;
        Ok(module
            .kernels
            .iter()
            .map(|kernel| KernelInfo {
                name: kernel.name.clone(),
                file: kernel.file.clone(),
                line: kernel.line,
                arguments: kernel.arguments.clone(),
                values: kernel.values.clone(),
            })
            .collect())
    }

    /// The function constants that the source declares.
    pub fn function_constants(&self) -> &[Constant] {
        &self.0.constants
    }

    /// The violations of MSL's rules that the rewriter found. [`crate::rules`] finds more.
    pub fn remarks(&self) -> &[String] {
        &self.0.remarks
    }

    /// The kernels that cannot run here, such as kernels that take textures. Each entry is the host
    /// name of a kernel and the reason.
    pub fn refused(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.refused.iter().map(|refused| (refused.name.as_str(), refused.reason.as_str()))
    }

    /// Returns the kernel with this host name, compiled for these function constants.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such kernel, or [`Library::refused`] lists it. It is also an
    /// error if the source does not declare one of the constants, a function constant that is not
    /// optional is not set, or the source does not compile for these constants.
    pub fn kernel(&self, name: &str, constants: &Constants) -> Result<Kernel> {
        if let Some((_, reason)) = self.refused().find(|(refused, _)| *refused == name) {
            let text = format!("{name} {reason}, which the simulator does not have");
            return Err(Error::Unsupported(text));
        }
        for index in constants.0.keys() {
            if !self.0.constants.iter().any(|constant| constant.index == *index) {
                let text = format!("there is no function constant {index}");
                return Err(Error::FunctionConstant(text));
            }
        }
        let unset = |c: &&Constant| !c.optional && !constants.0.contains_key(&c.index);
        if let Some(constant) = self.0.constants.iter().find(unset) {
            let text =
                format!("function constant {} '{}' is not set", constant.index, constant.name);
            return Err(Error::FunctionConstant(text));
        }
        let module = self.module(constants)?;
        match module.kernels.iter().position(|kernel| kernel.name == name) {
            Some(index) => Ok(Kernel { module, index }),
            None => {
                let names: Vec<_> = module.kernels.iter().map(|k| k.name.as_str()).collect();
                let path = self.0.source.path.display();
                let text = format!("{path} has no kernel '{name}', only {}", names.join(", "));
                Err(Error::NoKernel(text))
            }
        }
    }

    fn module(&self, constants: &Constants) -> Result<Arc<Module>> {
        let inner = &*self.0;
        let values: Vec<_> = constants.0.iter().map(|(index, bits)| (*index, *bits)).collect();
        let mut modules = inner.modules.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(module) = modules.get(&values) {
            return Ok(module.clone());
        }
        let text = format!("{}{}", constant_prologue(&constants.0), inner.text);
        let path = build(&inner.source.path, &inner.compiler, &inner.folder, &text)?;
        let module = Arc::new(Module::load(&path, &abi::TABLE)?);
        modules.insert(values, module.clone());
        Ok(module)
    }
}

/// A kernel and the arguments that it needs.
#[derive(Clone, Debug)]
pub struct KernelInfo {
    /// The host name.
    pub name: String,
    /// The path of the file that defines the kernel; empty for a kernel that Apple compiled.
    pub file: String,
    /// The line that defines the kernel; 0 for a kernel that Apple compiled.
    pub line: u32,
    /// The buffers and threadgroup memory, in the order of the parameters.
    pub arguments: Vec<Argument>,
    /// The built-in values, in the order of the parameters.
    pub values: Vec<Value>,
}

/// A kernel that can be dispatched.
#[derive(Clone)]
pub struct Kernel {
    pub(crate) module: Arc<Module>,
    pub(crate) index: usize,
}

impl Kernel {
    /// The host name.
    pub fn name(&self) -> &str {
        &self.module.kernels[self.index].name
    }

    /// The buffers and threadgroup memory, in the order of the parameters.
    pub fn arguments(&self) -> &[Argument] {
        &self.module.kernels[self.index].arguments
    }
}
