//! A Metal source, compiled for the host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::compiler::Compiler;
use crate::error::{Error, Result, at_path};
use crate::module::{Argument, Module};
use crate::rewrite::{self, Constant, Purpose, constant_prologue};
use crate::{cache, shim};

/// A Metal source file and how to preprocess it.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The `.metal` file.
    pub path: PathBuf,
    /// Folders for `#include`.
    pub include_dirs: Vec<PathBuf>,
    /// Macros, as `NAME` or `NAME=value`.
    pub defines: Vec<String>,
}

impl Source {
    /// A file without include folders or macros.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Source { path: path.into(), ..Source::default() }
    }

    /// Adds a folder for `#include`.
    pub fn include_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.include_dirs.push(folder.into());
        self
    }

    /// Adds a macro, as `NAME` or `NAME=value`.
    pub fn define(mut self, define: impl Into<String>) -> Self {
        self.defines.push(define.into());
        self
    }

    pub(crate) fn preprocess(&self, compiler: &Compiler, folder: &Path) -> Result<Preprocessed> {
        at_path(folder, std::fs::create_dir_all(folder))?;
        let folder = at_path(folder, folder.canonicalize())?;
        let shim = shim::write(&folder)?;
        at_path(&self.path, std::fs::metadata(&self.path))?;
        let mut arguments: Vec<String> =
            ["-E", "-x", "c++", "-std=c++17", "-nostdinc", "-nostdinc++", "-Wno-everything"]
                .map(String::from)
                .to_vec();
        arguments.push(format!("-I{}", shim.display()));
        arguments.extend(self.include_dirs.iter().map(|dir| format!("-I{}", dir.display())));
        arguments.extend(
            ["__METAL__=1", "__METAL_VERSION__=320", "__METAL_MACOS__=1"].map(|d| format!("-D{d}")),
        );
        arguments.extend(self.defines.iter().map(|define| format!("-D{define}")));
        arguments.extend(["__linux__", "__x86_64__", "__aarch64__"].map(|d| format!("-U{d}")));
        arguments.push(self.path.display().to_string());
        let text = compiler.compile(&folder, &self.path, arguments)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(Preprocessed { text, shim, folder })
    }
}

pub(crate) struct Preprocessed {
    pub(crate) text: String,
    pub(crate) shim: PathBuf,
    pub(crate) folder: PathBuf,
}

/// Values of function constants by their index, as bits.
///
/// ```
/// let constants = metal_sim::Constants::new().with(0, true).with(1, 0.5f32);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constants(BTreeMap<u32, u64>);

impl Constants {
    /// No values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives constant `index` a value.
    pub fn with(mut self, index: u32, value: impl ConstantBits) -> Self {
        self.0.insert(index, value.bits());
        self
    }
}

/// Types that a function constant can have.
pub trait ConstantBits {
    /// The value as the low bits of a word.
    fn bits(self) -> u64;
}

macro_rules! constant_bits {
    ($($kind:ty: $value:ident => $bits:expr),* $(,)?) => {
        $(impl ConstantBits for $kind {
            fn bits(self) -> u64 {
                let $value = self;
                $bits
            }
        })*
    };
}
constant_bits! {
    bool: v => u64::from(v),
    u8: v => u64::from(v), u16: v => u64::from(v), u32: v => u64::from(v), u64: v => v,
    i8: v => v as u64, i16: v => v as u64, i32: v => v as u64, i64: v => v as u64,
    f32: v => u64::from(v.to_bits()),
}

/// A compiled Metal source. Cheap to clone; may be shared between threads.
#[derive(Clone)]
pub struct Library(Arc<Inner>);

struct Inner {
    source: Source,
    compiler: Compiler,
    folder: PathBuf,
    text: String,
    constants: Vec<Constant>,
    remarks: Vec<String>,
    modules: Mutex<BTreeMap<Vec<(u32, u64)>, Arc<Module>>>,
}

impl Library {
    /// Compiles `source`, or finds it in `cache` compiled already. The cache is a folder
    /// that may be shared and deleted at will.
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
    /// let library =
    ///     Library::compile(&Source::new(&path), &Compiler::find()?, &folder.path().join("cache"))?;
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
        let remarks = rewritten
            .remarks
            .iter()
            .map(|remark| format!("{}:{}: {}", remark.file, remark.line, remark.text))
            .collect();
        let library = Library(Arc::new(Inner {
            source: source.clone(),
            compiler: compiler.clone(),
            folder: preprocessed.folder,
            text: rewritten.text,
            constants: rewritten.constants,
            remarks,
            modules: Mutex::default(),
        }));
        if library.0.constants.is_empty() {
            library.module(&Constants::new())?;
        }
        Ok(library)
    }

    /// Every kernel with its arguments. Arguments that depend on function constants are
    /// listed as if all constants were zero.
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
            })
            .collect())
    }

    /// The function constants that the source declares.
    pub fn function_constants(&self) -> &[Constant] {
        &self.0.constants
    }

    /// What the rewriter noticed that MSL does not allow; [`crate::rules`] looks further.
    pub fn remarks(&self) -> &[String] {
        &self.0.remarks
    }

    /// A kernel by its host name, compiled for these function constants.
    pub fn kernel(&self, name: &str, constants: &Constants) -> Result<Kernel> {
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
        let module = Arc::new(Module::load(&path)?);
        modules.insert(values, module.clone());
        Ok(module)
    }
}

