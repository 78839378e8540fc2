//! The inputs and calls of the ops that multiply matrices.

use mlx_primitives::ops::{
    self, Activation, AttentionOptions, LinearOptions, LinearWeight, QuantizedMode,
    QuantizedOptions, QuantizedRows, QuantizedWeight,
};
use mlx_primitives::{Array, Dtype, Result, eval};

use super::cases::{Case, Inputs};
use super::inputs::{EPS, GROUP};

pub fn attention(case: &Case) -> Result<Inputs> {
    let number = |unit: &str| {
        let mut words = case.workload.variant.split(", ").filter_map(|it| it.strip_suffix(unit));
        words.next()?.parse().ok()
    };
    let (keys, bits) = (number(" keys").unwrap_or(case.dim(2)), number(" bits"));
    // A cache as a decoder has it: eight key-value heads, some room behind the keys.
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
    let options = AttentionOptions { causal: case.dim(2) > 1, ..Default::default() };
    let ours = move |x: &Array, parts: &[Array]| match (parts, bits) {
        ([kp, ks, kb, vp, vs, vb], Some(bits)) => {
            let k = QuantizedRows { packed: kp, scales: ks, biases: kb };
            let v = QuantizedRows { packed: vp, scales: vs, biases: vb };
            ops::attention_quantized(x, k, v, bits, GROUP, &options)
        }
        _ => ops::attention(x, &parts[0], &parts[1], &options),
    };
    // Two products; the causal rule halves them.
    let products = if options.causal { 1.0 } else { 2.0 };
    let x = case.ready(case.workload.shape, -2.0..2.0)?;
    let flops = 2.0 * products * x.size() as f64 * f64::from(keys);
    // The weights are float32, and so is what quantized keys and values stand for.
    Ok(Inputs::new(x, parts, ours).computes(flops, Dtype::Float32))
}

/// Inner extent of the products below.
const K: i32 = 2048;

/// `x` times a matrix of `n` columns.
fn product(inputs: Inputs, n: i32) -> Inputs {
    let (x, n) = (&inputs.x, n as usize);
    let (flops, dtype) = (2.0 * (x.size() * n) as f64, x.dtype());
    let written = x.nbytes() / K as usize * n;
    inputs.writes(written).computes(flops, dtype)
}

/// Columns of the result, which a variant ends with if they are not [`K`].
fn columns(case: &Case) -> i32 {
    match case.workload.variant.rsplit(' ').next() {
        Some("up") => 8192,
        last => last.and_then(|number| number.parse().ok()).unwrap_or(K),
    }
}

pub fn linear(case: &Case) -> Result<Inputs> {
    let n = columns(case);
    // Of a size that keeps a chain's numbers as they are.
    let w = case.ready(&[n, K], -0.035..0.035)?;
    let bias = case.ready(&[n], -0.1..0.1)?;
    let residual = case.ready(&[1, case.dim(1), n], -0.1..0.1)?;
    let x = case.ready(case.workload.shape, -1.0..1.0)?;
    let (read, full) = (x.nbytes() + w.nbytes(), case.workload.variant.starts_with("bias"));
    let ours = move |x: &Array, o: &[Array]| {
        let mut options = LinearOptions::default();
        if full {
            (options.bias, options.residual) = (Some(&o[2]), Some(&o[3]));
            options.activation = Some(Activation::Silu);
        }
        ops::linear(x, &o[0], &options)
    };
    let builtin = move |x: &Array, o: &[Array]| {
        let y = x.matmul(&o[1])?;
        if !full {
            return Ok(y);
        }
        let y = y.add(&o[2])?;
        y.multiply(&y.sigmoid()?)?.add(&o[3])
    };
    let others = [w.clone(), w.t()?, bias, residual];
    Ok(product(Inputs::new(x, others, ours).against(builtin), n).reads(read))
}

pub fn matmul(case: &Case) -> Result<Inputs> {
    let n = columns(case);
    let x = case.ready(case.workload.shape, -1.0..1.0)?;
    let w = case.ready(&[K, n], -0.035..0.035)?;
    let inputs = Inputs::new(x, [w], |x, o| ops::matmul(x, &o[0], false));
    Ok(product(inputs.against(|x, o| x.matmul(&o[0])), n))
}

/// Name, group size, bits.
pub const FORMATS: [(&str, i32, i32, QuantizedMode); 6] = [
    ("4-bit", 64, 4, QuantizedMode::Affine),
    ("2-bit", 64, 2, QuantizedMode::Affine),
    ("3-bit", 64, 3, QuantizedMode::Affine),
    ("6-bit", 64, 6, QuantizedMode::Affine),
    ("8-bit", 64, 8, QuantizedMode::Affine),
    ("mxfp4", 32, 4, QuantizedMode::Mxfp4),
];

/// A matrix in the format that the variant begins with, and its arrays.
fn packed(case: &Case, n: i32, k: i32) -> Result<(QuantizedWeight, Vec<Array>)> {
    let named = FORMATS.iter().find(|format| case.workload.variant.starts_with(format.0));
    let (_, group, bits, mode) = *named.unwrap_or(&FORMATS[0]);
    let w = QuantizedWeight::quantize(&case.ready(&[n, k], -0.1..0.1)?, group, bits, mode)?;
    let parts = [Some(w.packed()), Some(w.scales()), w.biases()];
    let parts: Vec<_> = parts.into_iter().flatten().cloned().collect();
    eval(&parts)?;
    Ok((w, parts))
}

/// `[rows, K]` with `[n, K]`; the shape has no `n` if it is [`K`].
pub fn quantized_linear(case: &Case) -> Result<Inputs> {
    let (rows, n) = (case.dim(0), case.dim(-1));
    let x = case.ready(&[rows, K], -1.0..1.0)?;
    let (w, parts) = packed(case, n, K)?;
    let ours =
        move |x: &Array, _: &[Array]| ops::quantized_linear(x, &w, &QuantizedOptions::default());
    Ok(product(Inputs::new(x, parts, ours), n))
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
    Ok(inputs.computes(flops, case.dtype))
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
    let base = w.clone();
    let ours = move |x: &Array, o: &[Array]| ops::lora_linear(x, &w, &o[0], &o[1], 2.0);
    let inputs = Inputs::new(x, [vec![a, b], parts].concat(), ours).computes(flops, case.dtype);
    if !variant.ends_with("ops") {
        return Ok(inputs);
    }
    // `x W^T + 2 (x A^T) B^T`, an op of ours for each product, two of MLX's for the rest.
    Ok(inputs.against(move |x, o| {
        let base = match &base {
            LinearWeight::Plain(w) => ops::linear(x, w, &LinearOptions::default())?,
            LinearWeight::Quantized(w) => {
                ops::quantized_linear(x, w, &QuantizedOptions::default())?
            }
        };
        let low = ops::linear(x, &o[0], &LinearOptions::default())?;
        base.add(ops::linear(&low, &o[1], &LinearOptions::default())?.multiply(2.0)?)
    }))
}
