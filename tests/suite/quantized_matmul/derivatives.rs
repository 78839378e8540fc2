//! Derivatives, vmap, refusals, and what the kernels move.

use mlx_primitives::ops::{self, QuantizedMode, QuantizedOptions, QuantizedWeight};
use mlx_primitives::transforms::{jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, stack};

use super::*;

const ROWS: i32 = 3;
const N: i32 = 5;
const K: i32 = 64;

/// x, the norm's weight, the bias, the residual.
fn everything(p: &[Array], w: &QuantizedWeight) -> Result<Vec<Array>> {
    let options =
        QuantizedOptions { norm: Some((&p[1], EPS)), bias: Some(&p[2]), residual: Some(&p[3]) };
    Ok(vec![ops::quantized_linear(&p[0], w, &options)?])
}

fn everything_in_f64(p: &[Vec<f64>], w: &[f64]) -> Vec<f64> {
    let normed = reference::rms_norm(&p[0], Some(&p[1]), K as usize, f64::from(EPS));
    let (y, _) = product(&normed, w, K as usize);
    y.iter().enumerate().map(|(i, y)| y + p[2][i % N as usize] + p[3][i]).collect()
}

/// Sums of 64 products of numbers up to 9, in f32.
const TOLERANCE: f64 = 5e-5;

#[test]
fn derivatives_by_finite_differences() -> Checked {
    each_device(|_| {
        for format in [FORMATS[3], FORMATS[7]] {
            let w = weight(format, N, K, Dtype::Float32, 26)?;
            let dense = decoded(&w, Dtype::Float32)?;
            let shapes: [&[i32]; 4] = [&[ROWS, K], &[K], &[N], &[ROWS, N]];
            let make = |seed: u64| -> Result<Vec<Array>> {
                shapes.iter().zip(seed..).map(|(shape, seed)| random32(shape, seed)).collect()
            };
            let (primals, tangents) = (make(30)?, make(40)?);
            let g = random32(&[ROWS, N], 50)?;
            let p: Vec<Vec<f64>> = primals.iter().map(numbers).collect::<Result<_>>()?;
            let t: Vec<Vec<f64>> = tangents.iter().map(numbers).collect::<Result<_>>()?;
            let of_g = numbers(&g)?;
            let f = |p: &[Array]| everything(p, &w);

            let (y, gradients) = vjp(f, &refs(&primals), &[&g])?;
            assert_same(&y[0], &everything(&primals, &w)?[0], "value")?;
            for argument in 0..4 {
                let want = reference::gradient(&p[argument], 1e-5, |at| {
                    let mut p = p.clone();
                    p[argument] = at.to_vec();
                    reference::dot(&of_g, &everything_in_f64(&p, &dense))
                });
                assert_close(&numbers(&gradients[argument])?, &want, TOLERANCE, "vjp");
            }
            let (_, forward) = jvp(f, &refs(&primals), &refs(&tangents))?;
            let moved = |h: f64| {
                let step = |(p, t): (&Vec<f64>, &Vec<f64>)| {
                    p.iter().zip(t).map(|(p, t)| p + h * t).collect()
                };
                everything_in_f64(&p.iter().zip(&t).map(step).collect::<Vec<_>>(), &dense)
            };
            let want: Vec<f64> =
                moved(1e-5).iter().zip(moved(-1e-5)).map(|(a, b)| (a - b) / 2e-5).collect();
            assert_close(&numbers(&forward[0])?, &want, TOLERANCE, "jvp");
            // <g, J t> = <Jᵀ g, t>
            let pulled: f64 = (0..4)
                .map(|i| Ok(reference::dot(&numbers(&gradients[i])?, &t[i])))
                .sum::<Result<f64>>()?;
            let pushed = reference::dot(&of_g, &numbers(&forward[0])?);
            assert!((pulled - pushed).abs() <= 1e-3 * (1.0 + pushed.abs()), "{pulled} {pushed}");
        }
        Ok(())
    })
}