/// A kernel and what it wants bound.
#[derive(Clone, Debug)]
pub struct KernelInfo {
    /// The host name.
    pub name: String,
    /// The file that defines it.
    pub file: String,
    /// The line that defines it.
    pub line: u32,
    /// Buffers and threadgroup memory, in the order of the parameters.
    pub arguments: Vec<Argument>,
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

    /// Buffers and threadgroup memory, in the order of the parameters.
    pub fn arguments(&self) -> &[Argument] {
        &self.module.kernels[self.index].arguments
    }
}

const COMMON_FLAGS: [&str; 10] = [
    "-x",
    "c++",
    "-std=c++17",
    "-nostdinc",
    "-nostdinc++",
    "-fPIC",
    "-fno-exceptions",
    "-fno-rtti",
    "-fsigned-char",
    "-w",
];

/// KASAN's outlined checks report every access, its exact size and its known alignment; the
/// optimizer neither drops nor invents accesses under it.
const KERNEL_FLAGS: [&str; 35] = [
    "-O1",
    "-gline-tables-only",
    "-fno-threadsafe-statics",
    "-ffp-contract=off",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-fno-strict-aliasing",
    "-fno-delete-null-pointer-checks",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
    "-fsanitize=kernel-address,array-bounds",
    "-fsanitize-recover=kernel-address,array-bounds",
    "-mllvm",
    "-asan-instrumentation-with-call-threshold=0",
    "-mllvm",
    "-asan-stack=0",
    "-mllvm",
    "-asan-globals=0",
    "-mllvm",
    "-asan-opt-same-temp=0",
    "-mllvm",
    "-asan-kernel-mem-intrinsic-prefix=1",
    "-mllvm",
    "-asan-mapping-scale=4",
    "-mllvm",
    "-asan-opt-globals=0",
    "-mllvm",
    "-simplifycfg-hoist-common=false", // two accesses stay two, each with its line
    "-mllvm",
    "-simplifycfg-sink-common=false",
    "-mllvm",
    "-disable-loop-idiom-all", // a loop of loads must not become a memcpy next to them
    "-c",
];

fn build(source: &Path, compiler: &Compiler, folder: &Path, text: &str) -> Result<PathBuf> {
    let identity = compiler.identity();
    let parts = [identity.as_str(), env!("CARGO_PKG_VERSION"), shim::RUNTIME, text];
    let flags = COMMON_FLAGS.iter().chain(&KERNEL_FLAGS).copied();
    let key = cache::key(parts.into_iter().chain(flags));
    let library = folder.join(format!("{key}.so"));
    if library.is_file() {
        return Ok(library);
    }
    let draft = cache::draft(folder);
    at_path(&draft, std::fs::create_dir_all(&draft))?;
    let (kernels, runtime) = (draft.join("kernels.cpp"), draft.join("runtime.cpp"));
    at_path(&kernels, std::fs::write(&kernels, text))?;
    at_path(&runtime, std::fs::write(&runtime, shim::RUNTIME))?;
    let outputs = [draft.join("kernels.o"), draft.join("runtime.o"), draft.join("kernels.so")];
    let run = |flags: &[&str], inputs: &[&Path], output: &Path| {
        let mut arguments = compiler.machine_flags();
        arguments.extend(flags.iter().map(ToString::to_string));
        arguments.extend(inputs.iter().map(|path| path.display().to_string()));
        arguments.extend(["-o".to_string(), output.display().to_string()]);
        arguments.extend(flags.contains(&"-shared").then(|| "-lm".to_string()));
        compiler.compile(folder, source, arguments).map(drop)
    };
    let result = run(&[&COMMON_FLAGS[..], &KERNEL_FLAGS].concat(), &[&kernels], &outputs[0])
        .and_then(|()| run(&[&COMMON_FLAGS[..], &["-O2", "-c"]].concat(), &[&runtime], &outputs[1]))
        .and_then(|()| {
            let inputs: [&Path; 2] = [&outputs[0], &outputs[1]];
            run(&["-shared", "-nostdlib++"], &inputs, &outputs[2])
        })
        .and_then(|()| cache::publish(&outputs[2], &library));
    let _ = std::fs::remove_dir_all(&draft);
    result.map(|()| library)
}
