//! Attention over quantized keys and values.

use anyhow::Context;
use mlx_primitives::internals::dequantizing_composition;
use mlx_primitives::ops::{self, Attention, QuantizedRows};
use mlx_primitives::transforms::{grad, vjp};
use mlx_primitives::{Array, Dtype, Result, builtin};

use super::{TOLERANCE, assert_near, tolerance_to_mlx};
use crate::support::compare::{assert_close, numbers};
use crate::support::input::{FLOATS, data, random, values};
use crate::support::{Checked, each_device, message, refs};
use crate::table::attention_reference::Reference;

struct Rows {
    packed: Array,
    scales: Array,
    biases: Array,
    /// The dequantized rows.
    plain: Array,
}

impl Rows {
    /// Random codes of the shape [batch, kv_heads, keys, dim]. They dequantize to numbers up to
    /// about 3.
    fn new(shape: [i32; 4], bits: i32, group: i32, dtype: Dtype, seed: u64) -> Result<Self> {
        let [batch, heads, keys, dim] = shape;
        let rows = (batch * heads * keys) as usize;
        let (words, groups) = (dim * bits / 32, dim / group);
        let packed: Vec<u32> = (0..rows as u64 * words as u64)
            .map(|i| ((i + seed * 977).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) as u32)
            .collect();
        let of = |words: i32| [batch, heads, keys, words];
        let scale = 2.0 / (1 << bits) as f32;
        let scales = data(&values(rows * groups as usize, seed, scale), &of(groups), dtype)?;
        let biases = data(&values(rows * groups as usize, seed + 1, 1.0), &of(groups), dtype)?;
        let (scale, bias) = (numbers(&scales)?, numbers(&biases)?);
        let plain: Vec<f32> = (0..rows * dim as usize)
            .map(|i| {
                let (row, d) = (i / dim as usize, i % dim as usize);
                let each = 32 / bits as usize;
                let word = packed[row * words as usize + d / each];
                let code = word >> (d % each * bits as usize) & ((1 << bits) - 1);
                let at = row * groups as usize + d / group as usize;
                (scale[at] * f64::from(code) + bias[at]) as f32
            })
            .collect();
        Ok(Self {
            packed: Array::from_slice(&packed, of(words))?,
            scales,
            biases,
            plain: Array::from_slice(&plain, shape)?,
        })
    }

    fn borrowed(&self) -> QuantizedRows<'_> {
        QuantizedRows { packed: &self.packed, scales: &self.scales, biases: &self.biases }
    }
}

/// The result of the MLX ops that replace the kernel on an NVIDIA GPU.
fn on_nvidia(ours: &Array) -> anyhow::Result<Array> {
    dequantizing_composition(ours)?.context("a result")
}

#[test]
fn every_type_and_group() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (bits, group, dim, value_dim) in [
                (4, 32, 32, 32),
                (4, 64, 128, 128),
                (8, 32, 96, 96),
                (8, 128, 256, 256),
                (4, 128, 256, 256),
                (8, 64, 64, 64),
                (4, 32, 32, 96),
                (8, 64, 128, 64),
            ] {
                for (heads, queries, keys) in [(2, 1, 37), (4, 2, 20), (6, 2, 9), (8, 5, 21)] {
                    let shape = [1, 2, keys, dim];
                    let k = Rows::new(shape, bits, group, dtype, 1)?;
                    let v = Rows::new([1, 2, keys, value_dim], bits, group, dtype, 2)?;
                    let q = random(&[1, heads, queries, dim], dtype, 3)?;
                    let options = Attention { causal: true, ..Default::default() };
                    let ours = ops::attention_quantized(
                        &q,
                        k.borrowed(),
                        v.borrowed(),
                        bits,
                        group,
                        options,
                    )?;
                    let what = format!("{dtype} {bits} bits by {group} of {dim}, {queries}");
                    let theirs = builtin::composition(&ours)?.swap_remove(0);
                    let dequantized = on_nvidia(&ours)?;
                    let shape = [1, heads, queries, value_dim];
                    assert_eq!((ours.shape(), ours.dtype()), (&shape[..], dtype), "{what}");
                    let want = Reference::new(&q, &k.plain, &v.plain, options)?.apply();
                    // The kernel for many rows rounds the dequantized numbers to the type, as MLX
                    // does.
                    let rounding = match dtype {
                        Dtype::Float32 => 0.0,
                        Dtype::Float16 => 0.01,
                        _ => 0.08,
                    };
                    assert_near(&ours, &want, TOLERANCE + rounding, &what)?;
                    let theirs = numbers(&theirs)?;
                    let what = format!("{what}, MLX's");
                    assert_near(&ours, &theirs, tolerance_to_mlx(dtype), &what)?;
                    let dequantized = numbers(&dequantized)?;
                    assert_near(&ours, &dequantized, tolerance_to_mlx(dtype), &what)?;
                }
            }
        }
        Ok(())
    })
}