#[test]
fn vmap_over_each_input() -> Checked {
    each_device(|_| {
        let w = weight(FORMATS[3], N, K, Dtype::Float32, 60)?;
        let f = |p: &[Array]| {
            let options = QuantizedOptions { residual: p.get(1), ..Default::default() };
            Ok(vec![ops::quantized_linear(&p[0], &w, &options)?])
        };
        let x = random32(&[2, ROWS, K], 61)?;
        for axis in [0, 1] {
            let y = &vmap(f, &[&x], &[Some(axis)], &[axis])?[0];
            assert_same(y, &linear(&x, &w)?, "x")?;
        }
        let residual = random32(&[2, ROWS, N], 62)?;
        let entry = |x: &Array, i: i32| x.slice(&[&(i..i + 1)])?.squeeze(&[0]);
        let both = &vmap(f, &[&x, &residual], &[Some(0), Some(0)], &[0])?[0];
        let alone = &vmap(f, &[&entry(&x, 0)?, &residual], &[None, Some(0)], &[0])?[0];
        for i in 0..2 {
            let want = &f(&[entry(&x, i)?, entry(&residual, i)?])?[0];
            assert_same(&entry(both, i)?, want, "x and residual")?;
            let want = &f(&[entry(&x, 0)?, entry(&residual, i)?])?[0];
            assert_same(&entry(alone, i)?, want, "residual")?;
        }

        let weights = [weight(FORMATS[3], N, K, Dtype::Float32, 63)?, w.clone()];
        let stacked = |part: fn(&QuantizedWeight) -> Array| {
            let parts = weights.each_ref().map(part);
            stack(&refs(&parts), 0)
        };
        let parts = [
            stacked(|w| w.packed().clone())?,
            stacked(|w| w.scales().clone())?,
            stacked(|w| w.biases().expect("affine").clone())?,
        ];
        let of_parts = |p: &[Array]| {
            let biases = Some(p[3].clone());
            let (packed, scales) = (p[1].clone(), p[2].clone());
            let w = QuantizedWeight::new(packed, scales, biases, 64, 4, QuantizedMode::Affine)?;
            Ok(vec![linear(&p[0], &w)?])
        };
        let inputs = [&x, &parts[0], &parts[1], &parts[2]];
        let y = &vmap(of_parts, &inputs, &[Some(0); 4], &[0])?[0];
        for (i, w) in weights.iter().enumerate() {
            let i = i as i32;
            assert_same(&entry(y, i)?, &linear(&entry(&x, i)?, w)?, "weights")?;
        }
        Ok(())
    })
}

#[test]
fn dequantizes_as_packed() -> Checked {
    for format in FORMATS {
        let w = weight(format, 7, 128, Dtype::Float32, 64)?;
        let dense = numbers(&w.dequantize_to(Dtype::Float32)?)?;
        assert_close(&dense, &decoded(&w, Dtype::Float32)?, 1e-6, &format!("{format:?}"));
        assert_eq!((w.outputs(), w.inputs()), (7, 128));
    }
    Ok(())
}

