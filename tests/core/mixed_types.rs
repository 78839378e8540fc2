//! Products of float32 with weights, or scales of packed weights, of 16 bits. The results have the
//! bits of weights that were converted to float32 first. A CPU's kernels convert while they read,
//! so no other node runs.

use mlx_primitives::device::Device;
use mlx_primitives::ops::{self, Linear, LinearWeight, QuantizedLinear, QuantizedWeight};
use mlx_primitives::transforms::{grad, vmap};
use mlx_primitives::{Array, Dtype, Result, eval, graph};

use crate::support::compare::{assert_close, assert_same, numbers};
use crate::support::input::{random, random32};
use crate::support::{Checked, each_device};
use crate::table::inputs::{FORMATS, SCALE, small, weight};

const HALVES: [Dtype; 2] = [Dtype::Float16, Dtype::Bfloat16];
const N: i32 = 24;
const K: i32 = 128;

/// Checks that two ops have the same bits, and that on a CPU the first op is a single node.
#[track_caller]
fn check(device: Device, y: &Array, expected: &Array, what: &str) -> Checked {
    if device == Device::Cpu {
        let names: Vec<_> = graph::nodes([y])?.into_iter().map(|node| node.name).collect();
        assert_eq!(names.len(), 1, "{what}: {names:?}");
    }
    assert_eq!(y.dtype(), Dtype::Float32, "{what}");
    assert_same(y, expected, what)?;
    Ok(())
}

/// Checks that the gradients have the types of the inputs, and nearly the numbers of the gradients
/// for inputs that were converted.
#[track_caller]
fn check_gradients(f: impl Fn(&[Array]) -> Result<Array>, inputs: &[&Array]) -> Checked {
    let of = |inputs: &[&Array]| grad(|p: Vec<Array>| f(&p)?.square()?.sum(..), inputs);
    let wide: Vec<Array> =
        inputs.iter().map(|x| x.astype(Dtype::Float32)).collect::<Result<_>>()?;
    let expected = of(&wide.iter().collect::<Vec<_>>())?;
    for ((got, expected), input) in of(inputs)?.iter().zip(&expected).zip(inputs) {
        assert_eq!(got.dtype(), input.dtype());
        let expected = numbers(&expected.astype(input.dtype())?)?;
        assert_close(&numbers(got)?, &expected, 1e-2, "a gradient");
    }
    Ok(())
}

/// Returns the weights with scales and biases of float32.
fn widened(w: &QuantizedWeight) -> Result<QuantizedWeight> {
    let wide = |x: &Array| x.astype(Dtype::Float32);
    let biases = w.biases().map(wide).transpose()?;
    let (group, bits, mode) = (w.group_size(), w.bits(), w.mode());
    QuantizedWeight::new(w.packed().clone(), wide(w.scales())?, biases, group, bits, mode)
}

#[test]
fn plain_weights() -> Checked {
    each_device(|device| {
        for dtype in HALVES {
            let w = random(&[N, K], dtype, 1)?;
            w.eval()?;
            let (bias, wide) = (random32(&[N], 2)?, w.astype(Dtype::Float32)?);
            for rows in [1, 5, 20] {
                let (x, residual) = (random32(&[rows, K], 3)?, random32(&[rows, N], 4)?);
                for options in [
                    Linear::default(),
                    Linear { bias: Some(&bias), residual: Some(&residual), ..Linear::default() },
                ] {
                    let [y, expected] =
                        [&w, &wide].map(|w| ops::linear(&x, w, options)).map(Result::unwrap);
                    check(device, &y, &expected, &format!("{dtype} {rows}"))?;
                }
                check_gradients(|p| ops::linear(&p[0], &p[1], Linear::default()), &[&x, &w])?;
            }
            let x = random32(&[3, 2, K], 5)?;
            let mapped = vmap(|p: Array| ops::linear(&p, &w, Linear::default()), &x, 0, 0)?;
            assert_same(&mapped, &ops::linear(&x, &wide, Linear::default())?, "vmap")?;
        }
        Ok(())
    })
}

#[test]
fn scales_of_packed_weights() -> Checked {
    each_device(|device| {
        for dtype in HALVES {
            for format in FORMATS.into_iter().filter(|format| format.2.name() == "affine") {
                let [w, other] = [6, 7].map(|seed| weight(format, N, K, dtype, seed));
                let (w, other, norm) = (w?, other?, random32(&[K], 8)?);
                for w in [&w, &other] {
                    eval([w.packed(), w.scales()].into_iter().chain(w.biases()))?;
                }
                let (wide, wide_other) = (widened(&w)?, widened(&other)?);
                for rows in [1, 5, 20] {
                    let what = format!("{dtype} {format:?} {rows}");
                    let x = random32(&[rows, K], 9)?;
                    let residual = random32(&[rows, N], 10)?;
                    let norm = Some((&norm, 1e-5));
                    for options in [
                        QuantizedLinear::default(),
                        QuantizedLinear { norm, residual: Some(&residual), ..Default::default() },
                    ] {
                        let y = ops::quantized_linear(&x, &w, options)?;
                        check(device, &y, &ops::quantized_linear(&x, &wide, options)?, &what)?;
                    }
                    let y = ops::quantized_swiglu(&x, &w, &other, norm)?;
                    check(
                        device,
                        &y,
                        &ops::quantized_swiglu(&x, &wide, &wide_other, norm)?,
                        &what,
                    )?;
                    let (a, b) = (small(&[4, K], dtype, 11)?, small(&[N, 4], dtype, 12)?);
                    let (a, b) = (a.astype(Dtype::Float32)?, b.astype(Dtype::Float32)?);
                    eval([&a, &b])?;
                    let [base, wide] = [&w, &wide].map(|w| LinearWeight::Quantized(w.clone()));
                    let y = ops::lora_linear(&x, &base, &a, &b, SCALE)?;
                    check(device, &y, &ops::lora_linear(&x, &wide, &a, &b, SCALE)?, &what)?;
                }
            }
            let w = weight(FORMATS[3], N, K, dtype, 6)?;
            let x = random32(&[5, K], 9)?;
            let of = |p: &[Array]| {
                let (scales, biases) = (p[1].clone(), Some(p[2].clone()));
                let (group, bits, mode) = (w.group_size(), w.bits(), w.mode());
                let w =
                    QuantizedWeight::new(w.packed().clone(), scales, biases, group, bits, mode)?;
                ops::quantized_linear(&p[0], &w, QuantizedLinear::default())
            };
            let biases = w.biases().expect("affine weights").clone();
            check_gradients(of, &[&x, w.scales(), &biases])?;
        }
        Ok(())
    })
}