/// The keys and values are a part of a long quantized cache. All options except `dropped` are used.
#[test]
fn views_of_a_cache() -> Checked {
    each_device(|_| {
        for queries in [1, 5] {
            let shape = [1, 1, 1200, 32];
            let (k, v) = (
                Rows::new(shape, 4, 32, Dtype::Float32, 1)?,
                Rows::new(shape, 4, 32, Dtype::Float32, 2)?,
            );
            let part = |rows: &Rows| -> Result<Rows> {
                let cut = |x: &Array| x.slice_axis(2, 7..1107);
                Ok(Rows {
                    packed: cut(&rows.packed)?,
                    scales: cut(&rows.scales)?,
                    biases: cut(&rows.biases)?,
                    plain: cut(&rows.plain)?,
                })
            };
            let (k, v) = (part(&k)?, part(&v)?);
            let q = random(&[1, 3, queries, 32], Dtype::Float32, 3)?;
            let sinks = data(&[1.0, -2.0, 3.0], &[3], Dtype::Float32)?;
            let mask = random(&[1100], Dtype::Float32, 5)?;
            let options = Attention {
                scale: Some(0.25),
                causal: true,
                window: Some(1090),
                mask: Some(&mask),
                soft_cap: Some(20.0),
                sinks: Some(&sinks),
                dropped: 0,
            };
            let ours = ops::attention_quantized(&q, k.borrowed(), v.borrowed(), 4, 32, options)?;
            let theirs = builtin::composition(&ours)?.swap_remove(0);
            let dequantized = on_nvidia(&ours)?;
            let want = Reference::new(&q, &k.plain, &v.plain, options)?.apply();
            assert_near(&ours, &want, TOLERANCE, "f64")?;
            assert_near(&ours, &numbers(&theirs)?, 2.0 * TOLERANCE, "MLX's")?;
            assert_near(&ours, &numbers(&dequantized)?, 2.0 * TOLERANCE, "dequantized")?;
        }
        Ok(())
    })
}

/// The gradients of queries, scales and biases equal the float32 gradients of MLX's ops.
#[test]
fn gradients_are_those_of_mlx() -> Checked {
    each_device(|_| {
        for (dtype, near) in FLOATS.into_iter().zip([1e-4, 4e-3, 3e-2]) {
            for (bits, group, dims) in [(4, 32, [64, 32]), (8, 64, [64, 128])] {
                let k = Rows::new([2, 2, 9, dims[0]], bits, group, dtype, 1)?;
                let v = Rows::new([2, 2, 9, dims[1]], bits, group, dtype, 2)?;
                let q = random(&[2, 4, 5, dims[0]], dtype, 3)?;
                let g = random(&[2, 4, 5, dims[1]], dtype, 4)?;
                let sinks = random(&[4], dtype, 5)?;
                let options = Attention { causal: true, sinks: Some(&sinks), ..Default::default() };
                let ours = |p: &[Array]| {
                    let k = QuantizedRows { packed: &k.packed, scales: &p[1], biases: &p[2] };
                    let v = QuantizedRows { packed: &v.packed, scales: &p[3], biases: &p[4] };
                    let sinks = sinks.astype(p[0].dtype())?;
                    let options = Attention { sinks: Some(&sinks), ..options };
                    ops::attention_quantized(&p[0], k, v, bits, group, options)
                };
                let theirs = |p: &[Array]| Ok(builtin::composition(&ours(p)?)?.swap_remove(0));
                let inputs = [&q, &k.scales, &k.biases, &v.scales, &v.biases];
                let got = vjp(|p: Vec<Array>| ours(&p), &inputs, &[&g])?.1;
                assert_eq!(got[0].primitive().as_deref(), Some("AttentionGrad"));
                let wide = |x: &Array| x.astype(Dtype::Float32);
                let all = inputs.into_iter().map(wide).collect::<Result<Vec<_>>>()?;
                let want = vjp(|p: Vec<Array>| theirs(&p), &refs(&all), &[&wide(&g)?])?.1;
                for (number, (got, want)) in got.iter().zip(&want).enumerate() {
                    assert_eq!((got.shape(), got.dtype()), (inputs[number].shape(), dtype));
                    let want = numbers(want)?;
                    let scale = want.iter().fold(1.0f64, |a, b| a.max(b.abs()));
                    let what = format!("{dtype}, {bits} bits, input {number}");
                    assert_close(&numbers(got)?, &want, near * scale, &what);
                }
            }
        }
        Ok(())
    })
}

