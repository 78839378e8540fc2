//! One dispatch of a Metal kernel, as a custom primitive describes it.

use bytemuck::{NoUninit, bytes_of};

use super::{MetalLibrary, Spec};
use crate::custom::bridge::ffi;
use crate::error::{Error, Result};

/// The number of indices that a Metal kernel has for buffers. It is also the number of indices for
/// threadgroup memory.
const BUFFERS: u32 = 31;
/// The number of indices for function constants.
const CONSTANTS: u32 = 65536;
/// The most bytes that Metal binds by value.
const PARAMETER_BYTES: usize = 4096;
/// The bytes of threadgroup memory that every Apple GPU has.
const THREADGROUP_BYTES: u32 = 32 << 10;

/// The evaluation for which [`CustomPrimitive::launch`](super::CustomPrimitive::launch) returns
/// kernels.
#[derive(Clone, Debug)]
pub struct Call {
    /// The shapes and types of the evaluated inputs.
    pub inputs: Vec<Spec>,
    /// The shapes and types of the outputs, which are row-contiguous.
    pub outputs: Vec<Spec>,
    /// For each input, the distance in memory, in elements, between neighbors along each dimension.
    pub strides: Vec<Vec<i64>>,
    /// The most threads that a threadgroup may have.
    pub max_threads: u32,
}

/// The value of a function constant, by its type in Metal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Constant {
    /// `bool`
    Bool(bool),
    /// `char`
    I8(i8),
    /// `uchar`
    U8(u8),
    /// `short`
    I16(i16),
    /// `ushort`
    U16(u16),
    /// `int`
    I32(i32),
    /// `uint`
    U32(u32),
    /// `float`
    F32(f32),
}

impl Constant {
    /// The number of the type in `MTL::DataType`, and the bits of the value.
    fn encoded(self) -> (u32, u64) {
        match self {
            Self::Bool(v) => (53, v.into()),
            Self::I8(v) => (45, u64::from(v as u8)),
            Self::U8(v) => (49, v.into()),
            Self::I16(v) => (37, u64::from(v as u16)),
            Self::U16(v) => (41, v.into()),
            Self::I32(v) => (29, u64::from(v as u32)),
            Self::U32(v) => (33, v.into()),
            Self::F32(v) => (3, v.to_bits().into()),
        }
    }
}

macro_rules! constant_from {
    ($($type:ty => $variant:ident,)*) => {$(
        impl From<$type> for Constant {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        }
    )*};
}

constant_from! {
    bool => Bool, i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, f32 => F32,
}

#[derive(Clone, Debug)]
enum Buffer {
    Input(usize),
    Output(usize),
    Written(usize),
    Parameters(Vec<u8>),
}

/// A kernel and its arguments, grid and threadgroups.
///
/// Each `index` is an index of the kernel's parameters, such as `n` of `[[buffer(n)]]`. A Mac does
/// not detect a buffer that is bound to the wrong index; tests in the simulator do.
///
/// ```
/// use mlx_primitives::custom::{Launch, MetalLibrary};
///
/// let library = MetalLibrary::from_source("kernel void add_one(/* … */) {}")?;
/// let launch = Launch::new(&library, "add_one")
///     .input(0, 0) // input 0 as [[buffer(0)]]
///     .output(1, 0)
///     .parameters(2, &1024u32)
///     .threads([1024, 1, 1], [256, 1, 1]);
/// # let _ = launch;
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Launch {
    library: MetalLibrary,
    kernel: String,
    constants: Vec<(u32, Constant)>,
    buffers: Vec<(u32, Buffer)>,
    threadgroup: Vec<(u32, u32)>,
    grid: [u32; 3],
    group: [u32; 3],
    grid_is_threads: bool,
}

impl Launch {
    /// A launch of the named kernel with one thread and without arguments.
    pub fn new(library: &MetalLibrary, kernel: impl Into<String>) -> Self {
        Self {
            library: library.clone(),
            kernel: kernel.into(),
            constants: Vec::new(),
            buffers: Vec::new(),
            threadgroup: Vec::new(),
            grid: [1; 3],
            group: [1; 3],
            grid_is_threads: false,
        }
    }

    /// Binds input number `input` to `[[buffer(index)]]`.
    pub fn input(self, index: u32, input: usize) -> Self {
        self.buffer(index, Buffer::Input(input))
    }

    /// Binds output number `output` to `[[buffer(index)]]`. The kernel writes all of it.
    pub fn output(self, index: u32, output: usize) -> Self {
        self.buffer(index, Buffer::Output(output))
    }

    /// Binds output number `output` to `[[buffer(index)]]` for reading only. An earlier launch of
    /// the same [`Call`] wrote it.
    pub fn written(self, index: u32, output: usize) -> Self {
        self.buffer(index, Buffer::Written(output))
    }

    /// Binds up to 4096 bytes by value to `[[buffer(index)]]`: a number or a `#[repr(C)]` struct.
    /// The kernel declares the parameter as `constant T&`, where `T` has the same layout.
    pub fn parameters<T: NoUninit>(self, index: u32, value: &T) -> Self {
        self.buffer(index, Buffer::Parameters(bytes_of(value).to_vec()))
    }

    fn buffer(mut self, index: u32, buffer: Buffer) -> Self {
        self.buffers.push((index, buffer));
        self
    }

    /// Sets `[[function_constant(index)]]`. Each set of values has its own pipeline.
    pub fn constant(mut self, index: u32, value: impl Into<Constant>) -> Self {
        self.constants.push((index, value.into()));
        self
    }

