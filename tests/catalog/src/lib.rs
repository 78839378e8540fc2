//! The catalog of ops. Most ops have rows. A row of the catalog is a [`Conformance`]: an op with
//! its reference in f64, its shapes, and its error bounds. Comments derive the bounds. [`ROWS`]
//! lists functions that pass rows to a callback, which checks them. `tests/core` makes a test of
//! each function, and runs each again through `eval_gpu`. `mlx-primitives verify` runs the
//! functions on the user's machine. [`ops`] has calls of most ops with small inputs.

pub mod attention_reference;
pub mod inputs;
pub mod ops;
pub mod reference;
pub mod reference_loops;
pub mod widths;

use mlx_primitives::simulator::Schedule;
use mlx_primitives::{Array, Dtype, Result, builtin};
use mlx_primitives_check::{Backend, Bound, Check, Compared, Conformance, Tensor};

use inputs::{Checked, SIMULATE, simulated, ulp};

/// A callback that checks a row.
pub type Hold<'a> = dyn Fn(Conformance) -> Checked + 'a;

/// A named function that passes the rows of one or more ops to a callback.
pub struct Rows {
    pub name: &'static str,
    pub each: fn(&Hold<'_>) -> Checked,
}

macro_rules! rows {
    ($($module:ident: $($function:ident)*;)*) => {
        $(mod $module;)*
        pub const ROWS: &[Rows] = &[$($(Rows {
            name: concat!(stringify!($module), "::", stringify!($function)),
            each: $module::$function,
        }),*),*];
    };
}

rows! {
    appending: rope_append rope_append_of_all_parameters rope_append_to_every_slot;
    attention: attention_of_every_size attention_of_other_values attention_by_every_rule attention;
    elements: activations affine;
    norms: rms_norm layer_norm residual_norm;
    products: products_of_matrices products_of_batches linear;
    quantized:
        quantized_linear_of_every_format_and_size quantized_linear quantized_linear_with_everything
        lora_linear_of_every_base_rank_and_size lora_linear dequantize;
    reductions: reductions many_rows_and_many_pieces;
    rotations: rope rope_of_all_parameters;
    softmaxes: cross_entropy masked_softmax masked_softmax_of_every_size;
    sums: softmax logsumexp log_softmax;
}

/// Returns the available backends: the CPU and the GPU, or only the simulator if the environment
/// selects it.
pub fn backends() -> anyhow::Result<Vec<Backend>> {
    if !simulated() {
        let simulated = |backend: &Backend| matches!(backend, Backend::SimulatedMetal(_));
        return Ok(Backend::available().into_iter().filter(|b| !simulated(b)).collect());
    }
    let order = std::env::var(SIMULATE)?;
    let schedule = match order.split_once(':') {
        Some((_, seed)) => Schedule::Shuffled(seed.parse()?),
        None if order == "reversed" => Schedule::Reversed,
        None => Schedule::Forward,
    };
    Ok(vec![Backend::SimulatedMetal(schedule)])
}

/// Adds shapes that reach every variant of a row-wise kernel, with up to `elements` elements. The
/// first `like` inputs have the same shape, and the next `vectors` inputs are vectors as long as a
/// row. A few small shapes run all checks; the others only compare values.
fn row_sizes(mut row: Conformance, elements: i32, like: usize, vectors: usize) -> Conformance {
    let inputs = |shape: &[i32]| -> Vec<Vec<i32>> {
        let axis = shape.last().copied().unwrap_or(1);
        [vec![shape.to_vec(); like], vec![vec![axis]; vectors]].concat()
    };
    for axis in [1, 3, 31, 33, 100, 129, 1000, 4096, 4097, 16384, 20001] {
        for rows in [0, 1, 3, 7, 67] {
            if rows * axis <= elements {
                row = row.sizes(&slices(&inputs(&[rows, axis])));
            }
        }
    }
    let shapes = [&[3, 33][..], &[2, 5, 31], &[7, 1], &[1, 7], &[2, 3, 1, 100], &[257]];
    for shape in &shapes[..if elements > 10_000 { 6 } else { 2 }] {
        row = row.shapes(&slices(&inputs(shape)));
    }
    row
}

fn slices(shapes: &[Vec<i32>]) -> Vec<&[i32]> {
    shapes.iter().map(Vec::as_slice).collect()
}

/// Restricts a row to one check. Another row runs all checks of the op.
fn only(check: Check, row: Conformance) -> Conformance {
    let others = Check::ALL.into_iter().filter(|other| *other != check);
    others.fold(row, |row, other| row.without(other, "there is another row for it"))
}

/// Runs the composition of MLX's ops that computes the same result as our op. Rows use it as the
/// peer, the implementation to compare with, if MLX does not have the op.
fn composed(
    op: impl Fn(&[Array]) -> Result<Vec<Array>>,
) -> impl Fn(&[Array]) -> Result<Vec<Array>> {
    move |x| {
        let ours = op(x)?;
        let all = builtin::composition(&ours[0])?;
        if all.len() == ours.len() {
            return Ok(all);
        }
        ours.iter().map(|y| Ok(builtin::composition(y)?.swap_remove(0))).collect()
    }
}

/// Bounds for derivatives whose absolute and relative error is `error` in f32, before they are
/// rounded to the type.
fn derivatives(error: f64) -> impl Fn(&Compared<'_>) -> Bound {
    move |compared| {
        let rounding = if compared.dtype == Dtype::Float32 { 0.0 } else { 0.51 };
        Bound { absolute: error, ..Bound::ulps(error / ulp(1.0, compared.dtype) + rounding) }
    }
}

/// Bounds for derivatives that several ops compute, each of which rounds to the type. The bounds
/// allow eight roundings, of numbers up to `reach` or of the derivative.
fn derivatives_of_ops(error: f64, reach: f64) -> impl Fn(&Compared<'_>) -> Bound {
    move |compared| {
        let all = derivatives(error)(compared);
        if compared.dtype == Dtype::Float32 {
            return all;
        }
        let absolute = all.absolute + 8.0 * reach * ulp(1.0, compared.dtype);
        Bound { absolute, ..Bound::ulps(all.ulps + 8.0) }
    }
}

/// The share of 16-bit values that must equal MLX's values. MLX and our op round in the same way,
/// so a value differs only if the f32 sums differ by a few ulps at a rounding boundary. This is
/// rare, because a 16-bit ulp is at least 2^13 f32 ulps. If all numbers of a row are equal, all its
/// values may differ together, so the share is 0.
fn share(compared: &Compared<'_>, same: f64) -> f64 {
    let x = &compared.inputs[0].values;
    let one = x.chunks(axis(compared.inputs).max(1)).any(|row| row.iter().all(|v| *v == row[0]));
    if compared.dtype == Dtype::Float32 || one { 0.0 } else { same }
}

/// A bound without tolerance: every bit must be equal.
fn exact(_: &Compared<'_>) -> Bound {
    Bound::default()
}

/// Returns the index of an element in an array of shape `own` that is broadcast to the shape `all`.
/// `index` is the element's index in the broadcast array. The two shapes have the same rank.
pub fn broadcast(all: &[usize], own: &[usize], mut index: usize) -> usize {
    let (mut at, mut step) = (0, 1);
    for (&all, &dim) in all.iter().zip(own).rev() {
        at += if dim == 1 { 0 } else { index % all * step };
        (index, step) = (index / all, step * dim);
    }
    at
}

/// The length of the last axis of the first input.
fn axis(inputs: &[Tensor]) -> usize {
    inputs[0].shape.last().copied().unwrap_or(1)
}

/// The error of an exponential, in ulps. Metal's fast exponential has a larger error.
fn exponential(compared: &Compared<'_>) -> f64 {
    if compared.backend.is_metal() { 15.0 } else { 2.0 }
}
