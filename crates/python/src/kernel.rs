//! Primitives that a Python program writes as kernels in the Metal language.

use std::ffi::{CStr, c_char};
use std::slice;

use mlx_primitives::custom::{self, Call, CustomPrimitive, Launch, Layout, MetalLibrary, Spec};
use mlx_primitives::custom::{View, ViewMut};
use mlx_primitives::simulator::{self, Schedule};
use mlx_primitives::{Array, Error, Result, stack};

use crate::call::{built, finish};
use crate::objects::{Object, Place, layout};
use crate::refused::Refused;

/// The maximum number of dimensions of an input whose shape or strides a kernel reads, as in
/// `_metal.py`.
const DIMENSIONS: usize = 8;

/// Properties of an input that a kernel reads in addition to the elements, one bit each.
const SHAPE: u8 = 1;
const STRIDES: u8 = 2;
const NDIM: u8 = 4;

#[derive(Clone)]
struct Kernel {
    name: String,
    library: MetalLibrary,
    /// For each input, the bits of the properties that the kernel reads.
    read: Vec<u8>,
    layout: Layout,
    inputs: Vec<Spec>,
    outputs: Vec<Spec>,
    grid: [u32; 3],
    group: [u32; 3],
}

impl Kernel {
    fn refused(&self, why: impl std::fmt::Display) -> Error {
        Error::argument(&self.name, why)
    }
}

/// The values `from`, padded with zeros.
fn padded<T: Copy + Default>(from: &[T]) -> [T; DIMENSIONS] {
    let mut all = [T::default(); DIMENSIONS];
    all.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    all
}

impl CustomPrimitive for Kernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        match inputs == self.inputs {
            true => Ok(self.outputs.clone()),
            false => Err(self.refused("the shapes and types that the kernel was called with")),
        }
    }

    fn layout(&self, _: usize) -> Layout {
        self.layout
    }

    fn eval_cpu(&self, _: &[View<'_>], _: &mut [ViewMut<'_>]) -> Result<()> {
        Err(self.refused("a GPU or the simulator for the kernel"))
    }

    fn launch(&self, call: &Call) -> Result<Vec<Launch>> {
        let mut launch = Launch::new(&self.library, &*self.name);
        let mut index = 0;
        let mut next = || {
            index += 1;
            index - 1
        };
        for (input, &read) in self.read.iter().enumerate() {
            launch = launch.input(next(), input);
            let shape = &call.inputs[input].shape;
            if read != 0 && shape.len() > DIMENSIONS {
                let why =
                    format!("at most {DIMENSIONS} dimensions of an input whose shape is read");
                return Err(self.refused(why));
            }
            if read & SHAPE != 0 {
                launch = launch.parameters(next(), &padded(shape));
            }
            if read & STRIDES != 0 {
                launch = launch.parameters(next(), &padded(&call.strides[input]));
            }
            if read & NDIM != 0 {
                launch = launch.parameters(next(), &(shape.len() as i32));
            }
        }
        for output in 0..self.outputs.len() {
            launch = launch.output(next(), output);
        }
        let threads: u32 = self.group.iter().product();
        if threads > call.max_threads {
            let most = call.max_threads;
            return Err(self.refused(format!("at most {most} threads a group, got {threads}")));
        }
        Ok(vec![launch.threads(self.grid, self.group)])
    }

    /// Launches the kernel once for each entry of the mapped axis.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Result<(Vec<Array>, Vec<usize>)> {
        let mapped = || inputs.iter().zip(axes).filter_map(|(x, axis)| Some((x, (*axis)?)));
        let count = mapped().next().map_or(0, |(x, axis)| x.shape()[axis]);
        let mut outputs = vec![Vec::new(); self.outputs.len()];
        for entry in 0..count {
            let of = |(x, axis): (&Array, &Option<usize>)| match *axis {
                Some(axis) => x.slice_axis(axis as i32, entry..entry + 1)?.squeeze(axis as i32),
                None => Ok(x.clone()),
            };
            let entries = inputs.iter().zip(axes).map(of).collect::<Result<Vec<_>>>()?;
            let results = custom::apply(self.clone(), &entries.iter().collect::<Vec<_>>())?;
            outputs.iter_mut().zip(results).for_each(|(all, one)| all.push(one));
        }
        let outputs = outputs.iter().map(|all| stack(&all.iter().collect::<Vec<_>>(), 0));
        Ok((outputs.collect::<Result<_>>()?, vec![0; self.outputs.len()]))
    }
}

