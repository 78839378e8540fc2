//! A list of calls of most ops with small inputs. Tests use the list to check properties that all
//! ops have in common: types, transforms, dispatches, refused inputs, failures and random inputs.

use mlx_primitives::ops::{
    self, Activation, Attention, CrossEntropy, Linear, LinearWeight, MaskedSoftmax,
};
use mlx_primitives::{Array, Dtype, Result};

use crate::inputs::{EPS, random};

pub type Run = fn(&[Array]) -> Result<Vec<Array>>;

/// A placeholder in shapes, for the number of rows.
const ROWS: i32 = -1;
/// The length of the rows in shapes.
const AXIS: i32 = 8;

#[derive(Clone, Copy)]
pub struct Op {
    /// The name of the primitive's source files, without extension.
    pub stem: &'static str,
    pub name: &'static str,
    pub run: Run,
    shapes: &'static [&'static [i32]],
    /// True if the op also takes integers.
    pub integers: bool,
    /// True if the op promotes its inputs to a common type.
    pub promotes: bool,
    /// True if the derivatives of the op are continuous.
    pub smooth: bool,
    /// For an op that works along rows: the threadgroup memory of a SIMD group, in floats. It is 0
    /// for other ops.
    pub scratch: u64,
}

const X: &[i32] = &[ROWS, AXIS];
const V: &[i32] = &[AXIS];

const fn op(
    stem: &'static str,
    name: &'static str,
    shapes: &'static [&'static [i32]],
    run: Run,
) -> Op {
    Op { stem, name, run, shapes, integers: false, promotes: true, smooth: true, scratch: 0 }
}