/// Our kernel, and the MLX ops that replace it on an NVIDIA GPU, have the same gradient as
/// attention over the dequantized keys and values.
#[test]
fn gradients_are_those_of_plain_keys_and_values() -> Checked {
    each_device(|_| {
        let shape = [1, 2, 9, 32];
        let (k, v) = (
            Rows::new(shape, 8, 32, Dtype::Float32, 1)?,
            Rows::new(shape, 8, 32, Dtype::Float32, 2)?,
        );
        let q = random(&[1, 4, 5, 32], Dtype::Float32, 3)?;
        let options = Attention { causal: true, ..Default::default() };
        let ours = |q: Array| {
            ops::attention_quantized(&q, k.borrowed(), v.borrowed(), 8, 32, options)?.sin()?.sum(..)
        };
        let plain = |q: Array| ops::attention(&q, &k.plain, &v.plain, options)?.sin()?.sum(..);
        let of_nvidia = |q: Array| {
            let ours = ops::attention_quantized(&q, k.borrowed(), v.borrowed(), 8, 32, options)?;
            dequantizing_composition(&ours)?.unwrap_or(ours).sin()?.sum(..)
        };
        let want = numbers(&grad(plain, &q)?)?;
        assert_close(&numbers(&grad(ours, &q)?)?, &want, 1e-4, "gradient");
        assert_close(&numbers(&grad(of_nvidia, &q)?)?, &want, 1e-4, "gradient on NVIDIA");
        Ok(())
    })
}

#[test]
fn bad_input_is_refused() -> Checked {
    let shape = [1, 1, 5, 64];
    let k = Rows::new(shape, 4, 32, Dtype::Float32, 1)?;
    let q = random(&[1, 1, 1, 64], Dtype::Float32, 2)?;
    let said = |k: QuantizedRows<'_>, bits, group| {
        message(ops::attention_quantized(&q, k, k, bits, group, Default::default()))
    };
    let rows = k.borrowed();
    let wrong = QuantizedRows { packed: &k.scales, ..rows };
    let short = k.scales.slice_axis(3, 0..1)?;
    let flat = k.packed.reshape([5, 8])?;
    for (said, expected) in [
        (said(rows, 3, 32), "4 or 8 bits, got 3"),
        (said(rows, 4, 16), "groups of 32, 64 or 128, got 16"),
        (said(rows, 4, 64), "whole groups of 64"),
        (said(rows, 8, 32), "whole groups of 32"),
        (said(wrong, 4, 32), "packed keys of uint32, got float32"),
        (said(QuantizedRows { biases: &short, ..rows }, 4, 32), "scales and biases"),
        (said(QuantizedRows { packed: &flat, ..rows }, 4, 32), "keys of rank 4"),
    ] {
        assert!(said.starts_with("[attention] expected ") && said.contains(expected), "{said}");
    }
    Ok(())
}
