//! Runs kernels in the simulator of `crates/metal-sim`. In tests, C++ code that replaces MLX's
//! Metal device calls these functions. They are compiled for tests only, with the feature
//! `simulate-metal`.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use metal_sim::{Access, Buffer, Compiler, Constants, Dispatch, Kernel, Library, Schedule, Source};

use crate::error::Result;
use crate::files;
use crate::simulator::{Schedule as Chosen, chosen_simulation};

mod dispatch;
mod planted;

pub use dispatch::{Dispatched, Encoded, dispatched};
use dispatch::{SimulatedDispatch, changed, failed, simulated_dispatch};
pub use planted::{Change, Planted, with_planted};

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
mod ffi {
    extern "Rust" {
        type SimulatedLibrary;
        type SimulatedKernel;
        type SimulatedDispatch;
        fn simulated_library(source: &str) -> Result<Box<SimulatedLibrary>>;
        /// Returns the kernel `name`. Sets the function constant with the index `indices[i]` to the
        /// value `bits[i]`.
        fn simulated_kernel(
            of: &SimulatedLibrary,
            name: &str,
            indices: &[u32],
            bits: &[u64],
        ) -> Result<Box<SimulatedKernel>>;
        /// Returns 1 if this thread simulates Metal, 0 if not, and -1 if the environment decides.
        fn chosen_simulation() -> i8;
        fn simulated_dispatch(grid: [u32; 3], group: [u32; 3]) -> Box<SimulatedDispatch>;
        fn bind(
            self: &mut SimulatedDispatch,
            index: u32,
            at: usize,
            before: usize,
            bytes: usize,
            writable: bool,
        );
        fn bind_constant(self: &mut SimulatedDispatch, index: u32, at: usize, bytes: usize);
        fn reserve(self: &mut SimulatedDispatch, index: u32, bytes: usize);
        fn count_threads(self: &mut SimulatedDispatch);
        /// The memory that is bound to `dispatch` must be valid until the function returns.
        unsafe fn simulate(kernel: &SimulatedKernel, dispatch: &SimulatedDispatch) -> Result<()>;
    }
}

/// The environment variable that turns the simulator on and sets the order of threads: `forward`,
/// `reversed` or `shuffled:<seed>`.
const SCHEDULE: &str = "MLX_PRIMITIVES_SIMULATE_METAL";
/// The environment variable with the path of a log file. Each dispatch that runs without a fault
/// appends a line with the kernel's name. A second file, of the same path but with the extension
/// `.kernels`, gets the names of all kernels of each compiled library.
const LOG: &str = "MLX_PRIMITIVES_SIMULATE_LOG";
/// The folder in which this crate was built. It may not exist at run time.
const BUILT: &str = env!("OUT_DIR");

pub(crate) struct SimulatedLibrary(Library);

pub(crate) struct SimulatedKernel {
    kernel: Kernel,
    constants: Constants,
}

/// The cache folder for compiled kernels. It is in the build folder or, if the build folder does
/// not exist on this machine, in the user's cache folder.
fn cache() -> Result<PathBuf> {
    let built = Path::new(BUILT);
    if built.is_dir() {
        return Ok(built.join("metal-sim"));
    }
    let folder = files::user_cache();
    let missing = "XDG_CACHE_HOME and HOME name no folder for compiled kernels";
    Ok(folder.ok_or_else(|| failed(missing))?.join("metal-sim"))
}

pub(crate) fn simulated_library(source: &str) -> Result<Box<SimulatedLibrary>> {
    // The file's name contains a hash of the source, so it serves as a cache key. Several processes
    // may write the file at the same time, so each writes a draft and renames it.
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    let hash = hasher.finish();
    // Remembers the sources that did not compile, so later ops do not compile them again.
    static REFUSED: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());
    let refused = || REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(messages) = refused().get(&hash) {
        return Err(failed(messages));
    }
    let cache = cache()?;
    let path = cache.join(format!("embedded-{hash:016x}.metal"));
    let draft = path.with_extension(std::process::id().to_string());
    std::fs::create_dir_all(&cache).map_err(failed)?;
    std::fs::write(&draft, source).map_err(failed)?;
    std::fs::rename(&draft, &path).map_err(failed)?;
    let library = Library::compile(&Source::new(&path), &Compiler::find().map_err(failed)?, &cache);
    let library = library.map_err(|error| {
        if matches!(error, metal_sim::Error::Compile { .. }) {
            refused().insert(hash, error.to_string());
        }
        failed(error)
    })?;
    if let Some(log) = std::env::var_os(LOG) {
        let names = library.kernels().map_err(failed)?.into_iter().map(|kernel| kernel.name + "\n");
        let path = Path::new(&log).with_extension("kernels");
        let file = OpenOptions::new().create(true).append(true).open(path);
        let text: String = names.collect();
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed)?;
    }
    Ok(Box::new(SimulatedLibrary(library)))
}

pub(crate) fn simulated_kernel(
    library: &SimulatedLibrary,
    name: &str,
    indices: &[u32],
    bits: &[u64],
) -> Result<Box<SimulatedKernel>> {
    let values = indices.iter().zip(bits);
    let constants = values.fold(Constants::new(), |all, (&index, &bits)| all.with(index, bits));
    let kernel = library.0.kernel(name, &constants).map_err(failed)?;
    Ok(Box::new(SimulatedKernel { kernel, constants }))
}