/// A kernel call as Python describes it: the function `name` of the Metal source `source`.
#[repr(C)]
pub struct Request {
    name: *const c_char,
    source: *const c_char,
    input_count: usize,
    /// `mx.array` objects.
    inputs: *const Object,
    /// For each input, the bits of the properties that the kernel reads.
    read: *const u8,
    output_count: usize,
    /// `mx.array` objects that have the shapes and types of the outputs.
    like: *const Object,
    /// `mx.array` objects that become the outputs.
    outputs: *const Place,
    /// The number of threads of the grid along three axes, then the number of threads of a
    /// threadgroup along three axes.
    threads: [u32; 6],
    contiguous: bool,
}

/// Builds a call of a kernel.
///
/// # Safety
///
/// `request` and the data that it points to do not change during the call. Strings end with a zero
/// byte. Lists have the number of entries that their counts say. Their objects are Python objects.
/// No other thread uses the outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx_primitives_kernel(request: *const Request) -> *const c_char {
    finish(|| {
        // SAFETY: the caller promises a request whose lists have these lengths.
        let (request, objects, read, like, places) = unsafe {
            let request = &*request;
            let list = |list, count| slice::from_raw_parts::<Object>(list, count);
            (
                request,
                list(request.inputs, request.input_count),
                slice::from_raw_parts(request.read, request.input_count),
                list(request.like, request.output_count),
                slice::from_raw_parts(request.outputs, request.output_count),
            )
        };
        // SAFETY: the caller promises that the strings end with a zero byte.
        let [name, source] = [request.name, request.source]
            .map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        let array = |object: &Object| {
            // SAFETY: the caller promises that these are Python objects.
            unsafe { layout()?.array(*object, &name) }
        };
        let inputs = objects.iter().map(array).collect::<Result<Vec<_>, Refused>>()?;
        let like = like.iter().map(array).collect::<Result<Vec<_>, Refused>>()?;
        let [x, y, z, group_x, group_y, group_z] = request.threads;
        let kernel = Kernel {
            library: MetalLibrary::from_source(source)?,
            read: read.to_vec(),
            layout: if request.contiguous { Layout::RowContiguous } else { Layout::Any },
            inputs: inputs.iter().map(Spec::of).collect(),
            outputs: like.iter().map(Spec::of).collect(),
            grid: [x, y, z],
            group: [group_x, group_y, group_z],
            name: name.clone(),
        };
        let inputs: Vec<&Array> = inputs.iter().collect();
        let results = built(&name, || custom::apply(kernel, &inputs))?;
        for (array, &place) in results.iter().zip(places) {
            // SAFETY: the caller promises that these are Python objects that only this thread uses.
            unsafe { layout()?.assign(place, array) }?;
        }
        Ok(())
    })
}

/// Runs a function of Python whose kernels run in the simulator. `order` is 0 to run the threads
/// from first to last, 1 for the reverse, and any other number is the seed of a random order.
#[unsafe(no_mangle)]
pub extern "C" fn mlx_primitives_simulate(order: u64, body: extern "C" fn()) -> *const c_char {
    finish(|| {
        let schedule = match order {
            0 => Schedule::Forward,
            1 => Schedule::Reversed,
            seed => Schedule::Shuffled(seed),
        };
        Ok(simulator::with_metal(schedule, || body())?)
    })
}

/// Returns 1 if kernels that this thread evaluates run in the simulator, 0 if they do not, and -1
/// if this library has no simulator.
#[unsafe(no_mangle)]
pub extern "C" fn mlx_primitives_simulates() -> i32 {
    if simulator::is_available() { i32::from(simulator::is_on()) } else { -1 }
}
