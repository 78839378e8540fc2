//! Derivatives, vectorisation and compilation of Rust closures over arrays.
//!
//! A function is given as a closure, and its arguments as one array, a tuple of arrays or a list of them; the
//! closure receives them in the same form ([`Arguments`]). What it captures is constant.
//!
//! ```
//! use mlx_primitives::{Array, ops, transforms};
//!
//! let (x, weight) = (Array::from_slice(&[1.0f32, 2.0], 2)?, Array::ones::<f32>(2)?);
//! let loss = |w: Array| ops::rms_norm(&x, Some(&w), 1e-5)?.square()?.mean(..);
//! let (value, gradient) = transforms::value_and_grad(loss, &weight)?;
//! assert_eq!((value.ndim(), gradient.shape()), (0, &[2][..]));
//! # Ok::<(), mlx_primitives::Error>(())
//! ```
//!
//! An `Err` of a closure comes back as the same `Err` of the transform, and a panic as [`Error::Panic`].

mod arguments;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use cxx::{CxxVector, UniquePtr};

pub use arguments::{Arguments, MapAxes, Outputs};

use crate::array::{Array, List, from_list, to_list};
use crate::error::{Error, Result};
use crate::ffi::bridge as ffi;

type Function<'a> = dyn FnMut(Vec<Array>) -> Result<Vec<Array>> + 'a;

/// A Rust closure as C++ sees it.
pub(crate) struct Closure {
    function: RefCell<Box<Function<'static>>>,
    failure: Failure,
}

/// The last error of a closure. C++ carries the text of an error alone.
#[derive(Clone, Default)]
struct Failure(Rc<RefCell<Option<Error>>>);

impl Failure {
    /// The closure's error if that is what `exception` says, else one of MLX.
    fn behind(&self, exception: cxx::Exception) -> Error {
        let error = self.0.take().filter(|error| error.to_string() == exception.what());
        error.unwrap_or_else(|| exception.into())
    }
}

impl Closure {
    pub(crate) fn call(
        &self,
        inputs: &CxxVector<ffi::MlxArray>,
    ) -> std::result::Result<UniquePtr<CxxVector<ffi::MlxArray>>, String> {
        self.run(inputs).map_err(|error| {
            let text = error.to_string();
            self.failure.0.replace(Some(error));
            text
        })
    }

    fn run(&self, inputs: &CxxVector<ffi::MlxArray>) -> Result<List> {
        let inputs = from_list(inputs);
        let mut function = self.function.try_borrow_mut().map_err(|_| {
            Error::argument("transform", "a closure that does not call its own transform")
        })?;
        // Unwinding into C++ would end the process.
        match catch_unwind(AssertUnwindSafe(|| function(inputs))) {
            Ok(outputs) => Ok(to_list(&outputs?)),
            Err(payload) => Err(Error::Panic {
                op: "transform".to_owned(),
                message: format!("the closure panicked: {}", panic_message(&*payload)),
            }),
        }
    }
}

pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}

/// Lends a closure over the arguments `A` to C++ for the length of one call.
fn with_closure<A: Arguments, O: Outputs, R>(
    mut f: impl FnMut(A::Arrays) -> Result<O>,
    run: impl FnOnce(&Closure) -> std::result::Result<R, cxx::Exception>,
) -> Result<R> {
    let boxed: Box<Function<'_>> =
        Box::new(move |arrays| Ok(f(Outputs::from_vec(arrays)?)?.into_vec()));
    // SAFETY: only the lifetime changes. The closure is dropped at the end of this function, and
    // the C++ side keeps no copy of the function object beyond the call (cpp/bridge/transforms.cpp).
    let boxed = unsafe { std::mem::transmute::<Box<Function<'_>>, Box<Function<'static>>>(boxed) };
    let closure = Closure { function: RefCell::new(boxed), failure: Failure::default() };
    run(&closure).map_err(|exception| closure.failure.behind(exception))
}

fn pair(lists: ffi::ListPair) -> (Vec<Array>, Vec<Array>) {
    (from_list(&lists.first), from_list(&lists.second))
}

