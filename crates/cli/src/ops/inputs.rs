//! The inputs of each op: the arrays, our call, MLX's call, and the numbers of bytes and
//! operations.

use std::cell::RefCell;

use mlx_primitives::ops::{
    self, Activation, Attention, KvLayout, Linear, LinearWeight, MaskedSoftmax, QuantizedLinear,
    QuantizedMode, QuantizedRows, QuantizedWeight, Rope, RopeAppend,
};
use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Dtype, Result, builtin, eval};

use super::cases::{Case, Inputs};

pub type Call = fn(&Array, &[Array]) -> Result<Array>;

const EPS: f32 = 1e-5;
const GROUP: i32 = 64;

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

/// Counts the sum of `x` and the residual as written, because our op and the built-ins compute this
/// sum. But the built-ins may overwrite the sum with its norm.
pub fn rms_norm_residual(case: &Case) -> Result<Inputs> {
    let x = case.x()?;
    let (written, others) = (2 * x.nbytes(), [case.x()?, case.weight()?]);
    let ours: Call = |x, o| Ok(ops::rms_norm_residual(x, &o[0], Some(&o[1]), EPS)?.1);
    let builtin: Call = |x, o| builtin::rms_norm(&x.add(&o[0])?, Some(&o[1]), EPS);
    Ok(Inputs { written, ..Inputs::new(x, others, ours).against(builtin) })
}

/// Counts the sum of `x` and the residual as written, because our op and the built-ins compute this
/// sum. But the built-ins may overwrite the sum with its norm.
pub fn layer_norm_residual(case: &Case) -> Result<Inputs> {
    let x = case.x()?;
    let (written, others) = (2 * x.nbytes(), [case.x()?, case.weight()?, case.bias()?]);
    let ours: Call =
        |x, o| Ok(ops::layer_norm_residual(x, &o[0], Some(&o[1]), Some(&o[2]), EPS)?.1);
    let builtin: Call = |x, o| builtin::layer_norm(&x.add(&o[0])?, Some(&o[1]), Some(&o[2]), EPS);
    Ok(Inputs { written, ..Inputs::new(x, others, ours).against(builtin) })
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
        ops::masked_softmax(x, MaskedSoftmax { scale: 0.125, mask, causal, window })
    };
    Ok(Inputs { read, ..Inputs::new(x, [], ours) })
}

pub fn logsumexp(case: &Case) -> Result<Inputs> {
    let x = case.x()?;
    let written = x.nbytes() / case.dim(-1) as usize;
    let inputs = Inputs::new(x, [], |x, _| ops::logsumexp_keepdims(x));
    Ok(Inputs { written, ..inputs.against(|x, _| x.logsumexp_keepdims(-1)) })
}

pub fn log_softmax(case: &Case) -> Result<Inputs> {
    let inputs = Inputs::new(case.x()?, [], |x, _| ops::log_softmax(x));
    Ok(inputs.against(|x, _| x.subtract(x.logsumexp_keepdims(-1)?)))
}

pub fn cross_entropy(case: &Case) -> Result<Inputs> {
    let (rows, classes) = (case.dim(0), case.dim(1));
    let targets: Vec<i32> = (0..rows).map(|row| row * 7919 % classes).collect();
    let targets = Array::from_slice(&targets, [rows])?;
    targets.eval()?;
    let (x, others) = (case.x()?, [targets, case.ready(&[rows], 0.5..1.5)?]);
    let ours: Call = |x, o| ops::cross_entropy(x, &o[0], Default::default());
    // `mlx.nn.losses.cross_entropy` computes the losses in this way.
    let composed: Call = |x, o| {
        let x = x.subtract(x.max_keepdims(-1)?.stop_gradient()?)?;
        let score = x.take_along_axis(&o[0].expand_dims([-1])?, -1)?.squeeze([-1])?;
        x.logsumexp(-1)?.subtract(score)
    };
    if case.workload.variant.is_empty() {
        return Ok(Inputs { written: 0, ..Inputs::new(x, others, ours).against(composed) });
    }
    let gradient = |losses: Call| {
        move |x: &Array, o: &[Array]| {
            let losses = |p: &[Array]| Ok(vec![losses(&p[0], o)?]);
            Ok(vjp(|p| losses(&p), &[x], &[&o[1]])?.1.swap_remove(0))
        }
    };
    let inputs = Inputs::new(x, others, gradient(ours)).against(gradient(composed));
    // To compute the gradient, an implementation first computes the losses, which reads `x` once
    // more.
    Ok(Inputs { read: inputs.read + inputs.x.nbytes(), ..inputs })
}

const POSITION: i32 = 100;

