//! A loaded kernel library: its registry (include/msl/registry.h), its addresses, and its line
//! table.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_void};
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::report::Place;
use crate::rewrite::BUILTINS;

/// The kind of resource that an argument of a kernel is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ArgumentKind {
    /// `[[buffer(n)]]`
    Buffer,
    /// `[[threadgroup(n)]]`
    Threadgroup,
}

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The resource that the argument is bound to.
    pub kind: ArgumentKind,
    /// The index in the argument's attribute, such as 3 in `[[buffer(3)]]`.
    pub index: u32,
    /// The name of the argument in the source.
    pub name: String,
    /// Whether the kernel may write to the buffer; `false` for threadgroup memory.
    pub writable: bool,
    /// `false` if a function constant turns the argument off.
    pub required: bool,
    /// The size of the type that the argument points to, in bytes.
    pub size: u32,
    /// The alignment in bytes of the scalar elements of the type that the argument points to.
    pub align: u32,
}

/// A parameter that receives a built-in value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The name of the parameter in the source.
    pub name: String,
    /// The name of the attribute, such as `thread_position_in_grid`.
    pub builtin: &'static str,
}

/// `msl::Arguments` of registry.h.
#[repr(C)]
pub(crate) struct Arguments {
    pub(crate) buffers: *const *mut c_void,
    pub(crate) threadgroup: *const *mut c_void,
    pub(crate) values: *const [u32; 4],
}

pub(crate) type Call = unsafe extern "C" fn(*const Arguments);

pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) max_threads: u32,
    pub(crate) call: Call,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) values: Vec<Value>,
}

pub(crate) struct Module {
    pub(crate) kernels: Vec<Entry>,
    path: PathBuf,
    /// The addresses at which the loaded image begins and ends.
    pub(crate) image: std::ops::Range<usize>,
    _library: libloading::Library,
}

#[repr(C)]
struct RawParameter {
    kind: u32,
    index: u32,
    writable: u32,
    required: u32,
    name: *const c_char,
}

#[repr(C)]
struct RawType {
    size: u32,
    align: u32,
}

/// `msl::Kernel` of registry.h.
#[repr(C)]
struct RawKernel {
    name: *const c_char,
    file: *const c_char,
    line: u32,
    max_threads: u32,
    call: Call,
    parameters: *const RawParameter,
    types: *const RawType,
    count: u32,
    next: *const RawKernel,
}

impl Module {
    /// Loads a library. Its kernels will call the functions of `table`, a `Table` of runtime.cpp.
    pub(crate) fn load<T>(path: &Path, table: &'static T) -> Result<Self> {
        let failed = |error: libloading::Error| {
            let cause = error.source().map(|cause| format!(": {cause}"));
            Error::Load(format!("{error}{}", cause.unwrap_or_default()))
        };
        // SAFETY: the library was built from our runtime and rewritten kernels; its constructors
        // only build the registry.
        let library = unsafe { libloading::Library::new(path) }.map_err(failed)?;
        // SAFETY: both symbols are defined in runtime.cpp with these types.
        let (head, attach) = unsafe {
            let head: libloading::Symbol<*const *const RawKernel> =
                library.get(b"msl_kernels").map_err(failed)?;
            let attach: libloading::Symbol<unsafe extern "C" fn(*const T)> =
                library.get(b"msl_attach").map_err(failed)?;
            (*head, *attach)
        };
        // SAFETY: the table is a static.
        unsafe { attach(table) };
        let mut kernels = Vec::new();
        // SAFETY: the list was built by the library's constructors and is never changed.
        unsafe {
            let mut raw = *head;
            while let Some(kernel) = raw.as_ref() {
                kernels.push(entry(kernel));
                raw = kernel.next;
            }
        }
        kernels.reverse();
        let image = image_of(head as usize);
        Ok(Module { kernels, path: path.to_path_buf(), image, _library: library })
    }

    /// Opens the line table. Opening is slow, so callers do it only when they need a line.
    pub(crate) fn lines(&self) -> Lines {
        Lines { loader: addr2line::Loader::new(&self.path).ok(), base: self.image.start }
    }
}