/// The outputs of `f` at `primals`, and the cotangents pulled back to each primal.
///
/// There is a cotangent for each output, of its shape and type.
///
/// ```
/// use mlx_primitives::{Array, transforms};
///
/// let x = Array::scalar(3.0f32)?;
/// let one = Array::scalar(1.0f32)?;
/// let (y, dx) = transforms::vjp(|x| x.square(), &x, &one)?;
/// assert_eq!((y.item::<f32>()?, dx.item::<f32>()?), (9.0, 6.0));
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
///
/// # Errors
///
/// The closure's error; an error for cotangents of another number, shape or type, or if `f` has no
/// derivative there.
pub fn vjp<A: Arguments, O: Outputs>(
    f: impl FnMut(A::Arrays) -> Result<O>,
    primals: A,
    cotangents: impl Arguments,
) -> Result<(O, A::Arrays)> {
    let (primals, cotangents) = (to_list(primals.all()), to_list(cotangents.all()));
    let lists = with_closure::<A, O, _>(f, |f| ffi::vjp(f, &primals, &cotangents))?;
    let (outputs, gradients) = pair(lists);
    // MLX refuses too few and passes over the rest.
    if cotangents.len() > outputs.len() {
        return Err(Error::argument(
            "vjp",
            format_args!("{} cotangents, got {}", outputs.len(), cotangents.len()),
        ));
    }
    Ok((O::from_vec(outputs)?, Outputs::from_vec(gradients)?))
}

/// The outputs of `f` at `primals`, and their derivatives along `tangents`.
///
/// There is a tangent for each primal, of its shape and type.
///
/// ```
/// use mlx_primitives::{Array, transforms};
///
/// let x = Array::scalar(3.0f32)?;
/// let t = Array::scalar(2.0f32)?;
/// let (_, dy) = transforms::jvp(|x| x.square(), &x, &t)?;
/// assert_eq!(dy.item::<f32>()?, 12.0);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
///
/// # Errors
///
/// The closure's error; an error for tangents of another number, shape or type, or if `f` has no
/// derivative there.
pub fn jvp<A: Arguments, O: Outputs>(
    f: impl FnMut(A::Arrays) -> Result<O>,
    primals: A,
    tangents: impl Arguments,
) -> Result<(O, O)> {
    let (primals, tangents) = (to_list(primals.all()), to_list(tangents.all()));
    let (outputs, derivatives) =
        pair(with_closure::<A, O, _>(f, |f| ffi::jvp(f, &primals, &tangents))?);
    Ok((O::from_vec(outputs)?, O::from_vec(derivatives)?))
}

/// The value of a function to a scalar, and its gradient in each of the arguments.
///
/// The closure captures what the gradient is not wanted in.
///
/// ```
/// use mlx_primitives::{Array, transforms};
///
/// let (x, w) = (Array::full(2, 3.0f32)?, Array::full(2, 5.0f32)?);
/// let (value, (dx, dw)) =
///     transforms::value_and_grad(|(x, w)| (x * w)?.sum(..), (&x, &w))?;
/// assert_eq!(value.item::<f32>()?, 30.0);
/// assert_eq!((dx.to_vec::<f32>()?, dw.to_vec::<f32>()?), (vec![5.0; 2], vec![3.0; 2]));
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
///
/// # Errors
///
/// The closure's error; an error if the result is not a scalar or there is no argument.
pub fn value_and_grad<A: Arguments>(
    f: impl FnMut(A::Arrays) -> Result<Array>,
    inputs: A,
) -> Result<(Array, A::Arrays)> {
    let inputs = to_list(inputs.all());
    let argnums: Vec<i32> = (0..inputs.len() as i32).collect();
    let lists = with_closure::<A, Array, _>(f, |f| ffi::value_and_grad(f, &argnums, &inputs))?;
    let (values, gradients) = pair(lists);
    Ok((Array::from_vec(values)?, Outputs::from_vec(gradients)?))
}

/// The gradient of a function to a scalar in each of the arguments, as [`value_and_grad`] gives it.
///
/// ```
/// use mlx_primitives::{Array, ops, transforms};
///
/// let x = Array::from_slice(&[1.0f32, 2.0], 2)?;
/// let weight = Array::ones::<f32>(2)?;
/// let gradient = transforms::grad(|w| ops::rms_norm(&x, Some(&w), 1e-5)?.sum(..), &weight)?;
/// assert_eq!(gradient.shape(), [2]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
///
/// # Errors
///
/// As [`value_and_grad`].
pub fn grad<A: Arguments>(
    f: impl FnMut(A::Arrays) -> Result<Array>,
    inputs: A,
) -> Result<A::Arrays> {
    Ok(value_and_grad(f, inputs)?.1)
}

