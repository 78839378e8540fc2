//! Devices, streams, threads and versions. By default ops run on MLX's default device (the GPU
//! where there is one), in order on a stream of the calling thread.
//!
//! A thread gets a default CPU stream when it first builds an op. When the thread ends, another
//! thread can get that stream. Up to sixteen threads at a time get such streams. Each further
//! thread gets a new stream, whose operating-system thread stays until the process ends.
//! Programs with many threads should therefore evaluate on a fixed set of threads.
//!
//! # Threads and processes that end, and forks
//!
//! Ops, evaluations and transforms return errors after MLX's streams are destroyed. Destructors of
//! thread-local values and `atexit` handlers may run that late. After a `fork`, the child gets the
//! same errors if its parent had run an op, because the child lacks the parent's worker threads.
//! The child can `exec` another program, exit, and read arrays that its parent computed. A fork
//! before the first op restricts neither process.

use std::marker::PhantomData;

use crate::error::{Error, Result};
use crate::ffi::bridge::{self as ffi, Place};

/// A kind of processor that ops run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The CPU, present everywhere.
    Cpu,
    /// The GPU, if MLX was built with support for one.
    Gpu,
}

impl Device {
    /// Whether this machine has the device.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX cannot find out whether the system has a GPU.
    pub fn is_available(self) -> Result<bool> {
        Ok(self == Self::Cpu || ffi::gpu_available()?)
    }

    /// The name of the processor, as MLX reports it.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX has no such device, or cannot read the device's name.
    pub fn name(self) -> Result<String> {
        Ok(ffi::device_name(self == Self::Gpu)?)
    }

    fn place(self, stream: i32) -> Place {
        Place { explicit_device: true, gpu: self == Self::Gpu, stream }
    }
}

/// The device of ops outside [`with_device`]: the GPU if the machine has one.
///
/// # Errors
///
/// Returns an error if MLX cannot find out whether the system has a GPU.
pub fn default_device() -> Result<Device> {
    Ok(if ffi::default_is_gpu()? { Device::Gpu } else { Device::Cpu })
}

/// A queue of work on a device, which runs in order. It belongs to the thread that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    index: i32,
    device: Device,
    thread: PhantomData<*const ()>,
}

impl Stream {
    /// A new stream of a device.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such device, or the system gives MLX no thread for the
    /// stream.
    pub fn new(device: Device) -> Result<Self> {
        let index = ffi::new_stream(device == Device::Gpu)?;
        Ok(Self { index, device, thread: PhantomData })
    }

    /// Waits until all work that was given to the stream has ended.
    ///
    /// # Errors
    ///
    /// Returns an error if work on the stream failed and no array recorded the failure.
    pub fn synchronize(&self) -> Result<()> {
        Ok(ffi::synchronize(self.device.place(self.index))?)
    }
}

/// The device on which new ops of this thread run.
///
/// # Errors
///
/// Returns an error if MLX cannot find out whether the system has a GPU.
pub fn current() -> Result<Device> {
    let place = ffi::current_place();
    if !place.explicit_device {
        return default_device();
    }
    Ok(if place.gpu { Device::Gpu } else { Device::Cpu })
}

/// Runs `f`. The ops that `f` builds on this thread run on the device. Other threads are not
/// affected.
///
/// ```
/// use mlx_primitives::{Array, device::{self, Device}};
///
/// let sum = device::with_device(Device::Cpu, || Array::ones::<f32>(&[3])?.sum(..))?;
/// assert_eq!(sum.item::<f32>()?, 3.0);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn with_device<R>(device: Device, f: impl FnOnce() -> R) -> R {
    with_place(device.place(-1), f)
}

/// Runs `f`. The ops that `f` builds on this thread run on the stream.
///
/// ```
/// use mlx_primitives::{Array, device::{Device, Stream, with_stream}};
///
/// let stream = Stream::new(Device::Cpu)?;
/// let x = with_stream(&stream, || Array::ones::<f32>(&[2])?.exp())?;
/// x.eval()?;
/// stream.synchronize()?;
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn with_stream<R>(stream: &Stream, f: impl FnOnce() -> R) -> R {
    with_place(stream.device.place(stream.index), f)
}

