//! Products of matrices, with plain and packed weights, and attention.

use mlx_primitives::ops::{
    self, Activation, Attention, Linear, LinearWeight, QuantizedLinear, QuantizedMode,
    QuantizedRows, QuantizedWeight,
};
use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Dtype, Result};

use super::inputs::wave;
use super::{Case, Cases};

pub fn all() -> Vec<Case> {
    let parts = [linear(), lora(), quantize(), attention(), attention_grad()];
    parts.into_iter().chain(quantized()).flat_map(|cases| cases.all).collect()
}

fn linear() -> Cases {
    let mut cases = Cases::of("linear");
    for (number, [m, n, k]) in [
        [1, 9, 70],
        [2, 33, 129],
        [3, 41, 4],
        [7, 5, 600],
        [8, 64, 31],
        [9, 31, 33],
        [12, 65, 40],
        [33, 40, 18],
        [65, 70, 7],
        [1, 40, 4100],
    ]
    .into_iter()
    .enumerate()
    {
        cases.add(format_args!("{m} x {n} x {k}"), move || {
            let (x, w) = (wave(&[m, k], 1)?, wave(&[n, k], 2)?);
            let (bias, residual) = (wave(&[n], 3)?, wave(&[m, n], 4)?);
            let kinds =
                [Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu];
            let options = Linear {
                bias: Some(&bias),
                activation: Some(kinds[number % 4]),
                residual: Some(&residual),
            };
            let plain = Linear::default();
            Ok(vec![ops::linear(&x, &w, plain)?, ops::linear(&x, &w, options)?])
        });
        cases.add(format_args!("batches of {m} x {n} x {k}"), move || {
            let x = wave(&[2, m, k], 1)?;
            Ok(vec![
                ops::matmul_nt(&x, &wave(&[2, n, k], 2)?)?,
                ops::matmul(&x, &wave(&[2, k, n], 2)?)?,
                ops::matmul(&wave(&[m, k], 3)?, &wave(&[k, n], 4)?)?,
            ])
        });
    }
    cases
}

fn lora() -> Cases {
    let mut cases = Cases::of("lora");
    for [rows, n, k, rank] in [[1, 7, 9, 3], [9, 130, 16, 4], [17, 40, 8, 1]] {
        cases.add(format_args!("{rows} x {n} x {k} of rank {rank}"), move || {
            let base = LinearWeight::Plain(wave(&[n, k], 1)?);
            let (a, b) = (wave(&[rank, k], 2)?, wave(&[n, rank], 3)?);
            Ok(vec![ops::lora_linear(&wave(&[rows, k], 4)?, &base, &a, &b, 1.5)?])
        });
    }
    cases
}

fn quantize() -> Cases {
    let mut cases = Cases::of("quantize");
    for bits in [2, 3, 4, 5, 6, 8] {
        for (group, shape) in [(32, [3, 96]), (64, [1, 64]), (128, [5, 640])] {
            cases.add(format_args!("{bits} bits, {group} of {shape:?}"), move || {
                let (packed, scales, biases) = ops::quantize(&wave(&shape, 1)?, group, bits)?;
                Ok(vec![packed, scales, biases])
            });
            let packed = move || -> Result<(Array, Array, Array)> {
                let codes: Vec<u32> = (1..=(shape[0] * shape[1] * bits / 32) as u32)
                    .map(|i| i.wrapping_mul(2_654_435_769))
                    .collect();
                let packed = Array::from_slice(&codes, [shape[0], shape[1] * bits / 32])?;
                let groups = [shape[0], shape[1] / group];
                Ok((packed, wave(&groups, 1)?, wave(&groups, 2)?))
            };
            cases.add(format_args!("back from {bits} bits, {group} of {shape:?}"), move || {
                let (packed, scales, biases) = packed()?;
                Ok(vec![ops::dequantize(&packed, &scales, &biases, group, bits)?])
            });
            cases.add(format_args!("rows of {bits} bits, {group} of {shape:?}"), move || {
                let (packed, scales, biases) = packed()?;
                let mode = QuantizedMode::Affine;
                let dtype = scales.dtype();
                let w = QuantizedWeight::new(packed, scales, Some(biases), group, bits, mode)?;
                let rows = shape[0];
                let ids = [rows - 1, 0, rows / 2, rows, i32::MAX].map(i32::unsigned_abs);
                Ok(vec![w.take_rows(&Array::from_slice(&ids, 5)?, dtype)?])
            });
        }
    }
    cases
}