    /// Sets the size of `[[threadgroup(index)]]` in bytes, a multiple of 16.
    pub fn threadgroup_memory(mut self, index: u32, bytes: u32) -> Self {
        self.threadgroup.push((index, bytes));
        self
    }

    /// Sets the number of threadgroups, and the number of threads of a threadgroup, in each
    /// dimension.
    pub fn groups(self, groups: [u32; 3], threads_per_group: [u32; 3]) -> Self {
        Self { grid: groups, group: threads_per_group, grid_is_threads: false, ..self }
    }

    /// Sets the total number of threads, and the number of threads of a threadgroup, in each
    /// dimension. Threadgroups at the far edges may be smaller.
    pub fn threads(self, threads: [u32; 3], threads_per_group: [u32; 3]) -> Self {
        Self { grid: threads, group: threads_per_group, grid_is_threads: true, ..self }
    }

    /// Checks the launch and converts it for C++. `written` tells for each output whether an
    /// earlier launch writes it. The function marks the outputs that this launch writes.
    pub(super) fn checked(
        mut self,
        op: &str,
        call: &Call,
        written: &mut [bool],
    ) -> Result<ffi::CustomLaunch> {
        let refuse = |text: std::fmt::Arguments<'_>| {
            Err(Error::argument(op, format_args!("a launch of '{}' with {text}", self.kernel)))
        };
        let known = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if self.kernel.is_empty() || !self.kernel.chars().all(known) {
            return refuse(format_args!("a name of letters, digits and _"));
        }
        let bad = [
            ("buffer", bad_index(&self.buffers, BUFFERS)),
            ("threadgroup memory", bad_index(&self.threadgroup, BUFFERS)),
            ("function constant", bad_index(&self.constants, CONSTANTS)),
        ];
        if let Some((what, index)) = bad.into_iter().find_map(|(what, bad)| Some((what, bad?))) {
            return refuse(format_args!("one {what} an index, got index {index} wrong or twice"));
        }
        for (index, buffer) in &self.buffers {
            let (what, number, count) = match buffer {
                Buffer::Input(input) => ("inputs", *input, call.inputs.len()),
                Buffer::Output(output) | Buffer::Written(output) => {
                    ("outputs", *output, call.outputs.len())
                }
                Buffer::Parameters(bytes) if (1..=PARAMETER_BYTES).contains(&bytes.len()) => {
                    continue;
                }
                Buffer::Parameters(bytes) => {
                    let got = bytes.len();
                    return refuse(format_args!(
                        "1 to 4096 parameter bytes, got {got} at index {index}"
                    ));
                }
            };
            if number >= count {
                return refuse(format_args!(
                    "one of {count} {what}, got number {number} at index {index}"
                ));
            }
            if matches!(buffer, Buffer::Written(_)) && !written[number] {
                return refuse(format_args!(
                    "an output that an earlier launch wrote at index {index}, got number {number}"
                ));
            }
        }
        for (_, buffer) in &self.buffers {
            if let Buffer::Output(output) = buffer {
                written[*output] = true;
            }
        }
        let threads = self.group.iter().fold(1u32, |product, &n| product.saturating_mul(n));
        if self.grid.contains(&0) || threads == 0 || threads > 1024 {
            return refuse(format_args!(
                "a grid and groups of 1 to 1024 threads, got {:?} and {:?}",
                self.grid, self.group
            ));
        }
        let memory =
            self.threadgroup.iter().fold(0u32, |sum, (_, bytes)| sum.saturating_add(*bytes));
        if memory > THREADGROUP_BYTES || self.threadgroup.iter().any(|(_, bytes)| bytes % 16 != 0) {
            return refuse(format_args!(
                "threadgroup memory in multiples of 16 bytes, 32768 in all, got {:?}",
                self.threadgroup
            ));
        }
        self.constants.sort_by_key(|(index, _)| *index);
        Ok(self.encoded())
    }

    fn encoded(self) -> ffi::CustomLaunch {
        let mut pipeline = self.kernel.clone();
        let constants = self.constants.iter().map(|&(index, value)| {
            let (data_type, bits) = value.encoded();
            pipeline += &format!(";{index}={data_type}:{bits:x}");
            ffi::CustomConstant { index, data_type, bits }
        });
        let constants = constants.collect();
        let bindings = self.buffers.into_iter().map(|(index, buffer)| {
            let (buffer, array, bytes) = match buffer {
                Buffer::Input(input) => (ffi::CustomBuffer::Input, input as u32, Vec::new()),
                Buffer::Output(output) => (ffi::CustomBuffer::Output, output as u32, Vec::new()),
                Buffer::Written(output) => (ffi::CustomBuffer::Written, output as u32, Vec::new()),
                Buffer::Parameters(bytes) => (ffi::CustomBuffer::Parameters, 0, bytes),
            };
            ffi::CustomBinding { buffer, index, array, bytes }
        });
        let memory = self.threadgroup.iter();
        ffi::CustomLaunch {
            library: Box::new(self.library.handle()),
            kernel: self.kernel,
            pipeline,
            constants,
            bindings: bindings.collect(),
            threadgroup: memory.map(|&(index, bytes)| ffi::CustomMemory { index, bytes }).collect(),
            grid: self.grid,
            group: self.group,
            grid_is_threads: self.grid_is_threads,
        }
    }
}

/// The first index that occurs a second time or is not below the limit.
fn bad_index<T>(indexed: &[(u32, T)], limit: u32) -> Option<u32> {
    let bad = |(at, (index, _)): (usize, &(u32, T))| {
        let twice = indexed[..at].iter().any(|(other, _)| other == index);
        (*index >= limit || twice).then_some(*index)
    };
    indexed.iter().enumerate().find_map(bad)
}
