//! Functions whose backward pass is not simply the gradient of their graph: `checkpoint` recomputes
//! the intermediate results, and `with_vjp` takes a hand-written derivative.

use super::bridge::ffi;
use super::{Arguments, Closure, Outputs, behind, set_failure};
use crate::array::{Array, from_list, to_list};
use crate::error::{Error, Result};

/// Returns the outputs of `f` at `inputs`, without keeping intermediate results in memory for the
/// backward pass.
///
/// If a gradient is taken through the outputs, the backward pass runs `f` again and computes the
/// intermediate results a second time ([Chen et al. 2016](https://arxiv.org/abs/1604.06174)).
/// Suppose each of `n` layers keeps `m` bytes. With a checkpoint for each layer, memory falls from
/// `n · m` bytes to the inputs of the layers and the `m` bytes of one layer, at the cost of one
/// more forward pass. Values and gradients have the same bits as without a checkpoint. The second
/// run starts after the cotangents of the outputs are computed. On a machine without a GPU,
/// evaluation waits for them, even in [`async_eval`](crate::async_eval).
///
/// The lazy outputs own the closure, so it must capture by value (`move`). A clone of an [`Array`]
/// is cheap, because clones share the data. Gradients flow only to `inputs`: a captured array is a
/// constant even if it depends on an argument of a surrounding transform. So pass weights to train
/// as inputs, and also every array that a surrounding [`vmap`](super::vmap) maps.
///
/// ```
/// use mlx_primitives::{Array, ops, transforms};
///
/// let x = Array::from_slice(&[1.0f32, -2.0], 2)?;
/// let weight = Array::full(2, 0.5f32)?;
/// let layer = |(x, w): (Array, Array)| ops::silu(&(x * w)?);
/// let plain = |(x, w)| layer((x, w))?.sum(..);
/// let recomputed =
///     |(x, w): (Array, Array)| transforms::checkpoint(layer, (&x, &w))?.sum(..);
/// let (dx, dw) = transforms::grad(recomputed, (&x, &weight))?;
/// let (want_dx, want_dw) = transforms::grad(plain, (&x, &weight))?;
/// assert_eq!(dx.to_vec::<f32>()?, want_dx.to_vec::<f32>()?);
/// assert_eq!(dw.to_vec::<f32>()?, want_dw.to_vec::<f32>()?);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
///
/// # Errors
///
/// Returns the closure's error, or [`Error::Panic`] if the closure panics. Returns an error if the
/// closure returns no array. If the closure fails in the backward pass, the surrounding transform
/// returns the closure's error.
pub fn checkpoint<A: Arguments, O: Outputs>(
    mut f: impl FnMut(A::Arrays) -> Result<O> + 'static,
    inputs: A,
) -> Result<O> {
    let closure = Closure::new(move |arrays| {
        let outputs = f(Outputs::from_vec(arrays)?)?.into_vec();
        // MLX reads the first output without a check that there is one.
        if outputs.is_empty() {
            return Err(Error::argument("checkpoint", "a closure that returns an array"));
        }
        Ok(outputs)
    });
    let inputs = to_list(inputs.all());
    set_failure(None);
    let outputs = ffi::checkpoint(closure, &inputs).map_err(behind)?;
    O::from_vec(from_list(&outputs))
}

/// Returns the single output of `f` at `inputs`, with `vjp` as its derivative. `vjp` takes the
/// inputs and the cotangent of the output, and returns a cotangent for each input.
pub(crate) fn with_vjp(
    mut f: impl FnMut(&[Array]) -> Result<Array> + 'static,
    mut vjp: impl FnMut(&[Array], &Array) -> Result<Vec<Array>> + 'static,
    inputs: &[&Array],
) -> Result<Array> {
    let count = inputs.len();
    let value = Closure::new(move |inputs| Ok(vec![f(&inputs)?]));
    let derivative = Closure::new(move |all| {
        let Some((inputs, [cotangent])) = all.split_at_checked(count) else {
            return Err(Error::argument(
                "vjp",
                format_args!("{} arrays, got {}", count + 1, all.len()),
            ));
        };
        let cotangents = vjp(inputs, cotangent)?;
        if cotangents.len() != count {
            return Err(Error::argument(
                "vjp",
                format_args!("{count} cotangents, got {}", cotangents.len()),
            ));
        }
        Ok(cotangents)
    });
    set_failure(None);
    let outputs = ffi::with_vjp(value, derivative, &to_list(inputs.iter().copied()));
    Outputs::from_vec(from_list(&*outputs.map_err(behind)?))
}

/// Returns a node with the value of `array` that MLX computes only after `others`. By then, on a
/// machine without a GPU, the memory of the intermediate results of `others` has been freed.
pub(crate) fn after<'a>(
    array: &Array,
    others: impl IntoIterator<Item = &'a Array>,
) -> Result<Array> {
    Array::from_bridge(ffi::after(array.raw(), &to_list(others)))
}

/// Returns true if a running transform may need the derivative with respect to the array.
pub(crate) fn is_traced(array: &Array) -> bool {
    ffi::is_tracer(array.raw())
}