/// An element-wise op. It converts integers to floats.
const fn elements(name: &'static str, shapes: &'static [&'static [i32]], run: Run) -> Op {
    Op { integers: true, ..op("activation", name, shapes, run) }
}

const fn reduction(name: &'static str, run: Run) -> Op {
    op("reduce", name, &[X], run)
}

impl Op {
    /// Marks the op as one that works along rows.
    const fn along_rows(self, scratch: u64) -> Self {
        Self { scratch, ..self }
    }

    const fn of_any(self) -> Self {
        Self { integers: true, ..self }
    }

    const fn angular(self) -> Self {
        Self { smooth: false, ..self }
    }

    const fn strict(self) -> Self {
        Self { promotes: false, ..self }
    }

    /// The shapes of the inputs for `rows` rows. If the op works along rows, a row has `axis`
    /// elements.
    pub fn shapes(&self, rows: i32, axis: i32) -> Vec<Vec<i32>> {
        let dim = |&dim: &i32| match dim {
            ROWS => rows,
            AXIS if self.scratch > 0 => axis,
            other => other,
        };
        self.shapes.iter().map(|shape| shape.iter().map(dim).collect()).collect()
    }

    /// Makes random float32 inputs.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX cannot make the arrays.
    pub fn inputs(&self, rows: i32, seed: u64) -> Result<Vec<Array>> {
        let shapes = self.shapes(rows, AXIS).into_iter().zip(seed..);
        shapes.map(|(shape, seed)| random(&shape, Dtype::Float32, seed)).collect()
    }
}

/// Converts one output to a list.
///
/// # Errors
///
/// Returns the error of the op.
pub fn one(y: Result<Array>) -> Result<Vec<Array>> {
    Ok(vec![y?])
}

fn two(y: Result<(Array, Array)>) -> Result<Vec<Array>> {
    y.map(|(a, b)| vec![a, b])
}

fn cross_entropy(x: &[Array]) -> Result<Vec<Array>> {
    let sums = x[0].stop_gradient()?.abs()?.sum(-1)?;
    let targets = sums.astype(Dtype::Int32)?.minimum(7)?;
    one(ops::cross_entropy(&x[0], &targets, CrossEntropy::default()))
}

fn linear(x: &[Array]) -> Result<Vec<Array>> {
    let (activation, bias, residual) = (Some(Activation::Silu), x.get(2), x.get(3));
    one(ops::linear(&x[0], &x[1], Linear { bias, activation, residual }))
}

fn lora_linear(x: &[Array]) -> Result<Vec<Array>> {
    one(ops::lora_linear(&x[0], &LinearWeight::from(&x[1]), &x[2], &x[3], 1.5))
}

fn attention(x: &[Array]) -> Result<Vec<Array>> {
    one(ops::attention(&x[0], &x[1], &x[2], Attention { causal: true, ..Default::default() }))
}

pub const OPS: &[Op] = &[
    op("rms_norm", "rms_norm", &[X], |x| one(ops::rms_norm(&x[0], None, EPS))).along_rows(1),
    op("rms_norm", "rms_norm", &[X, V], |x| one(ops::rms_norm(&x[0], x.get(1), EPS))).along_rows(1),
    op("layer_norm", "layer_norm", &[X, V, V], |x| {
        one(ops::layer_norm(&x[0], x.get(1), x.get(2), EPS))
    })
    .along_rows(2),
    op("layer_norm", "layer_norm", &[X], |x| one(ops::layer_norm(&x[0], None, None, EPS)))
        .along_rows(2),
    op("residual_norm", "rms_norm_residual", &[X, X, V], |x| {
        two(ops::rms_norm_residual(&x[0], &x[1], x.get(2), EPS))
    })
    .strict()
    .along_rows(1),
    op("residual_norm", "layer_norm_residual", &[X, X, V, V], |x| {
        two(ops::layer_norm_residual(&x[0], &x[1], x.get(2), x.get(3), EPS))
    })
    .strict()
    .along_rows(2),
    op("softmax", "softmax", &[X], |x| one(ops::softmax(&x[0]))).of_any().along_rows(2),
    op("logsumexp", "logsumexp", &[X], |x| one(ops::logsumexp_keepdims(&x[0])))
        .of_any()
        .along_rows(2),
    op("logsumexp", "log_softmax", &[X], |x| one(ops::log_softmax(&x[0]))).of_any().along_rows(2),
    op("masked_softmax", "masked_softmax", &[X, V], |x| {
        one(ops::masked_softmax(&x[0], MaskedSoftmax { mask: x.get(1), ..Default::default() }))
    })
    .strict()
    .along_rows(2),
    op("cross_entropy", "cross_entropy", &[X], cross_entropy).along_rows(3),
    reduction("sum", |x| one(ops::sum_keepdims(&x[0], -1))),
    reduction("mean", |x| one(ops::mean_keepdims(&x[0], -1))),
    reduction("max", |x| one(ops::max_keepdims(&x[0], -1))).angular(),
    reduction("sum_of_squares", |x| one(ops::sum_of_squares(&x[0], ..))),
    reduction("norm", |x| one(ops::norm_keepdims(&x[0], -1))),
    elements("relu", &[X], |x| one(ops::relu(&x[0]))).angular(),
    elements("silu", &[X], |x| one(ops::silu(&x[0]))),
    elements("gelu", &[X], |x| one(ops::gelu(&x[0]))),
    elements("gelu_tanh", &[X], |x| one(ops::gelu_tanh(&x[0]))),
    elements("swiglu", &[X, X], |x| one(ops::swiglu(&x[0], &x[1]))),
    elements("geglu", &[X, X], |x| one(ops::geglu(&x[0], &x[1]))),
    elements("geglu_tanh", &[X, X], |x| one(ops::geglu_tanh(&x[0], &x[1]))),
    elements("add_relu", &[X, X], |x| one(ops::add_relu(&x[0], &x[1]))).angular(),
    elements("mul_relu", &[X, X], |x| one(ops::mul_relu(&x[0], &x[1]))).angular(),
    op("linear", "linear", &[X, &[6, 8], &[6], &[ROWS, 6]], linear),
    op("lora", "lora_linear", &[X, &[6, 8], &[2, 8], &[6, 2]], lora_linear).strict(),
    op("rope", "rope", &[&[ROWS, 2, 5, 8]], |x| {
        one(ops::rope(&x[0], ops::Rope { dims: 8, offset: 3.into(), ..ops::Rope::default() }))
    }),
    op(
        "attention",
        "attention",
        &[&[ROWS, 4, 3, 8], &[ROWS, 2, 5, 8], &[ROWS, 2, 5, 8]],
        attention,
    ),
];

/// The element-wise ops with `inputs` inputs.
pub fn of_elements(inputs: usize) -> impl Iterator<Item = &'static Op> {
    OPS.iter().filter(move |op| op.stem == "activation" && op.shapes.len() == inputs)
}
