//! Loads the functions of CUDA's driver that the benchmark needs, at run time.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr;

use anyhow::{Context, Result, ensure};
use libloading::Library;
use mlx_primitives_cuda::{Argument, Cubin};

type Code = c_int;
type Handle = *mut c_void;

/// CUDA's driver library, with a context on the first device.
pub struct Driver {
    library: Library,
    /// The GPU's architecture as a number, such as 90 for `sm_90`.
    pub architecture: u32,
    /// The number of the GPU's multiprocessors.
    pub cores: u32,
    stream: Handle,
    pub name: String,
}

/// Memory of the device.
#[derive(Clone, Copy)]
pub struct Memory {
    pub at: u64,
    pub bytes: usize,
}

/// A loaded kernel.
pub struct Function {
    handle: Handle,
    arguments: Vec<(Argument, usize)>,
}

/// The grid and threads of a launch, and the contents of its buffers by buffer index.
pub struct Launch {
    pub grid: [u32; 3],
    pub threads: u32,
    pub shared: u32,
    pub buffers: Vec<Vec<u8>>,
}

/// A launch that is ready to run, with the bytes of its arguments.
pub struct Prepared {
    handle: Handle,
    grid: [u32; 3],
    threads: u32,
    shared: u32,
    values: Vec<Vec<u8>>,
}

fn check(code: Code, what: &str) -> Result<()> {
    ensure!(code == 0, "{what} failed with code {code} of CUDA's driver");
    Ok(())
}

/// Calls a function of the driver. The caller must write the argument types that cuda.h declares.
macro_rules! call {
    ($driver:expr, $name:literal, $($argument:expr => $kind:ty),*) => {{
        // SAFETY: the types are the types that cuda.h declares, and the pointers are valid during
        // the call.
        let code = unsafe {
            let function = $driver
                .get::<unsafe extern "C" fn($($kind),*) -> Code>($name.as_bytes())
                .context($name)?;
            function($($argument),*)
        };
        check(code, $name)
    }};
}

impl Driver {
    pub fn open() -> Result<Self> {
        // SAFETY: the initializers of CUDA's driver library may run at any time.
        let library =
            unsafe { Library::new("libcuda.so.1") }.context("there is no NVIDIA driver")?;
        call!(library, "cuInit", 0 => c_uint)?;
        let mut device: c_int = 0;
        call!(library, "cuDeviceGet", &raw mut device => *mut c_int, 0 => c_int)?;
        let attribute = |which: c_int| -> Result<u32> {
            let mut value: c_int = 0;
            call!(library, "cuDeviceGetAttribute",
                &raw mut value => *mut c_int, which => c_int, device => c_int)?;
            Ok(value as u32)
        };
        // Attributes 75 and 76 are the major and minor version of the GPU's architecture.
        let architecture = 10 * attribute(75)? + attribute(76)?;
        let cores = attribute(16)?;
        let mut stream: Handle = ptr::null_mut();
        let mut name = [0u8; 128];
        call!(library, "cuDeviceGetName",
            name.as_mut_ptr().cast() => *mut c_char, 127 => c_int, device => c_int)?;
        let mut context: Handle = ptr::null_mut();
        call!(library, "cuDevicePrimaryCtxRetain",
            &raw mut context => *mut Handle, device => c_int)?;
        call!(library, "cuCtxSetCurrent", context => Handle)?;
        call!(library, "cuStreamCreate", &raw mut stream => *mut Handle, 0 => c_uint)?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(0);
        let name = String::from_utf8_lossy(&name[..end]).into_owned();
        Ok(Self { library, architecture, cores, name, stream })
    }

    /// Allocates memory and fills it with repeated copies of `contents`. If `contents` is empty,
    /// the memory is not initialized.
    pub fn filled(&self, bytes: usize, contents: &[u8]) -> Result<Memory> {
        let mut at = 0u64;
        call!(self.library, "cuMemAlloc_v2", &raw mut at => *mut u64, bytes => usize)?;
        let first = contents.len().min(bytes);
        if first > 0 {
            call!(self.library, "cuMemcpyHtoD_v2",
                at => u64, contents.as_ptr().cast() => *const c_void, first => usize)?;
        }
        let mut done = first;
        while done > 0 && done < bytes {
            let more = done.min(bytes - done);
            self.copy(Memory { at: at + done as u64, bytes: more }, Memory { at, bytes: more })?;
            done += more;
        }
        Ok(Memory { at, bytes })
    }

    pub fn free(&self, memory: Memory) -> Result<()> {
        call!(self.library, "cuMemFree_v2", memory.at => u64)
    }

    pub fn copy(&self, to: Memory, from: Memory) -> Result<()> {
        call!(self.library, "cuMemcpyDtoDAsync_v2",
            to.at => u64, from.at => u64, from.bytes => usize, ptr::null_mut() => Handle)
    }

    pub fn read(&self, from: Memory) -> Result<Vec<u8>> {
        let mut bytes = vec![0u8; from.bytes];
        call!(self.library, "cuMemcpyDtoH_v2",
            bytes.as_mut_ptr().cast() => *mut c_void, from.at => u64, from.bytes => usize)?;
        Ok(bytes)
    }