/// # Safety
/// The declaration in the bridge above states the requirements.
pub(crate) unsafe fn simulate(
    kernel: &SimulatedKernel,
    dispatch: &SimulatedDispatch,
) -> Result<()> {
    let mut kept = Vec::new();
    match &dispatch.planted {
        None => {}
        Some(Planted::Kernels(library)) => {
            let mutant = library.kernel(kernel.kernel.name(), &kernel.constants);
            // SAFETY: the caller of `simulate` promises that the bound memory is valid.
            return unsafe { run(mutant.as_ref().unwrap_or(&kernel.kernel), dispatch) };
        }
        Some(Planted::Dispatch(_, change)) => {
            // SAFETY: the caller promises that the bound memory is valid, and `kept` outlives the
            // run.
            return unsafe { run(&kernel.kernel, &changed(dispatch, *change, &mut kept)?) };
        }
    }
    // SAFETY: the caller promises that the bound memory is valid.
    unsafe { run(&kernel.kernel, dispatch) }
}

/// # Safety
/// The memory that is bound must be valid until this function returns.
unsafe fn run(kernel: &Kernel, dispatch: &SimulatedDispatch) -> Result<()> {
    let mut run = Dispatch::new(kernel).schedule(schedule(dispatch)?);
    for bound in &dispatch.buffers {
        let address = std::ptr::with_exposed_provenance_mut(bound.at - bound.before);
        let access = match (bound.writable, in_place(dispatch, bound.at)) {
            (false, _) => Access::Read,
            (true, false) => Access::Write,
            (true, true) => Access::ReadWrite, // unchanged elements may stay unwritten
        };
        // SAFETY: the caller promises that the memory is valid until the kernel has run.
        let buffer = unsafe { Buffer::raw(address, bound.before + bound.bytes, access) };
        run = run.buffer(bound.index, buffer.from_offset(bound.before));
    }
    for &(index, bytes) in &dispatch.threadgroup {
        run = run.threadgroup(index, bytes);
    }
    run = if dispatch.grid_is_threads {
        run.threads(dispatch.grid, dispatch.group)
    } else {
        run.grid_groups(dispatch.grid, dispatch.group)
    };
    let strictly = |mut report: metal_sim::Report| {
        report.faults.append(&mut report.notes); // our kernels must have no notes either
        report.check()
    };
    let report = run.run().and_then(strictly).map_err(|error| {
        failed(format_args!("{} over {:?}: {error}", kernel.name(), dispatch.grid))
    })?;
    let mut bound: Vec<_> = dispatch.buffers.iter().filter(|bound| !bound.constant).collect();
    bound.sort_by_key(|bound| bound.index);
    // SAFETY: the caller promises that the bound memory is valid.
    let encoded = unsafe { Encoded::of(dispatch) };
    let arrays: Vec<_> = bound
        .iter()
        .map(|bound| {
            let traffic = report.buffers.get(&bound.index).copied().unwrap_or_default();
            [traffic.fetched_bytes, traffic.written_bytes, traffic.distinct_read]
        })
        .collect();
    let kernel = kernel.name().to_owned();
    record(&kernel)?;
    let mut journal = dispatch.journal.lock().unwrap_or_else(PoisonError::into_inner);
    journal.push(Dispatched { kernel, arrays, report, encoded });
    Ok(())
}

fn in_place(dispatch: &SimulatedDispatch, output: usize) -> bool {
    dispatch.buffers.iter().any(|bound| !bound.writable && bound.at == output)
}

fn schedule(dispatch: &SimulatedDispatch) -> Result<Schedule> {
    match dispatch.chosen {
        Some(Chosen::Forward) => return Ok(Schedule::Forward),
        Some(Chosen::Reversed) => return Ok(Schedule::Reversed),
        Some(Chosen::Shuffled(seed)) => return Ok(Schedule::Shuffled(seed)),
        None => {}
    }
    let text = std::env::var(SCHEDULE).unwrap_or_default();
    let seed = text.strip_prefix("shuffled:").and_then(|seed| seed.parse().ok());
    match (text.as_str(), seed) {
        ("forward", _) => Ok(Schedule::Forward),
        ("reversed", _) => Ok(Schedule::Reversed),
        (_, Some(seed)) => Ok(Schedule::Shuffled(seed)),
        _ => Err(failed(format_args!(
            "expected {SCHEDULE} to be forward, reversed or shuffled:<seed>, got '{text}'"
        ))),
    }
}

fn record(kernel: &str) -> Result<()> {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let open = |path| OpenOptions::new().create(true).append(true).open(path).ok();
    let file = FILE.get_or_init(|| std::env::var_os(LOG).and_then(open));
    match file {
        // A single write keeps the lines of several threads and processes from mixing.
        Some(file) => (&*file).write_all(format!("{kernel}\n").as_bytes()).map_err(failed),
        None if std::env::var_os(LOG).is_some() => Err(failed(format_args!("cannot open {LOG}"))),
        None => Ok(()),
    }
}