pub fn rope(case: &Case) -> Result<Inputs> {
    let (x, offset) = (case.x()?, Array::scalar(POSITION)?);
    offset.eval()?;
    let (read, dims) = (x.nbytes(), case.dim(-1));
    let traditional = case.workload.variant == "traditional";
    fn turning<'a>(dims: i32, traditional: bool, o: &'a [Array]) -> Rope<'a> {
        Rope { dims, traditional, offset: (&o[0]).into(), ..Default::default() }
    }
    let ours = move |x: &Array, o: &[Array]| ops::rope(x, turning(dims, traditional, o));
    let builtin = move |x: &Array, o: &[Array]| builtin::rope(x, turning(dims, traditional, o));
    Ok(Inputs { read, ..Inputs::new(x, [offset], ours).against(builtin) })
}

/// A state has rows for the queries of a step, and `capacity` rows for the keys and for the values
/// of each key head. In this layout, the queries of all heads together also have `capacity` rows.
/// So MLX's ops can take the state as one array of heads with `capacity` rows each.
const LAYOUT: KvLayout = KvLayout { heads: 32, kv_heads: 8, head_dim: 64, capacity: 256 };

fn turning(position: i32) -> RopeAppend<'static> {
    Rope { dims: LAYOUT.head_dim, offset: position.into(), ..Default::default() }.into()
}

/// Appends a step (new positions) to a state. The workload's shape is the shape of the step, and
/// `x` is the state.
pub fn rope_append(case: &Case) -> Result<Inputs> {
    let KvLayout { heads, kv_heads, head_dim, capacity } = LAYOUT;
    let x = case.ready(&[1, LAYOUT.rows(), head_dim], -4.0..4.0)?;
    let (time, step) = (case.dim(1), case.x()?);
    let bytes = step.nbytes();
    let inputs = Inputs::new(x, [step], |state, o| {
        ops::rope_append(state, &o[0], LAYOUT, turning(POSITION))
    });
    // Rotates queries and keys with one call of `rope`, and then writes twice. This takes fewer ops
    // than separate calls of `rope`.
    let builtin = move |state: &Array, o: &[Array]| {
        let vectors = o[0].reshape([1, time, heads + 2 * kv_heads, head_dim])?;
        let vectors = vectors.transpose([0, 2, 1, 3])?;
        let turned = vectors.slice_axis(1, ..heads + kv_heads)?;
        let turned = builtin::rope(&turned, turning(POSITION).rope)?;
        let keys = turned.slice_axis(1, heads..)?;
        let values = vectors.slice_axis(1, heads + kv_heads..)?;
        let at = POSITION..POSITION + time;
        state
            .reshape([1, 1 + 2 * kv_heads, capacity, head_dim])?
            .slice_update((.., 1..1 + kv_heads, at.clone()), &keys)?
            .slice_update((.., 1 + kv_heads..1 + 2 * kv_heads, at), &values)?
            .reshape([1, LAYOUT.rows(), head_dim])
    };
    Ok(Inputs { read: bytes, written: bytes, ..inputs.against(builtin) })
}

/// Appends to many sequences with a few positions each. `x` is the step. Each call passes its state
/// to the next call, as a decoder does, so that MLX updates the state in place.
pub fn rope_append_batched(case: &Case) -> Result<Inputs> {
    let layout = KvLayout { capacity: 16, ..LAYOUT };
    let zeros = layout.zeros(case.dim(0), case.dtype)?;
    zeros.eval()?;
    let state = RefCell::new(zeros);
    let inputs = Inputs::new(case.x()?, [], move |step, _| {
        let next = ops::rope_append(&state.borrow(), step, layout, turning(0))?;
        let _ = state.replace(next.clone());
        Ok(next)
    });
    Ok(Inputs { builtin: None, ..inputs })
}

/// Quantizes `x`, or dequantizes if the variant ends with "back".
pub fn quantize(case: &Case) -> Result<Inputs> {
    let (x, variant) = (case.x()?, case.workload.variant);
    let bits = if variant.starts_with('4') { 4 } else { 8 };
    let (packed, scales, biases) = ops::quantize(&x, GROUP, bits)?;
    eval([&packed, &scales, &biases])?;
    if variant.ends_with("back") {
        let ours = move |x: &Array, o: &[Array]| ops::dequantize(x, &o[0], &o[1], GROUP, bits);
        return Ok(Inputs { written: x.nbytes(), ..Inputs::new(packed, [scales, biases], ours) });
    }
    let written = packed.nbytes() + scales.nbytes() + biases.nbytes();
    let ours = move |x: &Array, _: &[Array]| Ok(ops::quantize(x, GROUP, bits)?.0);
    Ok(Inputs { written, ..Inputs::new(x, [], ours) })
}

