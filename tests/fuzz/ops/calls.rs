//! Draws calls of this crate's primitives.

use mlx_primitives::ops::{self, *};
use mlx_primitives::{Array, Dtype, Result};

use super::Call;
use crate::arrays::Draw;

pub const OURS: &[Call] = &[
    ("an activation", |d| {
        let shape = d.shape(0..=4);
        let dtype = d.floating();
        let f = d.of_elements(1);
        f(&[d.array(&shape, dtype)?])
    }),
    ("an activation of two", |d| {
        let shape = d.shape(0..=4);
        let (narrow, dtype) = (d.narrower(&shape), d.floating());
        let f = d.of_elements(2);
        let (a, b) = (d.array(&shape, dtype)?, d.array(&narrow, dtype)?);
        f(&if d.rng.bool() { [a, b] } else { [b, a] })
    }),
    ("affine", |d| {
        let (shape, dtype) = (d.shape(1..=4), d.floating());
        let x = d.array(&shape, dtype)?;
        let scale = vector_or_scalar(d, &shape, dtype)?;
        one(affine(&x, &scale, &vector_or_scalar(d, &shape, dtype)?))
    }),
    ("attention", |d| {
        let (q, k, v) = attended(d)?;
        let given = Given::draw(d, q.shape(), k.shape())?;
        one(attention(&q, &k, &v, given.options(d)))
    }),
    ("attention_quantized", |d| {
        let (bits, group_size) = (*d.one(&[4, 8]), *d.one(&[32, 64]));
        let (batch, heads, keys) = (d.rng.i32(1..3), d.rng.i32(1..3), d.rng.i32(1..20));
        let (queries, size) = (d.rng.i32(1..5), group_size * d.rng.i32(1..3));
        let dtype = d.floating();
        let q = d.array(&[batch, 2 * heads, queries, size], dtype)?;
        let k = rows(d, &[batch, heads, keys, size], [bits, group_size], dtype)?;
        let v = rows(d, &[batch, heads, keys, size], [bits, group_size], dtype)?;
        let given = Given::draw(d, q.shape(), &[batch, heads, keys, size])?;
        let (bits, group_size) = (d.int(bits), d.int(group_size));
        let options = given.options(d);
        one(attention_quantized(&q, of(&k), of(&v), bits, group_size, options))
    }),
    ("cross_entropy", |d| {
        let (shape, dtype) = (d.shape(1..=3), d.floating());
        let Some((&classes, rows)) = shape.split_last() else { return Ok(Vec::new()) };
        let integer = *d.one(&[Dtype::Int32, Dtype::Int64, Dtype::Uint8, Dtype::Uint32]);
        let targets = d.indices(rows, 0, classes, integer)?;
        let ignore_index = d.rng.bool().then(|| d.int(1));
        let smoothing = *d.one(&[0.0, 0.1]);
        let label_smoothing = d.float(smoothing);
        let logits = d.array(&shape, dtype)?;
        one(cross_entropy(&logits, &targets, CrossEntropy { label_smoothing, ignore_index }))
    }),
    ("norms", |d| {
        let (shape, dtype) = (d.shape(1..=4), d.floating());
        let (x, eps) = (d.array(&shape, dtype)?, d.float(1e-5));
        let last = shape.last().copied().unwrap_or(1);
        let weight = d.rng.bool().then(|| d.array(&[last], dtype)).transpose()?;
        let bias = d.rng.bool().then(|| d.array(&[last], dtype)).transpose()?;
        let (weight, bias) = (weight.as_ref(), bias.as_ref());
        match d.rng.u8(..4) {
            0 => one(rms_norm(&x, weight, eps)),
            1 => one(layer_norm(&x, weight, bias, eps)),
            2 => two(rms_norm_residual(&x, &d.array(&shape, dtype)?, weight, eps)),
            _ => two(layer_norm_residual(&x, &d.array(&shape, dtype)?, weight, bias, eps)),
        }
    }),
    ("linear", |d| {
        let (shape, dtype, n) = (d.shape(1..=3), d.floating(), d.dim());
        let k = shape.last().copied().unwrap_or(1);
        let mut wide = shape.clone();
        wide.pop();
        wide.push(n);
        let (x, w) = (d.array(&shape, dtype)?, d.array(&[n, k], dtype)?);
        let bias = d.rng.bool().then(|| d.array(&[n], dtype)).transpose()?;
        let residual = d.rng.bool().then(|| d.array(&wide, dtype)).transpose()?;
        let kinds = [Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu];
        let activation = d.rng.bool().then(|| *d.one(&kinds));
        let (bias, residual) = (bias.as_ref(), residual.as_ref());
        one(ops::linear(&x, &w, Linear { bias, activation, residual }))
    }),
    ("matmul", |d| {
        let (m, n, k, dtype) = (d.dim(), d.dim(), d.dim(), d.floating());
        let (a, b) = (d.shape(0..=1), d.rng.bool());
        let transposed = d.rng.bool();
        let left = [&a[..], &[m, k]].concat();
        let right = if transposed { [n, k] } else { [k, n] };
        let right = if b { [&a[..], &right].concat() } else { right.to_vec() };
        let matmul = if transposed { ops::matmul_nt } else { ops::matmul };
        one(matmul(&d.array(&left, dtype)?, &d.array(&right, dtype)?))
    }),
    ("reductions over the last axis or all", |d| {
        let (shape, dtype, keepdims) = (d.shape(0..=4), d.floating(), d.rng.bool());
        let axes = *d.one(&[Some(-1), None]);
        let x = d.array(&shape, dtype)?;
        type Reduce = fn(&Array, Option<i32>) -> Result<Array>;
        let all: [[Reduce; 2]; 5] = [
            [ops::sum, ops::sum_keepdims],
            [ops::mean, ops::mean_keepdims],
            [ops::max, ops::max_keepdims],
            [ops::sum_of_squares, ops::sum_of_squares_keepdims],
            [ops::norm, ops::norm_keepdims],
        ];
        let f = d.one(&all)[usize::from(keepdims)];
        match d.rng.u8(..7) {
            0 => one(if keepdims { ops::logsumexp_keepdims(&x) } else { ops::logsumexp(&x) }),
            1 => one(ops::log_softmax(&x)),
            _ => one(f(&x, axes)),
        }
    }),
    ("lora_linear", |d| {
        let (rows, n, k, rank, dtype) = (d.dim(), d.dim(), d.dim(), d.rng.i32(1..5), d.floating());
        let base = LinearWeight::Plain(d.array(&[n, k], dtype)?);
        let (a, b) = (d.array(&[rank, k], dtype)?, d.array(&[n, rank], dtype)?);
        let x = d.array(&[rows, k], dtype)?;
        one(lora_linear(&x, &base, &a, &b, d.float(2.0)))
    }),
    ("masked_softmax", |d| {
        let (shape, dtype) = (d.shape(1..=4), d.floating());
        let narrow = d.narrower(&shape);
        let kind = if d.rng.bool() { Dtype::Bool } else { dtype };
        let mask = d.rng.bool().then(|| d.array(&narrow, kind)).transpose()?;
        let window = d.rng.bool().then(|| d.rng.i32(1..9)).map(|window| d.int(window));
        let (scale, causal) = (d.float(0.5), d.rng.bool());
        let x = d.array(&shape, dtype)?;
        one(masked_softmax(&x, MaskedSoftmax { scale, mask: mask.as_ref(), causal, window }))
    }),
    ("quantize", |d| {
        let (group_size, bits) = (*d.one(&[32, 64]), *d.one(&[2, 3, 4, 5, 6, 8]));
        let (rows, dtype) = (d.dim(), d.floating());
        let x = d.array(&[rows, 2 * group_size], dtype)?;
        let (packed, scales, biases) = quantize(&x, d.int(group_size), d.int(bits))?;
        let back = dequantize(&packed, &scales, &biases, d.int(group_size), d.int(bits))?;
        Ok(vec![back])
    }),
    ("dequantize", |d| {
        let (group_size, bits) = (*d.one(&[32, 64]), *d.one(&[2, 3, 4, 5, 6, 8]));
        let (rows, dtype) = (d.rng.i32(1..6), d.floating());
        let packed = d.array(&[rows, 2 * group_size / 32 * bits], Dtype::Uint32)?;
        let (scales, biases) = (d.array(&[rows, 2], dtype)?, d.array(&[rows, 2], dtype)?);
        one(dequantize(&packed, &scales, &biases, d.int(group_size), d.int(bits)))
    }),
    ("quantized products", |d| {
        let mode = *d.one(&QuantizedMode::ALL);
        let affine = (*d.one(&[32, 64]), *d.one(&[2, 3, 4, 5, 6, 8]));
        let (group_size, bits) = mode.only_layout().unwrap_or(affine);
        let (rows, n, k, dtype) = (d.dim(), d.rng.i32(1..40), 64 * d.rng.i32(1..3), d.floating());
        let (group_size, bits) = (d.int(group_size), d.int(bits));
        let w = |d: &mut Draw| {
            let w = d.array(&[n, k], dtype)?;
            QuantizedWeight::quantize(&w, group_size, bits, mode)
        };
        let (first, second, x) = (w(d)?, w(d)?, d.array(&[rows, k], dtype)?);
        let bias = d.rng.bool().then(|| d.array(&[n], dtype)).transpose()?;
        let residual = d.rng.bool().then(|| d.array(&[rows, n], dtype)).transpose()?;
        let norm = d.rng.bool().then(|| d.array(&[k], dtype)).transpose()?;
        let eps = d.float(1e-5);
        let norm = norm.as_ref().map(|weight| (weight, eps));
        let (bias, residual) = (bias.as_ref(), residual.as_ref());
        let ids = d.indices(&[3], 0, n, Dtype::Int32)?;
        match d.rng.u8(..5) {
            0 => one(quantized_linears(&x, &[&first, &second], norm)),
            1 => one(quantized_swiglu(&x, &first, &second, norm)),
            2 => one(first.take_rows(&ids, dtype)),
            _ => one(quantized_linear(&x, &first, QuantizedLinear { bias, residual, norm })),
        }
    }),
    ("rope", |d| {
        let (shape, dtype, traditional) = (d.shape(3..=4), d.floating(), d.rng.bool());
        let features = shape.last().copied().unwrap_or(2);
        let dims = d.int(features - features % 2);
        let freqs = d.rng.bool().then(|| d.array(&[features / 2], Dtype::Float32)).transpose()?;
        let base = freqs.is_none().then(|| d.float(1e4));
        let offsets = d.indices(&[shape[0]], 0, 50, Dtype::Int32)?;
        let (scale, offset, x) = (d.float(1.0), d.int(7), d.array(&shape, dtype)?);
        let offset = if d.rng.bool() { Offset::Each(&offsets) } else { Offset::Position(offset) };
        one(ops::rope(
            &x,
            ops::Rope { dims, traditional, base, scale, offset, freqs: freqs.as_ref() },
        ))
    }),
    ("rope_append", |d| {
        let (heads, kv_heads, head_dim) = (d.rng.i32(1..5), d.rng.i32(1..3), 2 * d.rng.i32(1..9));
        let right = KvLayout { heads, kv_heads, head_dim, capacity: d.rng.i32(1..12) };
        let (batch, time, dtype) = (d.rng.i32(1..3), d.rng.i32(0..6), d.floating());
        let state = d.array(&[batch, right.rows(), head_dim], dtype)?;
        let qkv = d.array(&[batch, time, (heads + 2 * kv_heads) * head_dim], dtype)?;
        let layout = KvLayout {
            heads: d.int(right.heads),
            kv_heads: d.int(right.kv_heads),
            head_dim: d.int(right.head_dim),
            capacity: d.int(right.capacity),
        };
        let freqs = d.rng.bool().then(|| d.array(&[head_dim / 2], Dtype::Float32)).transpose()?;
        let rope = Rope {
            dims: d.int(head_dim),
            traditional: d.rng.bool(),
            base: freqs.is_none().then(|| d.float(1e4)),
            scale: d.float(1.0),
            freqs: freqs.as_ref(),
            ..Default::default()
        };
        let multiplier = d.float(1.0);
        let (last, far) = ((right.capacity - time).max(0), d.rng.bool());
        let slot = d.rng.i32(0..=last);
        let slot = d.int(slot);
        let slots = far.then_some(Offset::Position(slot));
        let offset = if far { d.int(7) } else { slot };
        let rope = Rope { offset: offset.into(), ..rope };
        let rotation = RopeAppend { rope, multiplier, slots };
        let after = rope_append(&state, &qkv, layout, rotation)?;
        Ok(vec![layout.keys(&after, d.int(1))?, layout.queries(&after, d.int(0))?, after])
    }),
];