pub(crate) struct Lines {
    loader: Option<addr2line::Loader>,
    base: usize,
}

impl Lines {
    /// Returns the source lines of a return address, starting with the innermost inlined call.
    /// Lines in this crate's Metal headers are left out.
    pub(crate) fn find(&self, site: usize) -> Vec<Place> {
        let mut places = Vec::new();
        let Some(loader) = &self.loader else { return places };
        let Some(address) = site.checked_sub(self.base + 1) else { return places };
        let Ok(mut frames) = loader.find_frames(address as u64) else { return places };
        while let Ok(Some(frame)) = frames.next() {
            if let Some(location) = frame.location
                && let (Some(file), Some(line)) = (location.file, location.line)
                && line != 0
                && !file.contains("/msl/")
            {
                places.push(Place { file: tidy(file), line });
            }
        }
        places
    }
}

/// Removes `.` and `..` from a path. A path below the current folder becomes relative to it.
fn tidy(path: &str) -> String {
    let mut tidy = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if tidy.file_name().is_some() => {
                tidy.pop();
            }
            part => tidy.push(part),
        }
    }
    let below = std::env::current_dir().ok().and_then(|folder| {
        tidy.strip_prefix(folder).ok().map(|relative| relative.display().to_string())
    });
    below.unwrap_or_else(|| tidy.display().to_string())
}

/// # Safety
/// `kernel` and all that it points to must be alive.
unsafe fn entry(kernel: &RawKernel) -> Entry {
    // SAFETY: the registry's strings are literals.
    let text = |raw: *const c_char| unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned();
    let (mut arguments, mut values) = (Vec::new(), Vec::new());
    for i in 0..kernel.count as usize {
        // SAFETY: both arrays have at least `count` entries.
        let (parameter, kind) = unsafe { (&*kernel.parameters.add(i), &*kernel.types.add(i)) };
        if parameter.kind <= 1 {
            arguments.push(Argument {
                kind: [ArgumentKind::Buffer, ArgumentKind::Threadgroup][parameter.kind as usize],
                index: parameter.index,
                name: text(parameter.name),
                writable: parameter.writable != 0,
                required: parameter.required != 0,
                size: kind.size,
                align: kind.align,
            });
        } else if let Some(builtin) = BUILTINS.get(parameter.index as usize).copied() {
            values.push(Value { name: text(parameter.name), builtin });
        }
    }
    Entry {
        name: text(kernel.name),
        file: text(kernel.file),
        line: kernel.line,
        max_threads: kernel.max_threads,
        call: kernel.call,
        arguments,
        values,
    }
}

/// The address range of the loaded library that contains `address`.
fn image_of(address: usize) -> std::ops::Range<usize> {
    struct Search {
        address: usize,
        found: std::ops::Range<usize>,
    }
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        data: *mut c_void,
    ) -> i32 {
        // SAFETY: the loader hands out valid headers, and `data` is our Search.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
        let base = info.dlpi_addr as usize;
        // SAFETY: dlpi_phdr has dlpi_phnum entries.
        let headers =
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        // Compare `address` with the segments, not with the base: an object that was not relocated
        // has the base 0.
        let segments = loaded.map(|header| {
            let start = base + header.p_vaddr as usize;
            start..start + header.p_memsz as usize
        });
        if segments.clone().any(|segment| segment.contains(&search.address)) {
            let end = segments.map(|segment| segment.end).max().unwrap_or(base);
            search.found = base..end;
            return 1;
        }
        0
    }
    let mut search = Search { address, found: 0..0 };
    // SAFETY: `visit` matches the expected signature, and `search` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_cannot_be_loaded_says_why() -> std::io::Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), "no library")?;
        let failed = Module::load(file.path(), &()).err().expect("no library").to_string();
        // The error message of the loader contains the path of the file.
        assert!(failed.contains(&file.path().display().to_string()), "{failed}");
        Ok(())
    }
}
