//! Loads NVRTC, NVIDIA's run-time compiler, while the program runs, and compiles kernels with it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::Library;
use libloading::os::unix::{Library as UnixLibrary, RTLD_GLOBAL, RTLD_NOW};

/// The reason why a kernel was not compiled.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// NVRTC or CUDA's headers are not installed. The text lists the names and folders that were
    /// tried.
    Missing(String),
    /// The rewriter or NVRTC rejected the source. The text names the source's files and lines.
    Source(String),
    /// NVRTC failed for a reason other than the source.
    Nvrtc(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(text) | Self::Nvrtc(text) => f.write_str(text),
            Self::Source(text) => write!(f, "the kernel does not compile for CUDA:\n{text}"),
        }
    }
}

impl std::error::Error for Error {}

/// The result of a compilation.
pub type Result<T> = std::result::Result<T, Error>;

/// The file names of NVRTC, with the newest version first. In a process with libmlx, the version
/// that libmlx is linked with is already loaded, so opening its name needs no search path.
const NAMES: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];

type Program = *mut c_void;
type Sized = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Filled = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// NVRTC's functions. The library is never unloaded.
pub struct Nvrtc {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    add_name: unsafe extern "C" fn(Program, *const c_char) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    lowered_name: unsafe extern "C" fn(Program, *const c_char, *mut *const c_char) -> c_int,
    log_size: Sized,
    log: Filled,
    cubin_size: Sized,
    cubin: Filled,
    /// Major and minor version.
    pub version: (i32, i32),
    /// The folder of `cuda_fp16.h`.
    pub include: PathBuf,
}

/// The outcome of a compilation.
pub(crate) struct Compiled {
    pub(crate) cubin: Vec<u8>,
    pub(crate) symbol: String,
    pub(crate) log: String,
}

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Adds a folder that is searched for NVRTC after the system's folders. Has no effect after the
/// first call of [`Nvrtc::get`], even if that call failed.
pub fn search_in(folder: impl Into<PathBuf>) {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(folder.into());
}

impl Nvrtc {
    /// Returns the functions of NVRTC. The first call loads the library.
    ///
    /// # Errors
    ///
    /// Returns an error if NVRTC of CUDA 12 or 13, or CUDA's headers, are not found.
    pub fn get() -> Result<&'static Self> {
        static LOADED: OnceLock<std::result::Result<Nvrtc, String>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| Self::load().map_err(|error| error.to_string()));
        loaded.as_ref().map_err(|text| Error::Missing(text.clone()))
    }

    fn load() -> Result<Self> {
        let folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let beside = folders.iter().flat_map(|folder| NAMES.map(|name| folder.join(name)));
        let candidates: Vec<PathBuf> = NAMES.map(PathBuf::from).into_iter().chain(beside).collect();
        let mut tried = Vec::new();
        for path in &candidates {
            // SAFETY: the initializers of NVRTC may run at any time.
            match unsafe { UnixLibrary::open(Some(path), RTLD_NOW | RTLD_GLOBAL) } {
                Ok(library) => return Self::from_library(library.into()),
                Err(error) => tried.push(format!("{}: {error}", path.display())),
            }
        }
        Err(Error::Missing(format!(
            "NVRTC was not found: install nvidia-cuda-nvrtc by pip, or CUDA 12 or 13 ({})",
            tried.join("; ")
        )))
    }

    fn from_library(library: Library) -> Result<Self> {
        // SAFETY: nvrtc.h declares the functions with these types, both in CUDA 12 and 13.
        let nvrtc = unsafe {
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int =
                symbol(&library, "nvrtcVersion")?;
            let (mut major, mut minor) = (0, 0);
            version(&raw mut major, &raw mut minor);
            let path = path_of(version as *const c_void);
            load_builtins(path.as_deref(), major, minor);
            Self {
                create: symbol(&library, "nvrtcCreateProgram")?,
                destroy: symbol(&library, "nvrtcDestroyProgram")?,
                add_name: symbol(&library, "nvrtcAddNameExpression")?,
                compile: symbol(&library, "nvrtcCompileProgram")?,
                lowered_name: symbol(&library, "nvrtcGetLoweredName")?,
                log_size: symbol(&library, "nvrtcGetProgramLogSize")?,
                log: symbol(&library, "nvrtcGetProgramLog")?,
                cubin_size: symbol(&library, "nvrtcGetCUBINSize")?,
                cubin: symbol(&library, "nvrtcGetCUBIN")?,
                version: (major, minor),
                include: include(path.as_deref())?,
            }
        };
        std::mem::forget(library); // its functions are called until the process ends
        Ok(nvrtc)
    }

    /// Compiles `source` for the kernel that `expression` names.
    pub(crate) fn compile(
        &self,
        source: &str,
        expression: &str,
        headers: &[(&str, &str)],
        options: &[String],
    ) -> Result<Compiled> {
        let source = c_string(source)?;
        let expression = c_string(expression)?;
        let names: Vec<CString> =
            headers.iter().map(|(name, _)| c_string(name)).collect::<Result<_>>()?;
        let texts: Vec<CString> =
            headers.iter().map(|(_, text)| c_string(text)).collect::<Result<_>>()?;
        let options: Vec<CString> =
            options.iter().map(|text| c_string(text)).collect::<Result<_>>()?;
        let pointers = |list: &[CString]| list.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (name_pointers, text_pointers) = (pointers(&names), pointers(&texts));
        let option_pointers = pointers(&options);
        let mut program = Owned { nvrtc: self, program: ptr::null_mut() };
        // SAFETY: all strings live until the program is destroyed, and each count is the length of
        // its array.
        unsafe {
            let count = c_int::try_from(names.len()).unwrap_or(0);
            let made = (self.create)(
                &raw mut program.program,
                source.as_ptr(),
                c"kernel.cu".as_ptr(),
                count,
                text_pointers.as_ptr(),
                name_pointers.as_ptr(),
            );
            checked(made, "nvrtcCreateProgram")?;
            checked(
                (self.add_name)(program.program, expression.as_ptr()),
                "nvrtcAddNameExpression",
            )?;
            let count = c_int::try_from(option_pointers.len()).unwrap_or(0);
            let compiled = (self.compile)(program.program, count, option_pointers.as_ptr());
            let log = program.bytes(self.log_size, self.log)?;
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
            // 6 is NVRTC_ERROR_COMPILATION.
            if compiled == 6 {
                return Err(Error::Source(log));
            }
            checked(compiled, "nvrtcCompileProgram")?;
            let mut name = ptr::null();
            let found = (self.lowered_name)(program.program, expression.as_ptr(), &raw mut name);
            checked(found, "nvrtcGetLoweredName")?;
            let symbol = CStr::from_ptr(name).to_string_lossy().into_owned();
            Ok(Compiled { cubin: program.bytes(self.cubin_size, self.cubin)?, symbol, log })
        }
    }
}