fn one(result: Result<Array>) -> Result<Vec<Array>> {
    Ok(vec![result?])
}

fn two(result: Result<(Array, Array)>) -> Result<Vec<Array>> {
    let (a, b) = result?;
    Ok(vec![a, b])
}

fn vector_or_scalar(d: &mut Draw, shape: &[i32], dtype: Dtype) -> Result<Array> {
    let last = shape.last().copied().unwrap_or(1);
    if d.rng.bool() { d.array(&[], dtype) } else { d.array(&[last], dtype) }
}

/// Queries, keys and values.
fn attended(d: &mut Draw) -> Result<(Array, Array, Array)> {
    let (batch, kv_heads, group) = (d.rng.i32(1..3), d.rng.i32(1..3), d.rng.i32(1..3));
    let (queries, keys) = (*d.one(&[0, 1, 2, 3, 9]), *d.one(&[0, 1, 2, 5, 17, 33]));
    let (size, dtype) = (*d.one(&[1, 2, 8, 16, 31, 64]), d.floating());
    let q = d.array(&[batch, kv_heads * group, queries, size], dtype)?;
    let k = d.array(&[batch, kv_heads, keys, size], dtype)?;
    let v = d.array(&[batch, kv_heads, keys, size], dtype)?;
    Ok((q, k, v))
}

