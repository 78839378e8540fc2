//! Reads a file that Apple's compiler wrote: a `.metallib`, or a module of AIR (Apple's LLVM IR) as
//! bitcode or text.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Library, Metallib, disassemble};
use crate::compiler::Compiler;
use crate::constants::Constants;
use crate::error::{Error, Result, at_path};
use crate::library::{Kernel, KernelInfo};

/// For a metallib with more functions than this, `File::kernels` lists no arguments.
const LISTED: usize = 64;

/// The first bytes of a metallib, of bitcode, and of bitcode with a header.
const MAGIC: [&[u8]; 3] = [b"MTLB", b"BC\xC0\xDE", b"\xDE\xC0\x17\x0B"];

/// A `.metallib`, or a module of AIR.
pub struct File {
    path: PathBuf,
    cache: PathBuf,
    compiler: Compiler,
    content: Content,
}

enum Content {
    Metallib(Metallib),
    Module(Library),
}

/// Whether [`File::open`] can read a file, according to its first bytes or its extension `.ll`.
///
/// # Errors
///
/// Returns [`Error::Io`] if the file cannot be read.
pub fn is_compiled(path: &Path) -> Result<bool> {
    let mut head = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(4).read_to_end(&mut head));
    at_path(path, read)?;
    Ok(MAGIC.contains(&head.as_slice()) || path.extension().is_some_and(|it| it == "ll"))
}

impl File {
    /// Reads the file. If it is bitcode, the compiler converts it to text. `cache` is the folder
    /// for compiled kernels, as for [`crate::Library`].
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the file or the cache cannot be read or written, and
    /// [`Error::Load`] if the file is neither a metallib nor AIR, or has unknown parts.
    pub fn open(path: &Path, compiler: &Compiler, cache: &Path) -> Result<Self> {
        at_path(cache, fs::create_dir_all(cache))?;
        let bytes = at_path(path, fs::read(path))?;
        let content = if bytes.starts_with(MAGIC[0]) {
            Content::Metallib(Metallib::open(path)?)
        } else {
            let text = match String::from_utf8(bytes) {
                Ok(text) => text,
                Err(bitcode) => {
                    let texts = disassemble::text(compiler, cache, &[bitcode.into_bytes()])?;
                    texts.into_iter().next().unwrap_or_default()
                }
            };
            let name = path.display();
            let library = Library::of_module(&text, cache);
            Content::Module(library.map_err(|error| Error::Load(format!("{name}: {error}")))?)
        };
        let (path, cache, compiler) = (path.to_path_buf(), cache.to_path_buf(), compiler.clone());
        Ok(File { path, cache, compiler, content })
    }

    /// Lists the kernels. Their arguments are included unless the file is a metallib with many
    /// functions.
    ///
    /// # Errors
    ///
    /// Returns an error if a function cannot be read.
    pub fn kernels(&self) -> Result<Vec<KernelInfo>> {
        let metallib = match &self.content {
            Content::Module(library) => return Ok(library.kernels()),
            Content::Metallib(metallib) => metallib,
        };
        let names: Vec<&str> = metallib.names().collect();
        if names.len() <= LISTED {
            return Ok(self.read(metallib, &names)?.kernels());
        }
        let info = |name: &str| KernelInfo {
            name: name.to_string(),
            file: String::new(),
            line: 0,
            arguments: Vec::new(),
            values: Vec::new(),
        };
        Ok(names.into_iter().map(info).collect())
    }

    /// Compiles a kernel with these function constants.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such kernel, if the kernel uses a feature that the simulator
    /// lacks, or if the cache cannot be written.
    pub fn kernel(&self, name: &str, constants: &Constants) -> Result<Kernel> {
        let library = match &self.content {
            Content::Module(library) => &library.only(name, &self.path)?,
            Content::Metallib(metallib) => &self.read(metallib, &[name])?,
        };
        let mut kernels = library.compile(&self.compiler, constants)?;
        let missing = || Error::NoKernel(format!("{} has no '{name}'", self.path.display()));
        kernels.remove(name).ok_or_else(missing)
    }

    fn read(&self, metallib: &Metallib, names: &[&str]) -> Result<Library> {
        Library::read(metallib, names, &self.compiler, &self.cache)
    }
}
