//! The inputs and calls of the ops that multiply no matrices.

use std::cell::RefCell;

use mlx_primitives::ops::{self, Rotation, SoftmaxOptions, StateLayout};
use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Result, builtin, eval};

use super::cases::{Case, Inputs};

pub type Call = fn(&Array, &[Array]) -> Result<Array>;

pub const EPS: f32 = 1e-5;
pub const GROUP: i32 = 64;

pub fn rms_norm(case: &Case) -> Result<Inputs> {
    let ours: Call = |x, o| ops::rms_norm(x, Some(&o[0]), EPS);
    let inputs = Inputs::new(case.x()?, [case.weight()?], ours);
    Ok(inputs.against(|x, o| builtin::rms_norm(x, Some(&o[0]), EPS)))
}

pub fn layer_norm(case: &Case) -> Result<Inputs> {
    let ours: Call = |x, o| ops::layer_norm(x, Some(&o[0]), Some(&o[1]), EPS);
    let inputs = Inputs::new(case.x()?, [case.weight()?, case.bias()?], ours);
    Ok(inputs.against(|x, o| builtin::layer_norm(x, Some(&o[0]), Some(&o[1]), EPS)))
}

/// The sum is made by both, though the built-ins may overwrite it with the norm.
pub fn rms_norm_residual(case: &Case) -> Result<Inputs> {
    let x = case.x()?;
    let (written, others) = (2 * x.nbytes(), [case.x()?, case.weight()?]);
    let ours: Call = |x, o| Ok(ops::rms_norm_residual(x, &o[0], Some(&o[1]), EPS)?.1);
    let builtin: Call = |x, o| builtin::rms_norm(&x.add(&o[0])?, Some(&o[1]), EPS);
    Ok(Inputs::new(x, others, ours).writes(written).against(builtin))
}

/// As [`rms_norm_residual`].
pub fn layer_norm_residual(case: &Case) -> Result<Inputs> {
    let x = case.x()?;
    let (written, others) = (2 * x.nbytes(), [case.x()?, case.weight()?, case.bias()?]);
    let ours: Call =
        |x, o| Ok(ops::layer_norm_residual(x, &o[0], Some(&o[1]), Some(&o[2]), EPS)?.1);
    let builtin: Call = |x, o| builtin::layer_norm(&x.add(&o[0])?, Some(&o[1]), Some(&o[2]), EPS);
    Ok(Inputs::new(x, others, ours).writes(written).against(builtin))
}

pub fn softmax(case: &Case) -> Result<Inputs> {
    let inputs = Inputs::new(case.x()?, [], |x, _| ops::softmax(x));
    Ok(inputs.against(|x, _| builtin::softmax(x)))
}

pub fn masked_softmax(case: &Case) -> Result<Inputs> {
    const WINDOW: i32 = 512;
    let (x, variant) = (case.x()?, case.workload.variant);
    let (queries, keys) = (case.dim(-2) as usize, case.dim(-1) as usize);
    let seen = match variant {
        "causal" => x.nbytes() / keys * (queries + 1) / 2,
        "sliding" => x.nbytes() / keys * WINDOW as usize,
        _ => x.nbytes(),
    };
    let numbers = || case.ready(&case.workload.shape[2..], -4.0..4.0);
    let mask = match variant {
        "bool" => Some(numbers()?.greater(-3.0)?),
        "additive" => Some(numbers()?),
        _ => None,
    };
    eval(&mask)?;
    let read = seen + mask.as_ref().map_or(0, Array::nbytes);
    let (causal, window) = (variant == "causal", (variant == "sliding").then_some(WINDOW));
    let ours = move |x: &Array, _: &[Array]| {
        let mask = mask.as_ref();
        ops::masked_softmax(x, SoftmaxOptions { scale: 0.125, mask, causal, window })
    };
    Ok(Inputs::new(x, [], ours).reads(read))
}

pub fn logsumexp(case: &Case) -> Result<Inputs> {
    let x = case.x()?;
    let written = x.nbytes() / case.dim(-1) as usize;
    let inputs = Inputs::new(x, [], |x, _| ops::logsumexp(x, true)).writes(written);
    Ok(inputs.against(|x, _| x.logsumexp(-1, true)))
}

pub fn log_softmax(case: &Case) -> Result<Inputs> {
    let inputs = Inputs::new(case.x()?, [], |x, _| ops::log_softmax(x));
    Ok(inputs.against(|x, _| x.subtract(x.logsumexp(-1, true)?)))
}

pub fn cross_entropy(case: &Case) -> Result<Inputs> {
    let (rows, classes) = (case.dim(0), case.dim(1));
    let targets: Vec<i32> = (0..rows).map(|row| row * 7919 % classes).collect();
    let targets = Array::from_slice(&targets, &[rows])?;
    targets.eval()?;
    let (x, others) = (case.x()?, [targets, case.ready(&[rows], 0.5..1.5)?]);
    let ours: Call = |x, o| ops::cross_entropy(x, &o[0], Default::default());
    // As `mlx.nn.losses.cross_entropy` computes it.
    let composed: Call = |x, o| {
        let x = x.subtract(x.max(-1, true)?.stop_gradient()?)?;
        let score = x.take_along_axis(&o[0].expand_dims(&[-1])?, -1)?.squeeze(&[-1])?;
        x.logsumexp(-1, false)?.subtract(score)
    };
    if case.workload.variant.is_empty() {
        return Ok(Inputs::new(x, others, ours).writes(0).against(composed));
    }
    let gradient = |losses: Call| {
        move |x: &Array, o: &[Array]| {
            let losses = |p: &[Array]| Ok(vec![losses(&p[0], o)?]);
            Ok(vjp(losses, &[x], &[&o[1]])?.1.swap_remove(0))
        }
    };
    let inputs = Inputs::new(x, others, gradient(ours)).against(gradient(composed));
    // A gradient is of losses that have to be computed first.
    let read = inputs.read + inputs.x.nbytes();
    Ok(inputs.reads(read))
}