fn with_place<R>(place: Place, f: impl FnOnce() -> R) -> R {
    struct Restore(Place);
    impl Drop for Restore {
        fn drop(&mut self) {
            ffi::set_place(self.0);
        }
    }
    let _restore = Restore(ffi::current_place());
    ffi::set_place(place);
    f()
}

/// Waits until all work that was given to the thread's current stream has ended.
///
/// # Errors
///
/// Returns an error if work on the stream failed and no array recorded the failure.
pub fn synchronize() -> Result<()> {
    Ok(ffi::synchronize(ffi::current_place())?)
}

/// The number of groups of CPU tasks that MLX has queued or is running, in the whole process; 0 if
/// it computes nothing.
///
/// MLX delays a thread that evaluates while there are more than ten groups. The count also returns
/// to 0 after evaluations that failed.
///
/// # Errors
///
/// Returns an error if MLX cannot be started, for example because the system has no more threads.
pub fn active_tasks() -> Result<i32> {
    Ok(ffi::active_tasks()?)
}

/// Ends the streams that this thread made with [`Stream::new`], and its default GPU stream. The
/// thread's next op gets a new stream. A thread that uses only its default CPU stream need not call
/// this before it ends.
///
/// Arrays of these streams must have been evaluated or dropped: evaluating them later is an error.
/// Evaluated arrays can still be read.
///
/// # Errors
///
/// Returns an error if MLX cannot end the streams, for example because work on them failed.
pub fn clear_streams() -> Result<()> {
    Ok(ffi::clear_streams()?)
}

/// The versions of the MLX headers that this crate was built with, and of the loaded libmlx.
/// [`check_version`] returns an error if they differ.
pub fn mlx_versions() -> (String, String) {
    (ffi::header_version(), ffi::library_version())
}

/// Compares the version of the loaded libmlx with the version of the headers that this crate was
/// built with, and does nothing else. Creating the first array compares them too.
///
/// # Errors
///
/// Returns an error if the versions differ. The error names both.
pub fn check_version() -> Result<()> {
    Ok(ffi::check_version()?)
}

/// The path of the libmlx that this process has loaded, which depends on variables such as
/// `LD_LIBRARY_PATH`; `None` if MLX is linked into the program, or if the system cannot tell.
pub fn mlx_library() -> Option<std::path::PathBuf> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        // SAFETY: the name is a string that ends with a zero, and the call only looks it up among
        // the symbols of the process: mlx::core::version().
        let version =
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_ZN3mlx4core7versionEv".as_ptr()) };
        // SAFETY: all fields are pointers, for which zeros are valid.
        let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: the first argument may be any address, and the call fills the second, a local
        // value.
        let known = unsafe { libc::dladdr(version, &mut found) } != 0;
        if !version.is_null() && known && !found.dli_fname.is_null() {
            // SAFETY: the field is the loader's string of a library that stays loaded.
            let name = unsafe { std::ffi::CStr::from_ptr(found.dli_fname) };
            let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
            return path.file_name()?.to_str()?.contains("mlx.").then(|| path.to_owned());
        }
    }
    None
}

/// The installation directory of the MLX that this crate was built with.
pub fn mlx_prefix() -> &'static str {
    option_env!("MLX_PRIMITIVES_MLX_PREFIX").unwrap_or("")
}

/// Describes where the Metal kernels come from: the path of the metallib, the embedded source, or
/// nowhere.
///
/// # Errors
///
/// Returns an error if `MLX_PRIMITIVES_METALLIB` names no metallib, or the metallib that would be
/// loaded was compiled from other sources than the program's.
pub fn kernels_origin() -> Result<String> {
    Ok(ffi::kernels_origin()?)
}

/// A hash of the sources of all kernels, which differs between builds with different kernels. A
/// metallib that was compiled from other sources is refused.
pub fn kernels_hash() -> &'static str {
    option_env!("MLX_PRIMITIVES_KERNELS_HASH").unwrap_or("")
}

