//! Derivatives, vectorization, checkpointing and compilation of Rust closures over arrays.
//!
//! A transform takes a closure and its arguments: an array, a tuple of arrays or a list of arrays.
//! The closure receives the arguments in the same form ([`Arguments`]). Captured arrays are
//! constants.
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
//! A transform returns an `Err` of its closure unchanged. It returns [`Error::Panic`] if the
//! closure or its destructor panics. But if a lazy array or a [`Compiled`] owns the closure, a
//! panic of the closure's destructor is ignored.
//!
//! # Long chains of ops
//!
//! MLX walks the graph of a closure recursively, so the thread's stack limits the length of a chain
//! of ops. Each op takes [`BYTES_PER_OP`] bytes, or [`BYTES_PER_COMPILED_OP`] in [`compile`].
//! Rust's default stack of 2 MiB has room for about 6,000 ops, or 4,000 in `compile`. A main
//! thread's stack of 8 MiB has room for four times as many. A longer chain is an error; run it on a
//! thread with a larger stack ([`std::thread::Builder::stack_size`]). Evaluation has no such limit.

mod arguments;
mod bridge;
mod checkpoint;
mod derivatives;
mod stack;

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use cxx::{CxxVector, UniquePtr};

pub use arguments::{Arguments, MapAxes, Outputs};
pub use checkpoint::checkpoint;
pub(crate) use checkpoint::{after, is_traced, with_vjp};
use derivatives::Differentiation;
pub use derivatives::differentiates;
pub use stack::{BYTES_PER_COMPILED_OP, BYTES_PER_OP};

use crate::array::{Array, List, from_list, to_list};
use crate::error::{Error, Result};
use crate::panics::{Guarded, caught};
use bridge::ffi;

type Function<'a> = dyn FnMut(Vec<Array>) -> Result<Vec<Array>> + 'a;

/// A Rust closure in the form that C++ calls.
pub(crate) struct Closure {
    function: RefCell<Guarded<Box<Function<'static>>>>,
    bytes_per_op: usize, // the stack that the transform needs
}

thread_local! {
    /// The last error of a closure on this thread. C++ passes on only the message of an error. The
    /// failing closure may be nested in another closure, as in [`checkpoint`].
    static FAILURE: Cell<Option<Error>> = const { Cell::new(None) };
}

fn set_failure(error: Option<Error>) -> Option<Error> {
    // While a thread ends, the thread-local value may already be dropped. The caller then reports
    // MLX's error.
    FAILURE.try_with(|failure| failure.replace(error)).ok().flatten()
}

/// Returns the closure's error if `exception` has its message, and otherwise an error of MLX.
fn behind(exception: cxx::Exception) -> Error {
    let failure = set_failure(None).filter(|error| error.to_string() == exception.what());
    failure.unwrap_or_else(|| exception.into())
}