fn quantized() -> [Cases; 2] {
    let mut cases = Cases::of("quantized_matmul");
    let mut transposed = Cases::of("quantized_transposed");
    let formats = [
        (QuantizedMode::Affine, 2, 32),
        (QuantizedMode::Affine, 3, 64),
        (QuantizedMode::Affine, 4, 64),
        (QuantizedMode::Affine, 5, 64),
        (QuantizedMode::Affine, 6, 32),
        (QuantizedMode::Affine, 8, 128),
        (QuantizedMode::Mxfp4, 4, 32),
        (QuantizedMode::Mxfp8, 8, 32),
        (QuantizedMode::Nvfp4, 4, 16),
        (QuantizedMode::KQuant, 4, 32),
        (QuantizedMode::KQuant, 5, 32),
        (QuantizedMode::KQuant, 6, 16),
    ];
    /// Sizes [rows, n, k] for the kernels that compute one, two, four or eight rows at a time, and
    /// for tiles of 32 and of 64 rows.
    const SIZES: [[i32; 3]; 6] =
        [[1, 19, 128], [2, 21, 128], [3, 40, 256], [7, 24, 128], [9, 33, 128], [37, 70, 128]];
    for (number, (mode, bits, group)) in formats.into_iter().enumerate() {
        // In these cases the kernel copies a long row to threadgroup memory in several parts.
        let long = if number == 2 { &[[1, 5, 4224], [2, 5, 2176]][..] } else { &[] };
        for &[rows, n, k] in SIZES.iter().chain(long) {
            let in_blocks = mode == QuantizedMode::KQuant;
            let k = if in_blocks { k.max(256) } else { k };
            let name = format!("{rows} x {n} x {k}, {mode:?} {bits}");
            let weight = move |n: i32, seed| -> Result<QuantizedWeight> {
                if in_blocks {
                    return k_quants(bits, group, [n, k], seed as u32);
                }
                let w = wave(&[n, k], seed)?;
                mlx_primitives::simulator::without_metal(|| {
                    let weight = QuantizedWeight::quantize(&w, group, bits, mode)?;
                    let parts = [Some(weight.packed()), Some(weight.scales()), weight.biases()];
                    parts.into_iter().flatten().try_for_each(Array::eval)?;
                    Ok(weight)
                })
            };
            // The gradient is a sum of two products. The kernel of the second one adds the first.
            transposed.add(&name, move || {
                let (x, w, second) = (wave(&[rows, k], 1)?, weight(n, 2)?, weight(n + 3, 8)?);
                let g = wave(&[rows, 2 * n + 3], 6)?;
                let both =
                    |x: Vec<Array>| Ok(vec![ops::quantized_linears(&x[0], &[&w, &second], None)?]);
                Ok(vjp(both, &[&x], &[&g])?.1)
            });
            cases.add(&name, move || {
                let (x, w) = (wave(&[rows, k], 1)?, weight(n, 2)?);
                let (bias, residual) = (wave(&[n], 3)?, wave(&[rows, n], 4)?);
                let norm = wave(&[k], 5)?;
                let all = QuantizedLinear {
                    bias: Some(&bias),
                    residual: Some(&residual),
                    norm: (number % 2 == 0).then_some((&norm, 0.01)),
                };
                let plain = QuantizedLinear::default();
                let second = weight(n + 3, 6)?;
                Ok(vec![
                    ops::quantized_linear(&x, &w, plain)?,
                    ops::quantized_linear(&x, &w, all)?,
                    ops::quantized_linears(&x, &[&w, &second, &w], Some((&norm, 0.01)))?,
                    ops::quantized_swiglu(&x, &w, &weight(n, 7)?, Some((&norm, 0.01)))?,
                ])
            });
        }
    }
    [cases, transposed]
}