#[test]
fn refuses_what_does_not_fit() -> Checked {
    let affine = QuantizedMode::Affine;
    let w = weight(FORMATS[3], 4, 128, Dtype::Float32, 65)?;
    let x = random32(&[2, 128], 66)?;
    let remade = |group, bits, mode| {
        let biases = w.biases().cloned();
        QuantizedWeight::new(w.packed().clone(), w.scales().clone(), biases, group, bits, mode)
    };
    for (weight, expected) in [
        (remade(48, 4, affine), "groups of 32, 64 or 128"),
        (remade(64, 5, affine), "2, 3, 4, 6 or 8 bits"),
        (remade(64, 8, affine), "scales of shape"),
        (remade(32, 4, affine), "scales of shape"),
        (remade(32, 4, QuantizedMode::Mxfp4), "biases for affine"),
        (
            QuantizedWeight::new(
                w.scales().clone(),
                w.scales().clone(),
                w.biases().cloned(),
                64,
                4,
                affine,
            ),
            "packed weights as a uint32 matrix",
        ),
        (
            QuantizedWeight::new(
                w.packed().clone(),
                w.scales().clone(),
                None,
                32,
                4,
                QuantizedMode::Mxfp4,
            ),
            "scales of shape",
        ),
        (QuantizedWeight::quantize(&random32(&[64], 1)?, 64, 4, affine), "a matrix"),
    ] {
        let text = message(weight);
        assert!(text.contains(expected), "{text}");
    }
    let plain = QuantizedOptions::default();
    let other = weight(FORMATS[2], 4, 128, Dtype::Float32, 67)?;
    let short = weight(FORMATS[3], 4, 64, Dtype::Float32, 67)?;
    let wide = weight(FORMATS[3], 6, 128, Dtype::Float32, 67)?;
    let gain = random32(&[64], 68)?;
    let scalar = Array::scalar(1.0f32)?;
    for (y, expected) in [
        (ops::quantized_linear(&random32(&[2, 64], 1)?, &w, &plain), "a last axis of 128"),
        (ops::quantized_linear(&scalar, &w, &plain), "a last axis of 128"),
        (ops::quantized_linears(&x, &[], None), "at least one weight"),
        (ops::quantized_linears(&x, &[&w, &w, &w, &w], None), "1 to 3 weights"),
        (ops::quantized_linears(&x, &[&w, &other], None), "weights of one format"),
        (ops::quantized_linears(&x, &[&w, &short], None), "the same axis"),
        (ops::quantized_swiglu(&x, &w, &wide, None), "gate and up of one shape"),
        (ops::quantized_linears(&x, &[&w], Some((&gain, EPS))), "norm's weight of shape (128)"),
        (
            ops::quantized_linear(&x, &w, &QuantizedOptions { bias: Some(&gain), ..plain }),
            "a bias of shape (4)",
        ),
        (
            ops::quantized_linear(&x, &w, &QuantizedOptions { residual: Some(&gain), ..plain }),
            "a residual of shape",
        ),
        (
            ops::quantized_linear(&x.astype(Dtype::Complex64)?, &w, &plain),
            "float32, float16 or bfloat16",
        ),
    ] {
        let text = message(y);
        assert!(text.contains(expected) && text.contains("expected"), "{text}");
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_weights_once() -> Checked {
    use crate::support::{moved, report_traffic};

    let (n, k) = (256, 1024);
    let dtype = Dtype::Bfloat16;
    for (rows, least) in [(1, true), (8, false)] {
        let w = weight(FORMATS[3], n, k, dtype, 70)?;
        let (x, gain) = (random(&[rows, k], dtype, 71)?, random(&[k], dtype, 72)?);
        for array in [&x, &gain, w.packed(), w.scales(), w.biases().expect("affine")] {
            array.eval()?;
        }
        let dispatched = moved(|| linear(&x, &w))?;
        assert_eq!(dispatched.len(), 1);
        // Packed weights, scales and biases are loaded once; x once for each threadgroup.
        let of_weights: u64 = dispatched[0].arrays[1..4].iter().map(|array| array[0]).sum();
        assert_eq!(of_weights as usize, w.nbytes());
        assert_eq!(dispatched[0].arrays[0][0], x.nbytes() as u64 * (n as u64 / 16));
        if least {
            let ideal = w.nbytes() + x.nbytes() + (rows * n * 2) as usize;
            report_traffic("quantized_linear", &dispatched, ideal)?;
        }
        let normed = moved(|| ops::quantized_linears(&x, &[&w], Some((&gain, EPS))))?;
        assert_eq!(normed.len(), 1, "the norm takes no dispatch of its own");
        if least {
            let up = weight(FORMATS[3], n, k, dtype, 73)?;
            for array in [up.packed(), up.scales(), up.biases().expect("affine")] {
                array.eval()?;
            }
            let gated = moved(|| ops::quantized_swiglu(&x, &w, &up, None))?;
            assert_eq!(gated.len(), 1);
            let ideal = w.nbytes() + up.nbytes() + x.nbytes() + (rows * n * 2) as usize;
            report_traffic("quantized_swiglu", &gated, ideal)?;
        }
    }
    Ok(())
}