pub fn attention(case: &Case) -> Result<Inputs> {
    let number = |unit: &str| {
        let mut words = case.workload.variant.split(", ").filter_map(|it| it.strip_suffix(unit));
        words.next()?.parse().ok()
    };
    let (keys, bits) = (number(" keys").unwrap_or(case.dim(2)), number(" bits"));
    // The cache of a decoder has eight key/value heads, and some free space after the keys.
    let cache = [case.dim(0), 8, keys + 64, case.dim(3)];
    let mut parts = Vec::new();
    for range in [-2.0..2.0, -1.0..1.0] {
        let cache = case.ready(&cache, range)?;
        let arrays = match bits {
            Some(bits) => ops::quantize(&cache, GROUP, bits).map(|(p, s, b)| vec![p, s, b])?,
            None => vec![cache],
        };
        for array in arrays {
            let part = array.slice_axis(2, 0..keys)?;
            part.eval()?;
            parts.push(part);
        }
    }
    let added = case.workload.variant == "additive mask";
    if added {
        parts.push(case.ready(&[case.dim(2), keys], -2.0..2.0)?);
    }
    let causal = case.dim(2) > 1 && !added;
    let ours = move |x: &Array, parts: &[Array]| {
        let options = Attention { causal, mask: parts.get(2), ..Default::default() };
        match (parts, bits) {
            ([kp, ks, kb, vp, vs, vb], Some(bits)) => {
                let k = QuantizedRows { packed: kp, scales: ks, biases: kb };
                let v = QuantizedRows { packed: vp, scales: vs, biases: vb };
                ops::attention_quantized(x, k, v, bits, GROUP, Attention { mask: None, ..options })
            }
            _ => ops::attention(x, &parts[0], &parts[1], options),
        }
    };
    let x = case.ready(case.workload.shape, -2.0..2.0)?;
    // Attention is two products, and a causal mask skips half of their operations.
    let flops = if causal { 2.0 } else { 4.0 } * x.size() as f64 * f64::from(keys);
    // The attention weights are float32, and so are dequantized keys and values.
    let products = Some((flops, Dtype::Float32));
    // There are no gradients for packed keys and values.
    let frozen = if bits.is_some() { parts.len() } else { 0 };
    Ok(Inputs { products, frozen, ..Inputs::new(x, parts, ours) })
}

/// The length of the axis over which the products below sum, except that of `lora_linear`.
const K: i32 = 2048;

/// Sets the written bytes and the operations for the product of `x` and a matrix with `n` columns.
fn product(inputs: Inputs, n: i32) -> Inputs {
    let (x, n) = (&inputs.x, n as usize);
    let written = x.nbytes() / K as usize * n;
    Inputs { written, products: Some((2.0 * (x.size() * n) as f64, x.dtype())), ..inputs }
}

/// The number of columns of the result. A number or "up" at the end of the variant sets it;
/// otherwise it is [`K`].
fn columns(case: &Case) -> i32 {
    match case.workload.variant.rsplit(' ').next() {
        Some("up") => 8192,
        last => last.and_then(|number| number.parse().ok()).unwrap_or(K),
    }
}

pub fn linear(case: &Case) -> Result<Inputs> {
    let n = columns(case);
    // The weights are so small that the numbers of a chain keep their magnitude.
    let w = case.ready(&[n, K], -0.035..0.035)?;
    let bias = case.ready(&[n], -0.1..0.1)?;
    let residual = case.ready(&[1, case.dim(1), n], -0.1..0.1)?;
    let x = case.ready(case.workload.shape, -1.0..1.0)?;
    let (read, full) = (x.nbytes() + w.nbytes(), case.workload.variant.starts_with("bias"));
    let ours = move |x: &Array, o: &[Array]| {
        let mut options = Linear::default();
        if full {
            (options.bias, options.residual) = (Some(&o[1]), Some(&o[2]));
            options.activation = Some(Activation::Silu);
        }
        ops::linear(x, &o[0], options)
    };
    let builtin = move |x: &Array, o: &[Array]| {
        let y = builtin::matmul(x, &o[0].t()?)?;
        if !full {
            return Ok(y);
        }
        let y = y.add(&o[1])?;
        y.multiply(&y.sigmoid()?)?.add(&o[2])
    };
    let others = [w, bias, residual];
    // Only the matrix is trained.
    let inputs = Inputs { read, frozen: 2, ..Inputs::new(x, others, ours).against(builtin) };
    Ok(product(inputs, n))
}

pub fn matmul(case: &Case) -> Result<Inputs> {
    let n = columns(case);
    let x = case.ready(case.workload.shape, -1.0..1.0)?;
    let w = case.ready(&[K, n], -0.035..0.035)?;
    let inputs = Inputs::new(x, [w], |x, o| ops::matmul(x, &o[0]));
    Ok(product(inputs.against(|x, o| builtin::matmul(x, &o[0])), n))
}

