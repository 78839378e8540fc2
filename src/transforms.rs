//! Derivatives, vectorisation and compilation of Rust closures over arrays.
//!
//! An `Err` or a panic inside a closure comes back as an `Err` of the transform.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cxx::{CxxVector, UniquePtr};

use crate::array::{Array, from_list, to_list};
use crate::error::{Error, Result};
use crate::ffi::bridge as ffi;

type Function<'a> = dyn FnMut(&[Array]) -> Result<Vec<Array>> + 'a;

/// A Rust closure as C++ sees it.
pub(crate) struct Closure(RefCell<Box<Function<'static>>>);

impl Closure {
    pub(crate) fn call(
        &self,
        inputs: &CxxVector<ffi::MlxArray>,
    ) -> Result<UniquePtr<CxxVector<ffi::MlxArray>>> {
        let inputs = from_list(inputs);
        let mut function = self.0.try_borrow_mut().map_err(|_| {
            Error::argument("transform", "a closure that does not call its own transform")
        })?;
        // Unwinding into C++ would end the process.
        match catch_unwind(AssertUnwindSafe(|| function(&inputs))) {
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

/// Lends a closure to C++ for the length of one call.
fn with_closure<R>(
    f: impl FnMut(&[Array]) -> Result<Vec<Array>>,
    run: impl FnOnce(&Closure) -> R,
) -> R {
    let boxed: Box<Function<'_>> = Box::new(f);
    // SAFETY: only the lifetime changes. The closure is dropped at the end of this function, and
    // the C++ side keeps no copy of the function object beyond the call (bridge_transforms.cpp).
    let boxed = unsafe { std::mem::transmute::<Box<Function<'_>>, Box<Function<'static>>>(boxed) };
    run(&Closure(RefCell::new(boxed)))
}

fn pair(lists: ffi::ListPair) -> (Vec<Array>, Vec<Array>) {
    (from_list(&lists.first), from_list(&lists.second))
}

/// The outputs of `f` at `primals`, and the cotangents pulled back to each primal.
///
/// ```
/// use mlx_primitives::{Array, transforms};
///
/// let x = Array::scalar(3.0f32)?;
/// let one = Array::scalar(1.0f32)?;
/// let (y, dx) = transforms::vjp(|x| Ok(vec![x[0].square()?]), &[&x], &[&one])?;
/// assert_eq!((y[0].item::<f32>()?, dx[0].item::<f32>()?), (9.0, 6.0));
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn vjp(
    f: impl FnMut(&[Array]) -> Result<Vec<Array>>,
    primals: &[&Array],
    cotangents: &[&Array],
) -> Result<(Vec<Array>, Vec<Array>)> {
    let (primals, cotangents) =
        (to_list(primals.iter().copied()), to_list(cotangents.iter().copied()));
    let (outputs, gradients) = pair(with_closure(f, |f| ffi::vjp(f, &primals, &cotangents))?);
    // MLX refuses too few and passes over the rest.
    if cotangents.len() > outputs.len() {
        return Err(Error::argument(
            "vjp",
            format_args!("{} cotangents, got {}", outputs.len(), cotangents.len()),
        ));
    }
    Ok((outputs, gradients))
}

/// The outputs of `f` at `primals`, and their derivatives along `tangents`.
///
/// ```
/// use mlx_primitives::{Array, transforms};
///
/// let x = Array::scalar(3.0f32)?;
/// let t = Array::scalar(2.0f32)?;
/// let (_, dy) = transforms::jvp(|x| Ok(vec![x[0].square()?]), &[&x], &[&t])?;
/// assert_eq!(dy[0].item::<f32>()?, 12.0);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn jvp(
    f: impl FnMut(&[Array]) -> Result<Vec<Array>>,
    primals: &[&Array],
    tangents: &[&Array],
) -> Result<(Vec<Array>, Vec<Array>)> {
    let (primals, tangents) = (to_list(primals.iter().copied()), to_list(tangents.iter().copied()));
    Ok(pair(with_closure(f, |f| ffi::jvp(f, &primals, &tangents))?))
}

/// The value of a function to a scalar, and its gradient in the arguments numbered `argnums`.
///
/// An error if the result is not a scalar or an argument number is out of range.
pub fn value_and_grad(
    mut f: impl FnMut(&[Array]) -> Result<Array>,
    argnums: &[i32],
    inputs: &[&Array],
) -> Result<(Array, Vec<Array>)> {
    let count = inputs.len() as i32;
    let inputs = to_list(inputs.iter().copied());
    let lists = with_closure(|x| Ok(vec![f(x)?]), |f| ffi::value_and_grad(f, argnums, &inputs))?;
    let (mut values, sorted) = pair(lists);
    let value = values.pop().ok_or_else(|| Error::argument("value_and_grad", "a value"))?;
    // MLX returns them in the order of the arguments, whatever was asked for.
    let position = |argnum: i32| if argnum < 0 { argnum + count } else { argnum };
    let rank =
        |argnum: i32| argnums.iter().filter(|&&other| position(other) < position(argnum)).count();
    let gradients = argnums.iter().map(|&argnum| sorted[rank(argnum)].clone()).collect();
    Ok((value, gradients))
}

/// The gradient of a function to a scalar in the arguments numbered `argnums`.
///
/// ```
/// use mlx_primitives::{Array, ops, transforms};
///
/// let x = Array::from_slice(&[1.0f32, 2.0], &[2])?;
/// let weight = Array::ones::<f32>(&[2])?;
/// let loss = |w: &[Array]| ops::rms_norm(&x, Some(&w[0]), 1e-5)?.sum(..);
/// let gradient = transforms::grad(loss, &[0], &[&weight])?;
/// assert_eq!(gradient[0].shape(), [2]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn grad(
    f: impl FnMut(&[Array]) -> Result<Array>,
    argnums: &[i32],
    inputs: &[&Array],
) -> Result<Vec<Array>> {
    Ok(value_and_grad(f, argnums, inputs)?.1)
}

/// Maps `f` over an axis of each input (`None`: the same for all) and stacks each output along
/// its axis in `out_axes`; an empty `out_axes` means 0.
///
/// ```
/// use mlx_primitives::{Array, transforms};
///
/// let x = Array::ones::<f32>(&[4, 3])?;
/// let sums = transforms::vmap(|x| Ok(vec![x[0].sum(..)?]), &[&x], &[Some(0)], &[])?;
/// assert_eq!(sums[0].to_vec::<f32>()?, [3.0; 4]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn vmap(
    f: impl FnMut(&[Array]) -> Result<Vec<Array>>,
    inputs: &[&Array],
    in_axes: &[Option<i32>],
    out_axes: &[i32],
) -> Result<Vec<Array>> {
    if in_axes.len() != inputs.len() || in_axes.iter().all(Option::is_none) {
        return Err(Error::argument("vmap", "one axis an input, at least one of them mapped"));
    }
    let in_axes = inputs
        .iter()
        .zip(in_axes)
        .map(|(input, axis)| axis.map_or(Ok(-1), |axis| within("vmap", axis, input.ndim())))
        .collect::<Result<Vec<_>>>()?;
    let inputs = to_list(inputs.iter().copied());
    let outputs = from_list(&*with_closure(f, |f| ffi::vmap(f, &inputs, &in_axes, &[]))?);
    if out_axes.is_empty() {
        return Ok(outputs);
    }
    if out_axes.len() != outputs.len() {
        return Err(Error::argument(
            "vmap",
            format_args!("one axis for each of {} outputs, got {}", outputs.len(), out_axes.len()),
        ));
    }
    outputs.iter().zip(out_axes).map(|(output, &axis)| first_axis_to(output, axis)).collect()
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
pub struct Compiled {
    function: UniquePtr<ffi::Compiled>,
    running: Cell<bool>,
}

impl Compiled {
    /// Runs the function, tracing it first for shapes and types not seen before.
    ///
    /// An error if its own closure calls it: MLX's cache does not bear that.
    pub fn call(&self, inputs: &[&Array]) -> Result<Vec<Array>> {
        if self.running.replace(true) {
            return Err(Error::argument("compile", "a function that does not call itself"));
        }
        let inputs = to_list(inputs.iter().copied());
        let outputs = ffi::call_compiled(&self.function, &inputs);
        self.running.set(false);
        Ok(from_list(&*outputs?))
    }
}

/// Compiles `f`: it is traced once for each set of shapes and types, then its optimized graph is reused.
/// With `shapeless` it is traced once for each set of ranks, of types, and of axes that are 0 or 1 long; if it
/// reduces an array along such axes alone, once for each set of shapes.
///
/// For a CPU, MLX fuses ops by running `g++` on a source that it writes. The first call of this function
/// tries that once; where it fails, ops are not fused.
///
/// ```
/// use mlx_primitives::{Array, transforms};
///
/// let f = transforms::compile(|x| Ok(vec![x[0].exp()?.add(1.0)?.log()?]), false)?;
/// let y = f.call(&[&Array::zeros::<f32>(&[1])?])?;
/// assert!((y[0].item::<f32>()? - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn compile(
    f: impl FnMut(&[Array]) -> Result<Vec<Array>> + 'static,
    shapeless: bool,
) -> Result<Compiled> {
    let function = ffi::compile(Box::new(Closure(RefCell::new(Box::new(f)))), shapeless)?;
    Ok(Compiled { function, running: Cell::new(false) })
}