    pub fn load(&self, cubin: &Cubin) -> Result<Function> {
        let (mut module, mut handle): (Handle, Handle) = (ptr::null_mut(), ptr::null_mut());
        call!(self.library, "cuModuleLoadData",
            &raw mut module => *mut Handle, cubin.code.as_ptr().cast() => *const c_void)?;
        let symbol = CString::new(cubin.symbol.as_str())?;
        call!(self.library, "cuModuleGetFunction",
            &raw mut handle => *mut Handle, module => Handle, symbol.as_ptr() => *const c_char)?;
        let mut arguments = Vec::new();
        for (i, argument) in cubin.arguments.iter().enumerate() {
            let (mut offset, mut bytes) = (0usize, 0usize);
            call!(self.library, "cuFuncGetParamInfo",
                handle => Handle, i => usize,
                &raw mut offset => *mut usize, &raw mut bytes => *mut usize)?;
            arguments.push((*argument, bytes));
        }
        Ok(Function { handle, arguments })
    }

    /// Allows launches of a kernel to use this many bytes of shared memory.
    pub fn allow(&self, function: &Function, bytes: u32) -> Result<()> {
        const MOST_DYNAMIC_SHARED_BYTES: c_int = 8;
        call!(self.library, "cuFuncSetAttribute",
            function.handle => Handle, MOST_DYNAMIC_SHARED_BYTES => c_int, bytes as c_int => c_int)
    }

    /// Prepares a launch that can run many times.
    pub fn prepared(function: &Function, launch: &Launch) -> Prepared {
        let value = |(argument, bytes): &(Argument, usize)| {
            let mut value = match argument {
                Argument::Buffer(index) => launch.buffers[*index as usize].clone(),
                Argument::ThreadgroupMemory(_) => vec![0; 4],
                Argument::Grid => launch.grid.map(u32::to_le_bytes).concat(),
            };
            value.resize(value.len().max(*bytes), 0);
            value
        };
        let values = function.arguments.iter().map(value).collect();
        let Launch { grid, threads, shared, .. } = *launch;
        Prepared { handle: function.handle, grid, threads, shared, values }
    }

    pub fn run(&self, launch: &mut Prepared) -> Result<()> {
        let mut pointers: Vec<*mut c_void> =
            launch.values.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
        call!(self.library, "cuLaunchKernel",
            launch.handle => Handle,
            launch.grid[0] => c_uint, launch.grid[1] => c_uint, launch.grid[2] => c_uint,
            launch.threads => c_uint, 1 => c_uint, 1 => c_uint,
            launch.shared => c_uint, self.stream => Handle,
            pointers.as_mut_ptr() => *mut *mut c_void, ptr::null_mut() => *mut *mut c_void)
    }

    /// Captures `calls` runs in a CUDA graph. Returns the time of a run in microseconds: the median
    /// time of the graph, divided by `calls`.
    pub fn time_graph(
        &self,
        calls: usize,
        run: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<f64> {
        let (mut graph, mut made): (Handle, Handle) = (ptr::null_mut(), ptr::null_mut());
        call!(self.library, "cuStreamBeginCapture_v2", self.stream => Handle, 0 => c_int)?;
        (0..calls).try_for_each(&mut *run)?;
        call!(self.library, "cuStreamEndCapture",
            self.stream => Handle, &raw mut graph => *mut Handle)?;
        call!(self.library, "cuGraphInstantiateWithFlags",
            &raw mut made => *mut Handle, graph => Handle, 0 => u64)?;
        let time = self.time(
            1,
            &mut |_| call!(self.library, "cuGraphLaunch", made => Handle, self.stream => Handle),
        )?;
        call!(self.library, "cuGraphExecDestroy", made => Handle)?;
        call!(self.library, "cuGraphDestroy", graph => Handle)?;
        Ok(time / calls as f64)
    }

    /// Returns the median time of a run in microseconds. Each measurement covers `calls` runs.
    pub fn time(&self, calls: usize, run: &mut dyn FnMut(usize) -> Result<()>) -> Result<f64> {
        const ROUNDS: usize = 9;
        let mut events: [Handle; 2] = [ptr::null_mut(); 2];
        for event in &mut events {
            call!(self.library, "cuEventCreate", &raw mut *event => *mut Handle, 0 => c_uint)?;
        }
        let record = |event: Handle| call!(self.library, "cuEventRecord", event => Handle, self.stream => Handle);
        let mut times = Vec::new();
        for round in 0..=ROUNDS {
            record(events[0])?;
            (0..calls).try_for_each(&mut *run)?;
            record(events[1])?;
            call!(self.library, "cuEventSynchronize", events[1] => Handle)?;
            let mut milliseconds = 0f32;
            call!(self.library, "cuEventElapsedTime",
                &raw mut milliseconds => *mut f32, events[0] => Handle, events[1] => Handle)?;
            if round > 0 {
                times.push(1e3 * f64::from(milliseconds) / calls as f64); // the first warms up
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[ROUNDS / 2])
    }
}