const BASE: Option<f32> = Some(10_000.0);
const POSITION: i32 = 100;

pub fn rope(case: &Case) -> Result<Inputs> {
    let (x, offset) = (case.x()?, Array::scalar(POSITION)?);
    offset.eval()?;
    let (read, dims) = (x.nbytes(), case.dim(-1));
    let pairs = case.workload.variant == "traditional";
    let ours = move |x: &Array, o: &[Array]| ops::rope(x, dims, pairs, BASE, 1.0, &o[0], None);
    let inputs = Inputs::new(x, [offset], ours).reads(read);
    Ok(inputs.against(move |x, o| builtin::rope(x, dims, pairs, BASE, 1.0, &o[0], None)))
}

/// The query area is as long as a head's keys, so that MLX's ops can take the state as one array of heads.
const LAYOUT: StateLayout = StateLayout { heads: 32, kv_heads: 8, head_dim: 64, capacity: 256 };

/// The shape is that of the step, `x` is the state.
pub fn rope_append(case: &Case) -> Result<Inputs> {
    let StateLayout { heads, kv_heads, head_dim, capacity } = LAYOUT;
    let x = case.ready(&[1, LAYOUT.rows(), head_dim], -4.0..4.0)?;
    let (time, step) = (case.dim(1), case.x()?);
    let bytes = step.nbytes();
    let inputs = Inputs::new(x, [step], |state, o| {
        ops::rope_append(state, &o[0], &LAYOUT, &Rotation::default(), POSITION, None)
    });
    // Queries and keys in one rope, then two writes: fewer ops than a rope for each.
    let builtin = move |state: &Array, o: &[Array]| {
        let vectors = o[0].reshape(&[1, time, heads + 2 * kv_heads, head_dim])?;
        let vectors = vectors.transpose(&[0, 2, 1, 3])?;
        let turned = vectors.slice_axis(1, ..heads + kv_heads)?;
        let turned = builtin::rope(&turned, head_dim, false, BASE, 1.0, POSITION, None)?;
        let keys = turned.slice_axis(1, heads..)?;
        let values = vectors.slice_axis(1, heads + kv_heads..)?;
        let at = POSITION..POSITION + time;
        state
            .reshape(&[1, 1 + 2 * kv_heads, capacity, head_dim])?
            .slice_update(&[&.., &(1..1 + kv_heads), &at], &keys)?
            .slice_update(&[&.., &(1 + kv_heads..1 + 2 * kv_heads), &at], &values)?
            .reshape(&[1, LAYOUT.rows(), head_dim])
    };
    Ok(inputs.reads(bytes).writes(bytes).against(builtin))
}

/// Many sequences, each with its own few positions. `x` is the step: the state is handed on from call to
/// call, as a decoder does, so that it is written in place.
pub fn rope_append_batched(case: &Case) -> Result<Inputs> {
    let layout = StateLayout { capacity: 16, ..LAYOUT };
    let state = RefCell::new(layout.zeros(case.dim(0), case.dtype)?);
    let mut inputs = Inputs::new(case.x()?, [], move |step, _| {
        let rotation = Rotation::default();
        let next = ops::rope_append(&state.borrow(), step, &layout, &rotation, 0, None)?;
        state.replace(next.clone());
        Ok(next)
    });
    inputs.builtin = None;
    Ok(inputs)
}

/// A matrix, its packed numbers, scales and biases, and the bits of a number, which the variant begins with.
fn quantized(case: &Case) -> Result<(Array, [Array; 3], i32)> {
    let (x, bits) = (case.x()?, if case.workload.variant.starts_with('4') { 4 } else { 8 });
    let (packed, scales, biases) = ops::quantize(&x, GROUP, bits)?;
    eval([&packed, &scales, &biases])?;
    Ok((x, [packed, scales, biases], bits))
}

pub fn quantize(case: &Case) -> Result<Inputs> {
    let (x, parts, bits) = quantized(case)?;
    let ours = move |x: &Array, _: &[Array]| Ok(ops::quantize(x, GROUP, bits)?.0);
    Ok(Inputs::new(x, [], ours).writes(parts.iter().map(Array::nbytes).sum()))
}

pub fn dequantize(case: &Case) -> Result<Inputs> {
    let (x, [packed, scales, biases], bits) = quantized(case)?;
    let ours =
        move |packed: &Array, o: &[Array]| ops::dequantize(packed, &o[0], &o[1], GROUP, bits);
    Ok(Inputs::new(packed, [scales, biases], ours).writes(x.nbytes()))
}
