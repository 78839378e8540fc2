//! Lists ops with the rows whose bits are compared at several widths. A width is the number of rows
//! of a call.

use mlx_primitives::ops::{
    self, Activation, Attention, CpuActivations, Linear, LinearWeight, QuantizedLinear,
    QuantizedMode, QuantizedRows, QuantizedWeight,
};
use mlx_primitives::support::gated_linear;
use mlx_primitives::{Array, Dtype, Result};

use super::{Rows, Run};
use crate::inputs::{FORMATS, K_QUANTS, random, small, weight};
use crate::ops::OPS;

const DTYPES: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

/// The rows of x at these indices.
fn taken(x: &Array, rows: &[i32]) -> Result<Array> {
    x.take(&Array::from_slice(rows, [rows.len() as i32])?, 0)
}

/// Adds the ops of the catalog whose inputs and results have rows. If an op works along rows, its
/// rows have 129 elements.
fn row_wise(all: &mut Vec<Rows>) -> Result<()> {
    // The first three ops have separate cases. `sum_of_squares` adds up all rows, so it has no rows
    // to compare.
    let others = ["attention", "linear", "lora_linear", "sum_of_squares"];
    for op in OPS.iter().filter(|op| !others.contains(&op.name)) {
        const COUNT: i32 = 66;
        let shapes = op.shapes(COUNT, 129).into_iter().zip(1..);
        let inputs: Vec<Array> = shapes
            .map(|(shape, seed)| random(&shape, Dtype::Float32, seed))
            .collect::<Result<_>>()?;
        for dtype in DTYPES {
            let inputs: Vec<Array> =
                inputs.iter().map(|x| x.astype(dtype)).collect::<Result<_>>()?;
            let run = move |rows: &[i32]| {
                let part = |x: &Array| match x.shape().first() {
                    Some(&COUNT) => taken(x, rows),
                    _ => Ok(x.clone()),
                };
                let x: Vec<Array> = inputs.iter().map(part).collect::<Result<_>>()?;
                let mut results = (op.run)(&x)?;
                let last = results.pop().unwrap_or_else(|| x[0].clone());
                results.into_iter().try_fold(last, |all, y| all.add(&y))
            };
            all.push(Rows::new(op.name, dtype, COUNT as usize, run));
        }
    }
    Ok(())
}

/// Adds `silu(y · Gateᵀ) * (y · Upᵀ)` of normalized rows y. For one row, an NVIDIA GPU runs a
/// single kernel.
fn gated(all: &mut Vec<Rows>, dtype: Dtype, [count, n, k]: [i32; 3]) -> Result<()> {
    let (x, norm) = (random(&[count, k], dtype, 1)?, random(&[k], dtype, 7)?);
    let (gate, up) = (small(&[n, k], dtype, 2)?, small(&[n, k], dtype, 3)?);
    all.push(Rows::new(format!("gated rows, k {k}"), dtype, count as usize, move |rows| {
        let x = taken(&x, rows)?;
        if let Some(y) = gated_linear([&x, &gate, &up, &norm], 1e-5)? {
            return Ok(y);
        }
        let y = ops::rms_norm(&x, Some(&norm), 1e-5)?;
        let [gate, up] = [&gate, &up].map(|w| ops::linear(&y, w, Linear::default()));
        ops::swiglu(&gate?, &up?)
    }));
    Ok(())
}

/// Adds products with plain weights. One k is longer than the block in which kernels process k, and
/// is not a multiple of a vector's length.
fn products(all: &mut Vec<Rows>, dtype: Dtype) -> Result<()> {
    for (n, k) in [(37, 1029), (100, 64)] {
        let count = if k == 64 { 256 } else { 66 };
        let (x, w) = (random(&[count, k], dtype, 1)?, small(&[n, k], dtype, 2)?);
        let (bias, residual) = (random(&[n], dtype, 3)?, random(&[count, n], dtype, 4)?);
        let count = count as usize;
        let (turned, of) = (w.t()?.contiguous()?, x.clone());
        all.push(Rows::new(format!("matmul, k {k}"), dtype, count, move |rows| {
            ops::matmul(&taken(&of, rows)?, &turned)
        }));
        let (of, plain) = (x.clone(), w.clone());
        all.push(Rows::new(format!("linear, k {k}"), dtype, count, move |rows| {
            let residual = taken(&residual, rows)?;
            let activation = Some(Activation::Silu);
            let options = Linear { bias: Some(&bias), activation, residual: Some(&residual) };
            ops::linear(&taken(&of, rows)?, &plain, options)
        }));
        let lora = ops::Lora::new(small(&[9, k], dtype, 5)?, small(&[n, 9], dtype, 6)?, 1.5)?;
        let base = LinearWeight::from(w);
        all.push(Rows::new(format!("lora_linear, k {k}"), dtype, count, move |rows| {
            lora.apply(&taken(&x, rows)?, &base)
        }));
    }
    for extents in [[256, 100, 64], [66, 37, 1160], [9, 1000, 4096], [9, 24, 5128]] {
        gated(all, dtype, extents)?;
    }
    Ok(())
}