/// The operating system: its kernel's name and release, and the machine's architecture.
pub fn system() -> String {
    #[cfg(unix)]
    {
        // SAFETY: all fields are arrays of characters, for which zeros are valid.
        let mut names: libc::utsname = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer belongs to a local value, which the call fills.
        if unsafe { libc::uname(&mut names) } == 0 {
            let text = |field: &[libc::c_char]| -> String {
                field.iter().take_while(|c| **c != 0).map(|c| char::from(*c as u8)).collect()
            };
            return [text(&names.sysname), text(&names.release), text(&names.machine)].join(" ");
        }
    }
    format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)
}

/// Checks the environment variables of this crate, and MLX's variables that are numbers.
///
/// The CPU kernels ignore unusable values, and MLX converts any text to a number. Neither reports a
/// mistake. A program that wants to report mistakes calls this function first, as the
/// `mlx-primitives` command does.
///
/// # Errors
///
/// Returns an error for the variables listed here. The error names the variable, and gives its
/// value and the accepted values or, if the name is unknown, the names that programs read:
///
/// - `MLX_PRIMITIVES_THREADS` that is not a number within 1 to 1024, `MLX_PRIMITIVES_SIMD` that
///   does not name an instruction set that this machine has, or `MLX_PRIMITIVES_TUNE` that is
///   neither `off` nor `file`. An empty variable counts as not set.
/// - A numeric variable of MLX, such as `MLX_MAX_OPS_PER_BUFFER`, with a value outside its range.
/// - Any unknown name that begins with `MLX_PRIMITIVES_`, such as a misspelled one.
pub fn check_environment() -> Result<()> {
    crate::environment::check()
}

/// The name of the instruction set that the CPU kernels use: the best of this machine, or the one
/// that `MLX_PRIMITIVES_SIMD` names.
pub fn cpu_kernels() -> &'static str {
    mlx_primitives_kernels::simd_level_name()
}

/// Whether the CPU kernels can round activations to eight bits, as
/// [`CpuActivations::Int8`](crate::ops::CpuActivations) requests. The instruction sets
/// `amx`, `avx512vnni`, `avx512bf16`, `avx512`, `avx2vnni`, `avx2`, `i8mm` and `dotprod` can. With
/// `neon` and `scalar`, the kernels multiply exact activations. Whether they round activations for
/// some weights depends on the format too: see
/// [`can_round_activations`](crate::ops::QuantizedWeight::can_round_activations).
pub fn cpu_multiplies_bytes() -> bool {
    mlx_primitives_kernels::multiplies_bytes(4)
}

/// The number of threads that the CPU kernels use.
pub fn cpu_threads() -> usize {
    mlx_primitives_kernels::thread_count()
}

/// Sets the number of [`cpu_threads`]. By default it is `MLX_PRIMITIVES_THREADS` (1 to 1024; other
/// values are ignored, see [`check_environment`]) or the number of cores. The threads live as long
/// as the process, so the number has to be set before the first of our ops runs on the CPU.
///
/// # Errors
///
/// Returns an error for a number outside 1 to 1024, or if another number of threads already runs.
///
/// ```
/// use mlx_primitives::device;
///
/// device::set_cpu_threads(1)?;
/// assert_eq!(device::cpu_threads(), 1);
/// assert!(device::set_cpu_threads(2).is_err());
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn set_cpu_threads(threads: usize) -> Result<()> {
    let refuse = |expected: std::fmt::Arguments| Err(Error::argument("set_cpu_threads", expected));
    let most = mlx_primitives_kernels::MAX_THREADS;
    if !(1..=most).contains(&threads) {
        return refuse(format_args!("1 to {most} threads, got {threads}"));
    }
    match mlx_primitives_kernels::start_threads(threads) {
        running if running == threads => Ok(()),
        running => refuse(format_args!("the {running} threads that run already, got {threads}")),
    }
}
