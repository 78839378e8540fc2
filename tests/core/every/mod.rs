//! How every op handles its inputs' types and the transforms, with a row for each op. `table`
//! compares values with references.

mod compiled;
mod derivatives;
mod maps;
mod promotion;

use mlx_primitives::device::{Device, with_device};
use mlx_primitives::ops::{
    self, Activation, Attention, CrossEntropy, Linear, LinearWeight, MaskedSoftmax,
};
use mlx_primitives::{Array, Dtype, Result, builtin};

use crate::support::compare::{assert_close, numbers, ulp};
use crate::support::input::random32;
use crate::support::{Checked, EPS, each_device, message};

type Run = fn(&[Array]) -> Result<Vec<Array>>;

/// Stands for the number of rows, as the first dimension of a shape.
const ROWS: i32 = -1;

pub struct Op {
    pub name: &'static str,
    pub run: Run,
    shapes: &'static [&'static [i32]],
    /// Whether x may hold integers.
    integers: bool,
    /// Whether the types of its inputs are promoted to a common one.
    promotes: bool,
    /// Whether its derivatives have no jumps.
    smooth: bool,
}

const X: &[i32] = &[ROWS, 8];
const V: &[i32] = &[8];

const fn op(name: &'static str, shapes: &'static [&'static [i32]], run: Run) -> Op {
    Op { name, run, shapes, integers: false, promotes: true, smooth: true }
}

/// An op that converts integers to floats.
const fn of_any(name: &'static str, shapes: &'static [&'static [i32]], run: Run) -> Op {
    Op { integers: true, ..op(name, shapes, run) }
}

const fn angular(op: Op) -> Op {
    Op { smooth: false, ..op }
}

const fn strict(op: Op) -> Op {
    Op { promotes: false, ..op }
}

fn one(y: Result<Array>) -> Result<Vec<Array>> {
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

pub const OPS: [Op; 28] = [
    op("rms_norm", &[X, V], |x| one(ops::rms_norm(&x[0], x.get(1), EPS))),
    op("layer_norm", &[X, V, V], |x| one(ops::layer_norm(&x[0], x.get(1), x.get(2), EPS))),
    op("layer_norm", &[X], |x| one(ops::layer_norm(&x[0], None, None, EPS))),
    strict(op("rms_norm_residual", &[X, X, V], |x| {
        two(ops::rms_norm_residual(&x[0], &x[1], x.get(2), EPS))
    })),
    strict(op("layer_norm_residual", &[X, X, V, V], |x| {
        two(ops::layer_norm_residual(&x[0], &x[1], x.get(2), x.get(3), EPS))
    })),
    of_any("softmax", &[X], |x| one(ops::softmax(&x[0]))),
    of_any("logsumexp", &[X], |x| one(ops::logsumexp_keepdims(&x[0]))),
    of_any("log_softmax", &[X], |x| one(ops::log_softmax(&x[0]))),
    strict(op("masked_softmax", &[X, V], |x| {
        one(ops::masked_softmax(&x[0], MaskedSoftmax { mask: x.get(1), ..Default::default() }))
    })),
    op("cross_entropy", &[X], cross_entropy),
    op("sum", &[X], |x| one(ops::sum_keepdims(&x[0], -1))),
    op("mean", &[X], |x| one(ops::mean_keepdims(&x[0], -1))),
    angular(op("max", &[X], |x| one(ops::max_keepdims(&x[0], -1)))),
    op("sum_of_squares", &[X], |x| one(ops::sum_of_squares(&x[0], ..))),
    op("norm", &[X], |x| one(ops::norm_keepdims(&x[0], -1))),
    angular(of_any("relu", &[X], |x| one(ops::relu(&x[0])))),
    of_any("silu", &[X], |x| one(ops::silu(&x[0]))),
    of_any("gelu", &[X], |x| one(ops::gelu(&x[0]))),
    of_any("gelu_tanh", &[X], |x| one(ops::gelu_tanh(&x[0]))),
    of_any("swiglu", &[X, X], |x| one(ops::swiglu(&x[0], &x[1]))),
    of_any("geglu", &[X, X], |x| one(ops::geglu(&x[0], &x[1]))),
    of_any("geglu_tanh", &[X, X], |x| one(ops::geglu_tanh(&x[0], &x[1]))),
    angular(of_any("add_relu", &[X, X], |x| one(ops::add_relu(&x[0], &x[1])))),
    angular(of_any("mul_relu", &[X, X], |x| one(ops::mul_relu(&x[0], &x[1])))),
    op("linear", &[X, &[6, 8], &[6], &[ROWS, 6]], linear),
    strict(op("lora_linear", &[X, &[6, 8], &[2, 8], &[6, 2]], lora_linear)),
    op("rope", &[&[ROWS, 2, 5, 8]], |x| {
        one(ops::rope(&x[0], ops::Rope { dims: 8, offset: 3.into(), ..ops::Rope::default() }))
    }),
    op("attention", &[&[ROWS, 4, 3, 8], &[ROWS, 2, 5, 8], &[ROWS, 2, 5, 8]], attention),
];

impl Op {
    pub fn inputs(&self, rows: i32, seed: u64) -> Result<Vec<Array>> {
        let shape = |shape: &[i32]| -> Vec<i32> {
            shape.iter().map(|&dim| if dim == ROWS { rows } else { dim }).collect()
        };
        self.shapes.iter().zip(seed..).map(|(of, seed)| random32(&shape(of), seed)).collect()
    }
}

/// The type that MLX gives a sum of these arrays, or float32 for integers.
fn promoted(inputs: &[Array]) -> Result<Dtype> {
    let mut sum = inputs[0].sum(..)?;
    for input in &inputs[1..] {
        sum = sum.add(&input.sum(..)?)?;
    }
    Ok(if sum.dtype() == Dtype::Int32 { Dtype::Float32 } else { sum.dtype() })
}

/// Results have MLX's types and are near its values: each op rounds a few times.
#[test]
fn types_are_promoted() -> Checked {
    each_device(|_| {
        let types = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Int32];
        for op in OPS.iter().filter(|op| op.promotes) {
            for (first, step) in (0..4).flat_map(|first| (0..4).map(move |step| (first, step))) {
                let of = |i: usize| types[(first + step * i) % 4];
                if !op.integers && of(0) == Dtype::Int32 {
                    continue;
                }
                let inputs = op.inputs(3, 1)?.into_iter().enumerate();
                let inputs: Vec<Array> =
                    inputs.map(|(i, x)| x.astype(of(i))).collect::<Result<_>>()?;
                let ours = (op.run)(&inputs)?;
                // The inputs of the node, and of its composition, have the type that was chosen.
                let widest = ours.last().expect("an output").dtype();
                assert_eq!(widest, promoted(&inputs)?, "{} of {first} {step}", op.name);
                let theirs = builtin::composition(&ours[0])
                    .map_err(|e| anyhow::anyhow!("{} {e}", op.name))?;
                for (ours, theirs) in ours.iter().zip(&theirs) {
                    let what = format!(
                        "{} of {:?}",
                        op.name,
                        inputs.iter().map(Array::dtype).collect::<Vec<_>>()
                    );
                    assert_eq!(
                        (ours.shape(), ours.dtype()),
                        (theirs.shape(), theirs.dtype()),
                        "{what}"
                    );
                    let tolerance = 6.0 * ulp(1.0, ours.dtype()) + 2e-5;
                    assert_close(&numbers(ours)?, &numbers(theirs)?, tolerance, &what);
                }
            }
            let others = [Dtype::Int8, Dtype::Int64, Dtype::Uint16, Dtype::Bool];
            for other in others.into_iter().filter(|_| op.integers) {
                let whole = |x: &Array| x.abs()?.astype(other);
                let inputs: Vec<Array> =
                    op.inputs(3, 1)?.iter().map(whole).collect::<Result<_>>()?;
                let ours = (op.run)(&inputs)?.swap_remove(0);
                assert_eq!(ours.dtype(), Dtype::Float32, "{} of {other}", op.name);
                let theirs = numbers(&builtin::composition(&ours)?[0])?;
                assert_close(&numbers(&ours)?, &theirs, 4e-6, op.name);
            }
        }
        Ok(())
    })
}

#[test]
fn other_types_are_refused() -> Checked {
    for op in &OPS {
        let wide = [Dtype::Complex64, Dtype::Float64];
        let whole = [Dtype::Int32, Dtype::Bool, Dtype::Uint8];
        for dtype in wide.iter().chain(whole.iter().filter(|_| !op.integers)) {
            // MLX makes no float64 on a GPU.
            let inputs: Result<Vec<Array>> = with_device(Device::Cpu, || {
                op.inputs(2, 1)?.iter().map(|x| x.astype(*dtype)).collect()
            });
            let said = message((op.run)(&inputs?));
            if said.contains("float64 is not supported on the GPU") && *dtype == Dtype::Float64 {
                continue; // MLX refuses it first
            }
            let expected = format!("[{}] expected ", op.name);
            assert!(said.starts_with(&expected) && said.contains(dtype.name()), "{said}");
        }
    }
    Ok(())
}

/// A loss that depends on every output.
fn loss(run: Run) -> impl Fn(&[Array]) -> Result<Array> {
    move |p| {
        let all = run(p)?.into_iter().map(|y| y.square()?.sum(..));
        all.reduce(|a, b| a?.add(b?)).unwrap_or_else(|| Array::scalar(0.0f32))
    }
}