/// Adds products with packed weights. The kernels process a row in chunks, whose size depends on
/// the format. Some rows fill whole chunks, and others leave a remainder.
fn packed(all: &mut Vec<Rows>, dtype: Dtype) -> Result<()> {
    // A GPU has kernels for K-quants only in float32.
    let k_quants = K_QUANTS.into_iter().filter(|_| dtype == Dtype::Float32);
    for format in FORMATS.into_iter().chain(k_quants) {
        let (group, bits, mode) = format;
        let name = format!("{} {bits} bits, groups of {group}", mode.name());
        let (long, short) = if mode == QuantizedMode::KQuant { (1280, 256) } else { (1152, 128) };
        for k in [long, short] {
            let (n, count) = (37, if k == short { 256 } else { 66 });
            let x = random(&[count, k], dtype, 1)?;
            let w: Vec<QuantizedWeight> =
                (2..5).map(|seed| weight(format, n, k, dtype, seed)).collect::<Result<_>>()?;
            let (norm, bias) = (random(&[k], dtype, 7)?, random(&[n], dtype, 8)?);
            let residual = random(&[count, n], dtype, 9)?;
            let low = ops::Lora::new(small(&[9, k], dtype, 5)?, small(&[n, 9], dtype, 6)?, 1.5)?;
            let mut add = |what: &str, run: Box<Run>| {
                let name = format!("{what}, {name}, k {k}");
                all.push(Rows { name, dtype, count: count as usize, text: false, run });
            };
            let (of, whole) = (x.clone(), w[0].clone());
            let of_norm = norm.clone();
            add(
                "quantized_linear",
                Box::new(move |rows| {
                    let residual = taken(&residual, rows)?;
                    let (bias, residual) = (Some(&bias), Some(&residual));
                    let norm = Some((&of_norm, 1e-5));
                    let options = QuantizedLinear { bias, residual, norm };
                    ops::quantized_linear(&taken(&of, rows)?, &whole, options)
                }),
            );
            if k == short {
                continue;
            }
            let (of, parts, of_norm) = (x.clone(), w.clone(), norm.clone());
            add(
                "quantized_linears",
                Box::new(move |rows| {
                    let parts: Vec<&QuantizedWeight> = parts.iter().collect();
                    ops::quantized_linears(&taken(&of, rows)?, &parts, Some((&of_norm, 1e-5)))
                }),
            );
            let (of, parts) = (x.clone(), w.clone());
            add(
                "quantized_swiglu",
                Box::new(move |rows| {
                    ops::quantized_swiglu(&taken(&of, rows)?, &parts[0], &parts[1], None)
                }),
            );
            let (of, base) = (x.clone(), LinearWeight::from(&w[0]));
            add("lora_linear", Box::new(move |rows| low.apply(&taken(&of, rows)?, &base)));
            let rounded = w[0].clone().with_activations(CpuActivations::Int8);
            add(
                "quantized_linear in int8",
                Box::new(move |rows| {
                    ops::quantized_linear(&taken(&x, rows)?, &rounded, Default::default())
                }),
            );
        }
    }
    Ok(())
}

/// The options of a call of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    Causal,
    Window,
    Bools,
    Floats,
    SinksAndCap,
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug)]
enum Stored {
    Plain,
    /// The features of a head are not contiguous in memory.
    Strided,
    Bits(i32),
}