/// A random matrix of K-quants. It is built from bytes, because no function packs weights in this
/// format.
fn k_quants(bits: i32, group: i32, [n, k]: [i32; 2], seed: u32) -> Result<QuantizedWeight> {
    let (words, blocks) = (n * (k / 32 * bits), n * (k / 256));
    let codes: Vec<u32> =
        (1..=words as u32).map(|i| (i + seed).wrapping_mul(2_654_435_769)).collect();
    // Scales are multiples of 2^-9 and biases multiples of -2^-6. With 6 bits, scales are multiples
    // of 2^-12.
    let (steps, factor) = match bits {
        6 => ([0, 0x0c, 0, 0], 4),
        _ => ([0, 0x18, 0, 0xa4], 1),
    };
    let integers = (0..20 * blocks as u32).map(|i| match i % 20 {
        at @ 0..4 => steps[at as usize],
        _ => (factor * ((37 * i + seed) % 64)) as u8,
    });
    let scales: Vec<u8> = integers.collect();
    let packed = Array::from_slice(&codes, [n, k / 32 * bits])?;
    let scales = Array::from_slice(&scales, [n, k / 256 * 20])?;
    QuantizedWeight::new(packed, scales, None, group, bits, QuantizedMode::KQuant)
}

/// The arguments of attention: the numbers of query heads and key/value heads, of queries and of
/// keys; the features of a head; the bits of quantized keys and values; and a number that selects
/// options.
struct Attended {
    heads: [i32; 2],
    queries: i32,
    keys: i32,
    dim: i32,
    bits: i32,
    rules: i32,
}

impl Attended {
    fn mask(&self) -> Result<Option<Array>> {
        let &Self { heads: [heads, _], queries, keys, rules, .. } = self;
        Ok(match rules % 3 {
            1 => Some(wave(&[heads, queries, keys], 2)?.greater(-1.2)?),
            2 => Some(wave(&[2, 1, queries, keys], 2)?),
            _ => None,
        })
    }

    fn options<'a>(&self, mask: Option<&'a Array>, sinks: &'a Array) -> Attention<'a> {
        let &Self { keys, dim, rules, .. } = self;
        Attention {
            scale: Some((dim as f32).sqrt().recip()),
            causal: rules % 2 == 0,
            window: (rules % 4 == 0).then_some(keys / 2 + 1),
            mask,
            soft_cap: (rules % 5 == 1).then_some(3.0),
            sinks: (rules % 3 != 0 || rules % 2 != 0).then_some(sinks),
            dropped: 0,
        }
    }

    /// The gradients of queries, keys and values, and of an additive mask and sinks if the case has
    /// them.
    fn gradients(&self) -> Result<Vec<Array>> {
        let &Self { heads: [heads, kv_heads], queries, keys, dim, .. } = self;
        let (mask, sinks) = (self.mask()?, wave(&[heads], 3)?);
        // A small scale gives all keys similar attention weights. If one weight were nearly 1, the
        // terms of its derivative would cancel.
        let scale = Some((dim as f32).recip());
        let options = Attention { scale, ..self.options(mask.as_ref(), &sinks) };
        // The heads are not contiguous in memory, so the kernels must use strides.
        let of = |heads: i32, rows: i32, dim: i32, seed: usize| {
            wave(&[2, rows, heads, dim], seed)?.transpose([0, 2, 1, 3])
        };
        let (q, k) = (of(heads, queries, dim, 1)?, of(kv_heads, keys, dim, 4)?);
        let (v, cotangent) = (of(kv_heads, keys, dim - 3, 5)?, of(heads, queries, dim - 3, 6)?);
        let additive = options.mask.filter(|mask| mask.dtype() != Dtype::Bool);
        let more = additive.into_iter().chain(options.sinks);
        let inputs: Vec<&Array> = [&q, &k, &v].into_iter().chain(more).collect();
        let attended = |x: Vec<Array>| {
            let mask = if additive.is_some() { x.get(3) } else { options.mask };
            let sinks = x.last().filter(|_| options.sinks.is_some());
            ops::attention(&x[0], &x[1], &x[2], Attention { mask, sinks, ..options })
        };
        Ok(vjp(attended, &inputs, &[&cotangent])?.1)
    }