/// The name, group size, bits and mode of each format.
pub const FORMATS: [(&str, i32, i32, QuantizedMode); 9] = [
    ("4-bit", 64, 4, QuantizedMode::Affine),
    ("2-bit", 64, 2, QuantizedMode::Affine),
    ("3-bit", 64, 3, QuantizedMode::Affine),
    ("5-bit", 64, 5, QuantizedMode::Affine),
    ("6-bit", 64, 6, QuantizedMode::Affine),
    ("8-bit", 64, 8, QuantizedMode::Affine),
    ("mxfp4", 32, 4, QuantizedMode::Mxfp4),
    ("mxfp8", 32, 8, QuantizedMode::Mxfp8),
    ("nvfp4", 16, 4, QuantizedMode::Nvfp4),
];

/// Returns a matrix in the format that the variant begins with, and the arrays that the matrix
/// consists of.
fn packed(case: &Case, n: i32, k: i32) -> Result<(QuantizedWeight, Vec<Array>)> {
    let named = FORMATS.iter().find(|format| case.workload.variant.starts_with(format.0));
    let (_, group, bits, mode) = *named.unwrap_or(&FORMATS[0]);
    let w = QuantizedWeight::quantize(&case.ready(&[n, k], -0.1..0.1)?, group, bits, mode)?;
    let parts = [Some(w.packed()), Some(w.scales()), w.biases()];
    let parts: Vec<_> = parts.into_iter().flatten().cloned().collect();
    eval(&parts)?;
    Ok((w, parts))
}

/// Multiplies `[rows, K]` by the transpose of `[n, K]`. The workload's shape is `[rows, K, n]`, or
/// `[rows, K]` if `n` equals [`K`].
pub fn quantized_linear(case: &Case) -> Result<Inputs> {
    let (rows, n) = (case.dim(0), case.dim(-1));
    let x = case.ready(&[rows, K], -1.0..1.0)?;
    let (w, parts) = packed(case, n, K)?;
    let ours =
        move |x: &Array, _: &[Array]| ops::quantized_linear(x, &w, QuantizedLinear::default());
    let frozen = parts.len();
    Ok(Inputs { frozen, ..product(Inputs::new(x, parts, ours), n) })
}

pub fn quantized_swiglu(case: &Case) -> Result<Inputs> {
    let n = case.dim(-1);
    let x = case.ready(&[1, K], -1.0..1.0)?;
    let gain = case.ready(&[K], 0.8..1.2)?;
    let ((gate, gate_parts), (up, up_parts)) = (packed(case, n, K)?, packed(case, n, K)?);
    let ours =
        move |x: &Array, _: &[Array]| ops::quantized_swiglu(x, &gate, &up, Some((&gain, EPS)));
    let inputs = product(Inputs::new(x, [gate_parts, up_parts].concat(), ours), n);
    let flops = 4.0 * f64::from(n) * f64::from(K);
    let frozen = inputs.others.len();
    Ok(Inputs { products: Some((flops, case.dtype)), frozen, ..inputs })
}

pub fn lora_linear(case: &Case) -> Result<Inputs> {
    const RANK: i32 = 8;
    let (k, variant) = (case.dim(1), case.workload.variant);
    let x = case.ready(case.workload.shape, -1.0..1.0)?;
    let a = case.ready(&[RANK, k], -0.1..0.1)?;
    let b = case.ready(&[k, RANK], -0.1..0.1)?;
    let (w, parts): (LinearWeight, _) = if variant.starts_with("plain") {
        let w = case.ready(&[k, k], -0.1..0.1)?;
        ((&w).into(), vec![w])
    } else {
        let (w, parts) = packed(case, k, k)?;
        (w.into(), parts)
    };
    let flops = 2.0 * x.size() as f64 * f64::from(k + 2 * RANK);
    let (base, frozen) = (w.clone(), parts.len());
    let ours = move |x: &Array, o: &[Array]| ops::lora_linear(x, &w, &o[0], &o[1], 2.0);
    let inputs = Inputs::new(x, [vec![a, b], parts].concat(), ours);
    let inputs = Inputs { products: Some((flops, case.dtype)), frozen, ..inputs };
    if !variant.ends_with("ops") {
        return Ok(inputs);
    }
    // Computes `x W^T + 2 (x A^T) B^T`. Our ops compute the three products, and two of MLX's ops
    // compute the rest.
    Ok(inputs.against(move |x, o| {
        let base = match &base {
            LinearWeight::Plain(w) => ops::linear(x, w, Linear::default())?,
            LinearWeight::Quantized(w) => ops::quantized_linear(x, w, QuantizedLinear::default())?,
        };
        let low = ops::linear(x, &o[0], Linear::default())?;
        base.add(ops::linear(&low, &o[1], Linear::default())?.multiply(2.0)?)
    }))
}