/// Converts keys or values `[batch, heads, keys, features]` to the arrays of a storage form.
fn stored(x: &Array, stored: Stored) -> Result<Vec<Array>> {
    match stored {
        Stored::Plain => Ok(vec![x.clone()]),
        Stored::Strided => {
            let turned = x.transpose([0, 1, 3, 2])?.contiguous()?;
            Ok(vec![turned.transpose([0, 1, 3, 2])?])
        }
        Stored::Bits(bits) => {
            let (packed, scales, biases) = ops::quantize(x, 64, bits)?;
            Ok(vec![packed, scales, biases])
        }
    }
}

fn attend(q: &Array, [k, v]: [&[Array]; 2], options: Attention<'_>) -> Result<Array> {
    if let ([k], [v]) = (k, v) {
        return ops::attention(q, k, v, options)?.transpose([0, 2, 1, 3]);
    }
    let rows = |of: &'_ [Array]| -> [Array; 3] { [0, 1, 2].map(|part| of[part].clone()) };
    let ([k, ks, kb], [v, vs, vb]) = (rows(k), rows(v));
    let bits = if k.dim(3)? * 8 == q.dim(3)? { 4 } else { 8 };
    let k = QuantizedRows { packed: &k, scales: &ks, biases: &kb };
    let v = QuantizedRows { packed: &v, scales: &vs, biases: &vb };
    ops::attention_quantized(q, k, v, bits, 64, options)?.transpose([0, 2, 1, 3])
}

/// Adds the positions of a sequence after its first `past` positions. With [`Rule::Bools`], it also
/// adds a batch of sequences with one position each.
fn attention(
    all: &mut Vec<Rows>,
    dtype: Dtype,
    (group, dim, past, count): (i32, i32, i32, i32),
    rule: Rule,
    kind: Stored,
) -> Result<()> {
    let (heads, keys) = (2 * group, past + count);
    let q = random(&[1, heads, count, dim], dtype, 1)?;
    let kv = [2, 3].map(|seed| stored(&random(&[1, 2, keys, dim], dtype, seed)?, kind));
    let [k, v] = kv;
    let (k, v) = (k?, v?);
    let sinks = random(&[heads], dtype, 4)?;
    let position = Array::arange::<i32>(f64::from(past), f64::from(keys), 1.0)?;
    let seen = Array::arange::<i32>(0.0, f64::from(keys), 1.0)?
        .expand_dims([0])?
        .less_equal(&position.expand_dims([1])?)?;
    let noise = random(&[count, keys], dtype, 5)?;
    let bools = seen.logical_and(&noise.less(2.0)?)?;
    let hidden = Array::full([1, 1], f32::NEG_INFINITY)?.astype(dtype)?;
    let floats = mlx_primitives::select(&bools, &noise, &hidden)?;
    let name = format!("attention, {group} heads of {dim}, {kind:?}, {rule:?}, {keys} keys");
    let of_text = move |rows: &[i32]| {
        let (from, to) = (rows[0], rows[rows.len() - 1] + 1);
        let [k, v] = [&k, &v].map(|parts| {
            let upto = |part: &Array| part.slice_axis(2, ..past + to);
            parts.iter().map(upto).collect::<Result<Vec<_>>>()
        });
        let mask = match rule {
            Rule::Bools => Some(bools.i((from..to, ..past + to))?),
            Rule::Floats => Some(floats.i((from..to, ..past + to))?),
            _ => None,
        };
        let special = rule == Rule::SinksAndCap;
        let options = Attention {
            scale: None,
            causal: mask.is_none(),
            window: (rule == Rule::Window).then_some(100),
            mask: mask.as_ref(),
            soft_cap: special.then_some(5.0),
            sinks: special.then_some(&sinks),
            dropped: 0,
        };
        attend(&q.slice_axis(2, from..to)?, [&k?, &v?], options)?.squeeze([0])
    };
    all.push(Rows { text: true, ..Rows::new(&*name, dtype, count as usize, of_text) });

    if rule == Rule::Bools {
        let (count, keys) = (33, 70);
        let q = random(&[count, heads, 1, dim], dtype, 6)?;
        let [k, v] = [7, 8].map(|seed| stored(&random(&[count, 2, keys, dim], dtype, seed)?, kind));
        let (k, v) = (k?, v?);
        let mask = random(&[count, 1, 1, keys], dtype, 9)?.less(2.0)?;
        let name = format!("attention, texts, {group} heads of {dim}, {kind:?}");
        all.push(Rows::new(name, dtype, count as usize, move |rows| {
            let [k, v] = [&k, &v].map(|parts| {
                parts.iter().map(|part| taken(part, rows)).collect::<Result<Vec<_>>>()
            });
            let mask = taken(&mask, rows)?;
            let options = Attention { mask: Some(&mask), ..Attention::default() };
            attend(&taken(&q, rows)?, [&k?, &v?], options)
        }));
    }
    Ok(())
}

