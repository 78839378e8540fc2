//! Loads the kernels of a file, which is Metal source or the output of Apple's compiler.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use metal_sim::{Compiler, Constants, Kernel, KernelInfo, Library, Source, air};

use crate::case::{Case, usage};
use crate::data;
use crate::report::Found;

/// The kernels of a loaded file.
enum Kernels {
    Source(Library),
    Compiled(air::File),
}

/// A compiler, its cache, and the files that have been loaded.
pub struct Files {
    compiler: Compiler,
    cache: PathBuf,
    opened: Vec<(Source, Kernels)>,
}

/// Returns the folder for compiled kernels.
fn cache() -> Result<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|at| at.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    let cache = cache.context("XDG_CACHE_HOME and HOME name no folder for compiled kernels")?;
    Ok(cache.join("metal-check"))
}

impl Files {
    pub fn new() -> Result<Self> {
        let cache = cache()?;
        fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
        Ok(Self { compiler: Compiler::find()?, cache, opened: Vec::new() })
    }

    /// Loads the file of a case, unless it is loaded already. Returns its index in `opened`.
    fn open(&mut self, path: &Path, case: &Case) -> Result<usize> {
        // Paths are made absolute, since the cache finds compiled kernels by the text and the path
        // of their source.
        let whole = |path: PathBuf| {
            path.canonicalize().map_err(|error| anyhow!("{}: {error}", path.display()))
        };
        let mut source = Source::new(whole(case.folder.join(path))?);
        for folder in &case.include {
            source = source.include_dir(whole(case.folder.join(folder))?);
        }
        for define in &case.define {
            source = source.define(define);
        }
        if let Some(found) = self.opened.iter().position(|(opened, _)| *opened == source) {
            return Ok(found);
        }
        let kernels = if air::is_compiled(&source.path)? {
            let plain = source.include_dirs.is_empty() && source.defines.is_empty();
            ensure!(plain, "-I and -D are for source, and {} is compiled", path.display());
            Kernels::Compiled(air::File::open(&source.path, &self.compiler, &self.cache)?)
        } else {
            Kernels::Source(Library::compile(&source, &self.compiler, &self.cache)?)
        };
        self.opened.push((source, kernels));
        Ok(self.opened.len() - 1)
    }

    /// Lists the kernels of a file.
    pub fn list(&mut self, path: &Path, case: &Case) -> Result<Vec<KernelInfo>> {
        let at = self.open(path, case)?;
        Ok(match &self.opened[at].1 {
            Kernels::Source(library) => {
                for (name, reason) in library.refused() {
                    eprintln!("note: {name} {reason}, which the simulator does not have");
                }
                library.kernels()?
            }
            Kernels::Compiled(file) => file.kernels()?,
        })
    }

    /// Compiles the kernel of a case. Also returns a finding for each rule of the language that the
    /// source breaks.
    pub fn kernel(&mut self, case: &Case) -> Result<(Kernel, Vec<Found>)> {
        let (path, entry) = (case.source.as_deref(), case.entry.as_deref());
        let (path, entry) = (path.unwrap_or(Path::new("")), entry.unwrap_or_default());
        let mut given = BTreeMap::new();
        for text in &case.constant {
            let (index, value) = usage(data::indexed(text))?;
            given.insert(index, usage(data::constant(value))?);
        }
        let constants = |given: BTreeMap<u32, u64>| {
            given.into_iter().fold(Constants::new(), |all, (index, bits)| all.with(index, bits))
        };
        let at = self.open(path, case)?;
        let (source, kernels) = &self.opened[at];
        match kernels {
            Kernels::Compiled(file) => Ok((file.kernel(entry, &constants(given))?, Vec::new())),
            Kernels::Source(library) => {
                for constant in library.function_constants().iter().filter(|it| !it.optional) {
                    given.entry(constant.index).or_insert_with(|| {
                        let (index, name) = (constant.index, &constant.name);
                        eprintln!("note: constant {index}=TYPE:VALUE is missing, so {name} is 0");
                        0
                    });
                }
                let kernel = library.kernel(entry, &constants(given))?;
                let broken = match case.rules {
                    true => metal_sim::rules::check(source, &self.compiler, &self.cache)?,
                    false => Vec::new(),
                };
                let broken = broken.into_iter().filter(|rule| !rule.advice).map(Found::rule);
                Ok((kernel, broken.collect()))
            }
        }
    }
}