/// The optional inputs of attention. A case may have no mask and no sinks.
struct Given {
    mask: Option<Array>,
    sinks: Option<Array>,
}

impl Given {
    fn draw(d: &mut Draw, q: &[i32], k: &[i32]) -> Result<Self> {
        let (&[batch, heads, queries, _], &[_, _, keys, _]) = (q, k) else {
            return Ok(Self { mask: None, sinks: None });
        };
        let shape = d.narrower(&[batch, heads, queries, keys]);
        let kind = if d.rng.bool() { Dtype::Bool } else { d.floating() };
        let mask = d.rng.bool().then(|| d.array(&shape, kind)).transpose()?;
        let dtype = d.floating();
        let sinks = (d.rng.u8(..3) == 0).then(|| d.array(&[heads], dtype)).transpose()?;
        Ok(Self { mask, sinks })
    }

    fn options(&self, d: &mut Draw) -> Attention<'_> {
        Attention {
            scale: d.rng.bool().then(|| d.float(0.3)),
            causal: d.rng.bool(),
            window: d.rng.bool().then(|| d.int(3)),
            mask: self.mask.as_ref(),
            soft_cap: (d.rng.u8(..3) == 0).then(|| d.float(5.0)),
            sinks: self.sinks.as_ref(),
            dropped: d.rng.i32(..1000),
        }
    }
}

/// Draws packed codes, scales and biases.
fn rows(
    d: &mut Draw,
    shape: &[i32; 4],
    [bits, group]: [i32; 2],
    dtype: Dtype,
) -> Result<[Array; 3]> {
    let &[batch, heads, keys, size] = shape;
    let packed = d.array(&[batch, heads, keys, size * bits / 32], Dtype::Uint32)?;
    let groups = [batch, heads, keys, size / group];
    Ok([packed, d.array(&groups, dtype)?, d.array(&groups, dtype)?])
}

fn of([packed, scales, biases]: &[Array; 3]) -> QuantizedRows<'_> {
    QuantizedRows { packed, scales, biases }
}