/// An NVRTC program. Dropping this value destroys the program.
struct Owned<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl Owned<'_> {
    fn bytes(&self, size: Sized, fill: Filled) -> Result<Vec<u8>> {
        let mut count = 0;
        // SAFETY: the program exists, and the buffer has the size that NVRTC reports.
        unsafe {
            checked(size(self.program, &raw mut count), "the size of NVRTC's result")?;
            let mut bytes = vec![0u8; count];
            checked(fill(self.program, bytes.as_mut_ptr().cast()), "NVRTC's result")?;
            Ok(bytes)
        }
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: nothing uses the program after this call.
            unsafe { (self.nvrtc.destroy)(&raw mut self.program) };
        }
    }
}

fn checked(code: c_int, what: &str) -> Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(Error::Nvrtc(format!("{what} failed with code {code} of NVRTC"))),
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Source("the source contains a zero byte".to_owned()))
}

/// # Safety
/// `T` must be the type of the function `name`.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T> {
    // SAFETY: the caller guarantees that `T` is the type of the function.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|function| *function).map_err(|error| Error::Missing(error.to_string()))
}

/// Returns the path of the library that contains the function.
fn path_of(function: *const c_void) -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: a `Dl_info` of zeros is valid, and `dladdr` only fills it in.
    let name = unsafe {
        let known = libc::dladdr(function, info.as_mut_ptr()) != 0;
        let info = info.assume_init();
        (known && !info.dli_fname.is_null())
            .then(|| CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned())
    };
    Path::new(&name?).canonicalize().ok()
}

/// Loads the library with NVRTC's builtins. NVRTC opens this library by name, which works only if
/// it is already loaded or on the system's search path. If loading fails here, NVRTC reports the
/// error later.
fn load_builtins(nvrtc: Option<&Path>, major: i32, minor: i32) {
    let name = format!("libnvrtc-builtins.so.{major}.{minor}");
    if let Some(path) = nvrtc.and_then(|path| Some(path.parent()?.join(name))) {
        // SAFETY: loading this library has no preconditions, and nothing unloads it.
        let loaded = unsafe { UnixLibrary::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        std::mem::forget(loaded);
    }
}

/// Finds CUDA's headers: near NVRTC's library, in the folders that pip and NVIDIA's installer use,
/// in `CUDA_HOME`, in `CUDA_PATH`, or in `/usr/local/cuda`.
fn include(library: Option<&Path>) -> Result<PathBuf> {
    let mut folders = Vec::new();
    if let Some(library) = library {
        for above in library.ancestors().skip(1).take(4) {
            folders.push(above.join("include"));
            folders.push(above.join("cuda_runtime/include"));
        }
    }
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        folders.extend(std::env::var_os(variable).map(|home| Path::new(&home).join("include")));
    }
    folders.push(PathBuf::from("/usr/local/cuda/include"));
    let found = folders.iter().find(|folder| folder.join("cuda_fp16.h").is_file());
    found.cloned().ok_or_else(|| {
        let tried: Vec<String> =
            folders.iter().map(|folder| folder.display().to_string()).collect();
        Error::Missing(format!(
            "CUDA's header cuda_fp16.h was not found: install nvidia-cuda-runtime by pip, or set \
             CUDA_HOME (tried {})",
            tried.join(", ")
        ))
    })
}