impl Closure {
    fn new(function: impl FnMut(Vec<Array>) -> Result<Vec<Array>> + 'static) -> Box<Self> {
        let function = RefCell::new(Guarded::new(Box::new(function) as Box<Function<'_>>));
        Box::new(Self { function, bytes_per_op: BYTES_PER_OP })
    }

    pub(crate) fn call(
        &self,
        inputs: &CxxVector<ffi::MlxArray>,
    ) -> std::result::Result<UniquePtr<CxxVector<ffi::MlxArray>>, String> {
        self.run(inputs).map_err(|error| {
            let text = error.to_string();
            set_failure(Some(error));
            text
        })
    }

    fn run(&self, inputs: &CxxVector<ffi::MlxArray>) -> Result<List> {
        let arguments = from_list(inputs);
        let mut function = self.function.try_borrow_mut().map_err(|_| {
            Error::argument("transform", "a closure that does not call its own transform")
        })?;
        // Unwinding into C++ would end the process.
        let outputs = caught(|| function.get_mut()(arguments)).map_err(panicked)??;
        let outputs = to_list(&outputs);
        stack::check(self.bytes_per_op, inputs, &outputs)?;
        Ok(outputs)
    }
}

fn panicked(message: String) -> Error {
    let message = format!("the closure panicked: {message}");
    Error::Panic { op: "transform".to_owned(), message }
}

/// Wraps a closure for C++ and passes it to `run`, which must not keep it after the call.
fn with_closure<A: Arguments, O: Outputs, R>(
    mut f: impl FnMut(A::Arrays) -> Result<O>,
    run: impl FnOnce(&Closure) -> std::result::Result<R, cxx::Exception>,
) -> Result<R> {
    let boxed: Box<Function<'_>> =
        Box::new(move |arrays| Ok(f(Outputs::from_vec(arrays)?)?.into_vec()));
    // SAFETY: only the lifetime changes. The closure is dropped at the end of this function, and
    // cpp/bridge/transforms.cpp does not keep the function object after the call.
    let boxed = unsafe { std::mem::transmute::<Box<Function<'_>>, Box<Function<'static>>>(boxed) };
    let function = RefCell::new(Guarded::new(boxed));
    let closure = Closure { function, bytes_per_op: BYTES_PER_OP };
    set_failure(None);
    let result = run(&closure).map_err(behind);
    let ended = closure.function.into_inner().end();
    result.and_then(|value| ended.map(|()| value).map_err(panicked))
}

fn pair(lists: ffi::ListPair) -> (Vec<Array>, Vec<Array>) {
    (from_list(&lists.first), from_list(&lists.second))
}

/// The outputs of `f` at `primals`, and the vector-Jacobian product for each primal.
///
/// `cotangents` has one array for each output, of the shape and type of the output.
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
/// Returns the closure's error. Returns an error if the number, a shape or a type of the cotangents
/// is wrong, or if an op of `f` has no derivative.
pub fn vjp<A: Arguments, O: Outputs>(
    f: impl FnMut(A::Arrays) -> Result<O>,
    primals: A,
    cotangents: impl Arguments,
) -> Result<(O, A::Arrays)> {
    let (primals, cotangents) = (to_list(primals.all()), to_list(cotangents.all()));
    let _differentiation = Differentiation::begin();
    let lists = with_closure::<A, O, _>(f, |f| ffi::vjp(f, &primals, &cotangents))?;
    let (outputs, gradients) = pair(lists);
    // MLX refuses too few cotangents, but ignores surplus cotangents.
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
/// `tangents` has one array for each primal, of the shape and type of the primal.
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
/// Returns the closure's error. Returns an error if the number, a shape or a type of the tangents
/// is wrong, or if an op of `f` has no derivative.
pub fn jvp<A: Arguments, O: Outputs>(
    f: impl FnMut(A::Arrays) -> Result<O>,
    primals: A,
    tangents: impl Arguments,
) -> Result<(O, O)> {
    let (primals, tangents) = (to_list(primals.all()), to_list(tangents.all()));
    let _differentiation = Differentiation::begin();
    let (outputs, derivatives) =
        pair(with_closure::<A, O, _>(f, |f| ffi::jvp(f, &primals, &tangents))?);
    Ok((O::from_vec(outputs)?, O::from_vec(derivatives)?))
}

/// The value of a function that returns a scalar, and its gradient with respect to each argument.
///
/// To leave out the gradient of an array, let the closure capture the array.
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
/// Returns the closure's error. Returns an error if the result is not a scalar or there is no
/// argument.
pub fn value_and_grad<A: Arguments>(
    f: impl FnMut(A::Arrays) -> Result<Array>,
    inputs: A,
) -> Result<(Array, A::Arrays)> {
    let inputs = to_list(inputs.all());
    let argnums: Vec<i32> = (0..inputs.len() as i32).collect();
    let _differentiation = Differentiation::begin();
    let lists = with_closure::<A, Array, _>(f, |f| ffi::value_and_grad(f, &argnums, &inputs))?;
    let (values, gradients) = pair(lists);
    Ok((Array::from_vec(values)?, Outputs::from_vec(gradients)?))
}

/// The gradient of a function that returns a scalar, with respect to each argument.
/// [`value_and_grad`] also returns the value.
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
/// Returns the closure's error. Returns an error if the result is not a scalar or there is no
/// argument.
pub fn grad<A: Arguments>(
    f: impl FnMut(A::Arrays) -> Result<Array>,
    inputs: A,
) -> Result<A::Arrays> {
    Ok(value_and_grad(f, inputs)?.1)
}

/// Maps `f` over an axis of each input and stacks each output along its axis in `out_axes`.
///
/// `in_axes` and `out_axes` are either one axis for all arrays, or a list with an axis for each
/// array. An input whose axis is `None` is not mapped: `f` gets the full array.
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
/// Returns the closure's error. Returns an error if the number of axes is wrong, an axis is outside
/// the rank, or no input is mapped.
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

/// The index of the dimension of `axis`. A negative `axis` counts from the end.
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

/// A function that MLX compiles: it traces, simplifies and fuses the graph. See [`compile`].
#[must_use = "a compiled function runs when it is called"]
pub struct Compiled<O = Vec<Array>> {
    function: UniquePtr<ffi::Compiled>,
    running: Cell<bool>,
    outputs: PhantomData<fn() -> O>,
}

impl<O: Outputs> Compiled<O> {
    /// Runs the function. For shapes and types that are new, MLX traces the function first.
    ///
    /// # Errors
    ///
    /// Returns the closure's error. Returns an error if the closure calls the compiled function
    /// itself, because MLX's cache does not support this.
    pub fn call(&self, inputs: impl Arguments) -> Result<O> {
        if self.running.replace(true) {
            return Err(Error::argument("compile", "a function that does not call itself"));
        }
        let inputs = to_list(inputs.all());
        set_failure(None);
        let outputs = ffi::call_compiled(&self.function, &inputs);
        self.running.set(false);
        O::from_vec(from_list(&*outputs.map_err(behind)?))
    }
}

/// Compiles `f`: MLX traces it once for each set of shapes and types, then reuses the optimized
/// graph. With `shapeless`, MLX traces it once for each set of ranks, of types, and of axes of
/// length 0 or 1. If `f` reduces an array only along axes of length 0 or 1, MLX traces it for each
/// set of shapes.
///
/// The closure receives the arrays of a call as a list, because `compile` is called before the
/// arguments are known.
///
/// On a CPU, MLX fuses ops by writing C++ source and compiling it with `g++`. The first call of
/// this function tests whether `g++` works. If not, ops are not fused.
///
/// # Errors
///
/// Returns an error if MLX cannot start, for example because the system refuses to start a thread.
/// [`Compiled::call`] returns the errors of the closure.
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
    let mut closure = Closure::new(move |arrays| Ok(f(&arrays)?.into_vec()));
    closure.bytes_per_op = BYTES_PER_COMPILED_OP;
    let function = ffi::compile(closure, shapeless)?;
    Ok(Compiled { function, running: Cell::new(false), outputs: PhantomData })
}