/// A few short rows for each kernel, which a simulator can run in little time. They run the kernels
/// for few rows and the kernels for tiles of rows. Attention has enough keys for at least two
/// splits, in the order of tokens and in the order of prompts.
///
/// # Errors
///
/// Returns an error if MLX cannot make the inputs.
pub fn few() -> Result<Vec<Rows>> {
    let (mut all, dtype, count) = (Vec::new(), Dtype::Bfloat16, 17);
    let (n, k) = (9, 192);
    let x = random(&[count, k], dtype, 1)?;
    let norm = random(&[k], dtype, 7)?;
    let plain = small(&[n, k], dtype, 2)?;
    let of = x.clone();
    all.push(Rows::new("linear", dtype, count as usize, move |rows| {
        ops::linear(&taken(&of, rows)?, &plain, Linear::default())
    }));
    gated(&mut all, dtype, [count, n, k])?;
    for format in [FORMATS[0], FORMATS[FORMATS.len() - 1]] {
        let (of, norm, w) = (x.clone(), norm.clone(), weight(format, n, k, dtype, 3)?);
        let name = format!("quantized_linear, {} {} bits", format.2.name(), format.1);
        all.push(Rows::new(name, dtype, count as usize, move |rows| {
            let options = QuantizedLinear { norm: Some((&norm, 1e-5)), ..Default::default() };
            ops::quantized_linear(&taken(&of, rows)?, &w, options)
        }));
    }
    let low = ops::Lora::new(small(&[3, k], dtype, 5)?, small(&[n, 3], dtype, 6)?, 1.5)?;
    let base = LinearWeight::from(weight(FORMATS[0], n, k, dtype, 4)?);
    all.push(Rows::new("lora_linear", dtype, count as usize, move |rows| {
        low.apply(&taken(&x, rows)?, &base)
    }));
    for rule in [Rule::Window, Rule::SinksAndCap] {
        attention(&mut all, dtype, (4, 64, 252, 8), rule, Stored::Plain)?;
    }
    attention(&mut all, dtype, (3, 64, 252, 8), Rule::Bools, Stored::Bits(4))?;
    attention(&mut all, dtype, (1, 64, 2045, 5), Rule::SinksAndCap, Stored::Plain)?;
    Ok(all)
}

/// The rows of every op in every type. If `quick`, returns only one in seven.
///
/// # Errors
///
/// Returns an error if MLX cannot make the inputs.
pub fn all(quick: bool) -> Result<Vec<Rows>> {
    let mut all = Vec::new();
    for dtype in DTYPES {
        products(&mut all, dtype)?;
        packed(&mut all, dtype)?;
        let of = |all: &mut _, extents, rule, kind| attention(all, dtype, extents, rule, kind);
        for kind in [Stored::Plain, Stored::Strided, Stored::Bits(4), Stored::Bits(8)] {
            for rule in [Rule::Causal, Rule::Window, Rule::Bools, Rule::Floats, Rule::SinksAndCap] {
                of(&mut all, (4, 64, 230, 70), rule, kind)?;
            }
        }
        for group in [1, 2, 5, 7, 8, 16] {
            of(&mut all, (group, 80, 230, 70), Rule::Causal, Stored::Plain)?;
            of(&mut all, (group, 128, 230, 70), Rule::Bools, Stored::Bits(8))?;
        }
        of(&mut all, (8, 64, 700, 256), Rule::Causal, Stored::Plain)?;
        of(&mut all, (8, 64, 700, 256), Rule::Window, Stored::Bits(4))?;
    }
    row_wise(&mut all)?;
    if quick {
        let mut number = 0;
        all.retain(|_| {
            number += 1;
            number % 7 == 0
        });
    }
    Ok(all)
}