/// Maps `f` over an axis of each input and stacks each output along its axis in `out_axes`.
///
/// `in_axes` and `out_axes` are an axis for all arrays, or a list of one for each. An input whose axis is
/// `None` is the same in all calls.
///
/// ```
/// use mlx_primitives::{Array, transforms};
///
/// let x = Array::ones::<f32>((4, 3))?;
/// let sums = transforms::vmap(|x| x.sum(..), &x, 0, 0)?;
/// assert_eq!(sums.to_vec::<f32>()?, [3.0; 4]);
/// let shift = Array::full(3, 2.0f32)?;
/// let moved = transforms::vmap(|(x, shift)| x + shift, (&x, &shift), [Some(0), None], 1)?;
/// assert_eq!(moved.shape(), [3, 4]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
///
/// # Errors
///
/// The closure's error; an error for axes of another number or outside the rank, or if no input is mapped.
pub fn vmap<A: Arguments, O: Outputs>(
    f: impl FnMut(A::Arrays) -> Result<O>,
    inputs: A,
    in_axes: impl MapAxes,
    out_axes: impl MapAxes,
) -> Result<O> {
    let arrays = inputs.all();
    let in_axes = in_axes.of(arrays.len());
    if in_axes.len() != arrays.len() || in_axes.iter().all(Option::is_none) {
        return Err(Error::argument("vmap", "one axis an input, at least one of them mapped"));
    }
    let in_axes = arrays
        .iter()
        .zip(in_axes)
        .map(|(input, axis)| axis.map_or(Ok(-1), |axis| within("vmap", axis, input.ndim())))
        .collect::<Result<Vec<_>>>()?;
    let inputs = to_list(arrays);
    let mapped = with_closure::<A, O, _>(f, |f| ffi::vmap(f, &inputs, &in_axes, &[]))?;
    let outputs = from_list(&mapped);
    let out_axes = out_axes.of(outputs.len());
    if out_axes.len() != outputs.len() {
        return Err(Error::argument(
            "vmap",
            format_args!("one axis for each of {} outputs, got {}", outputs.len(), out_axes.len()),
        ));
    }
    let stacked = outputs.iter().zip(out_axes).map(|(output, axis)| {
        let axis =
            axis.ok_or_else(|| Error::argument("vmap", "an axis of each output, got None"))?;
        first_axis_to(output, axis)
    });
    O::from_vec(stacked.collect::<Result<_>>()?)
}

/// An axis that may be negative, as the index of a dimension.
fn within(op: &str, axis: i32, rank: usize) -> Result<i32> {
    let rank = rank as i32;
    match axis {
        0.. if axis < rank => Ok(axis),
        ..0 if axis >= -rank => Ok(axis + rank),
        _ => Err(Error::out_of_range(op, format_args!("an axis within rank {rank}"), axis)),
    }
}

fn first_axis_to(array: &Array, axis: i32) -> Result<Array> {
    let axis = within("vmap", axis, array.ndim())?;
    if axis == 0 {
        return Ok(array.clone());
    }
    let mut order: Vec<i32> = (1..array.ndim() as i32).collect();
    order.insert(axis as usize, 0);
    array.transpose(&order)
}

/// A function whose graph MLX traced, simplified and fused; see [`compile`].
#[must_use = "a compiled function runs when it is called"]
pub struct Compiled<O = Vec<Array>> {
    function: UniquePtr<ffi::Compiled>,
    failure: Failure,
    running: Cell<bool>,
    outputs: PhantomData<fn() -> O>,
}

impl<O: Outputs> Compiled<O> {
    /// Runs the function, tracing it first for shapes and types not seen before.
    ///
    /// # Errors
    ///
    /// The closure's error; an error if its own closure calls it, which MLX's cache does not bear.
    pub fn call(&self, inputs: impl Arguments) -> Result<O> {
        if self.running.replace(true) {
            return Err(Error::argument("compile", "a function that does not call itself"));
        }
        let inputs = to_list(inputs.all());
        let outputs = ffi::call_compiled(&self.function, &inputs);
        self.running.set(false);
        let outputs = outputs.map_err(|exception| self.failure.behind(exception))?;
        O::from_vec(from_list(&outputs))
    }
}

/// Compiles `f`: it is traced once for each set of shapes and types, then its optimized graph is reused.
/// With `shapeless` it is traced once for each set of ranks, of types, and of axes that are 0 or 1 long; if it
/// reduces an array along such axes alone, once for each set of shapes.
///
/// The closure receives the arrays of a call as a list: it is given here, before its arguments.
///
/// For a CPU, MLX fuses ops by running `g++` on a source that it writes. The first call of this function
/// tries that once; where it fails, ops are not fused.
///
/// ```
/// use mlx_primitives::{Array, transforms};
///
/// let f = transforms::compile(|x| (x[0].exp()? + 1.0)?.log(), false)?;
/// let y = f.call(&Array::zeros::<f32>(1)?)?;
/// assert!((y.item::<f32>()? - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn compile<O: Outputs>(
    mut f: impl FnMut(&[Array]) -> Result<O> + 'static,
    shapeless: bool,
) -> Result<Compiled<O>> {
    let failure = Failure::default();
    let boxed: Box<Function<'static>> = Box::new(move |arrays| Ok(f(&arrays)?.into_vec()));
    let closure = Closure { function: RefCell::new(boxed), failure: failure.clone() };
    let function = ffi::compile(Box::new(closure), shapeless)?;
    Ok(Compiled { function, failure, running: Cell::new(false), outputs: PhantomData })
}