    fn call(&self) -> Result<Vec<Array>> {
        let &Self { heads: [heads, kv_heads], queries, keys, dim, bits, .. } = self;
        let q = wave(&[2, heads, queries, dim], 1)?;
        let (mask, sinks) = (self.mask()?, wave(&[heads], 3)?);
        let options = self.options(mask.as_ref(), &sinks);
        let (k, v) = ([2, kv_heads, keys, dim], [2, kv_heads, keys, dim]);
        if bits == 0 {
            // The heads are not contiguous in memory, so the kernels must use strides.
            let [b, h, n, d] = k;
            let k = wave(&[b, n, h, d], 4)?.transpose([0, 2, 1, 3])?;
            return Ok(vec![ops::attention(&q, &k, &wave(&v, 5)?, options)?]);
        }
        let rows = |shape: &[i32; 4], seed| -> Result<[Array; 3]> {
            mlx_primitives::simulator::without_metal(|| {
                let (packed, scales, biases) = ops::quantize(&wave(shape, seed)?, 32, bits)?;
                [&packed, &scales, &biases].into_iter().try_for_each(Array::eval)?;
                Ok([packed, scales, biases])
            })
        };
        let (k, v) = (rows(&k, 4)?, rows(&v, 5)?);
        Ok(vec![ops::attention_quantized(&q, of(&k), of(&v), bits, 32, options)?])
    }
}

fn of([packed, scales, biases]: &[Array; 3]) -> QuantizedRows<'_> {
    QuantizedRows { packed, scales, biases }
}

fn attention() -> Cases {
    let mut cases = Cases::of("attention");
    let mut add = |heads, queries, keys, dim, bits, rules| {
        let name = format!("{heads:?} {queries} x {keys} x {dim}, {bits} bits, {rules}");
        let attended = Attended { heads, queries, keys, dim, bits, rules };
        cases.add(name, move || attended.call());
    };
    // If `rules` is a multiple of 3, the case has no mask. If it is a multiple of 6, it has no
    // sinks either.
    for (bits, dims, rules) in [
        (0, [20, 65, 200], [0, 1, 2, 4, 5, 7, 8, 10]),
        (4, [32, 96, 256], [1, 2, 4, 3, 5, 7, 8, 10]),
        (8, [64, 96, 256], [2, 4, 5, 9, 7, 8, 10, 11]),
    ] {
        for (at, dim) in dims.into_iter().enumerate() {
            add([2, 2], 1, 7, dim, bits, rules[at]);
            add([4, 2], 2, 33, dim, bits, rules[at + 1]);
            add([4, 1], 2, 40 + 15 * at as i32, dim, bits, rules[at + 2]);
            add([2, 1], 9, 21 + at as i32, dim, bits, rules[at + 4]);
        }
        add([2, 2], 1, 1100, dims[0], bits, rules[3]);
        add([4, 2], 17, 40, dims[0], bits, rules[6]);
    }
    for dim in [64, 80, 96, 128, 256] {
        add([2, 1], 11, 37, dim, 0, 6);
        add([2, 1], 5, 37, dim, 0, 21);
    }
    add([2, 1], 40, 90, 24, 0, 0);
    // With a mask, the threads of a group decide together whether any of them needs a block of
    // keys.
    add([2, 1], 40, 90, 24, 0, 4);
    add([2, 1], 9, 1050, 16, 0, 3);
    cases
}

fn attention_grad() -> Cases {
    let mut cases = Cases::of("attention_grad");
    let mut add = |heads, queries, keys, dim, rules| {
        let name = format!("{heads:?} {queries} x {keys} x {dim}, {rules}");
        let attended = Attended { heads, queries, keys, dim, bits: 0, rules };
        cases.add(name, move || attended.gradients());
    };
    for (at, dim) in [20, 100, 200].into_iter().enumerate() {
        let more = 5 * at as i32;
        for rules in [0, 1, 2, 3] {
            add([4, 2], 9, 21 + more, dim, rules + 4 * at as i32);
        }
        // With more queries than keys, some queries see no key.
        add([2, 1], 19, 9 + more, dim, 6);
    }
    add([2, 1], 40, 90, 24, 0);
    add([2, 2], 1, 70, 33, 21);
    cases
}
