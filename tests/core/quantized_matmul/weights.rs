//! Packed weights: vmap over the weights, shapes that do not match, and the memory traffic of the
//! kernels.

use mlx_primitives::ops::{self, QuantizedLinear, QuantizedMode, QuantizedWeight};
use mlx_primitives::transforms::vmap;
use mlx_primitives::{Array, Dtype, stack};

use super::*;

const ROWS: i32 = 3;
const N: i32 = 5;
const K: i32 = 64;

#[test]
fn vmap_over_weights() -> Checked {
    each_device(|_| {
        let w = weight(FORMATS[3], N, K, Dtype::Float32, 60)?;
        let x = random32(&[2, ROWS, K], 61)?;
        let entry = |x: &Array, i: i32| x.i(i..i + 1)?.squeeze([0]);
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
        let y = &vmap(|p| of_parts(&p), &inputs, [Some(0); 4], [0])?[0];
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
        (remade(64, 7, affine), "2, 3, 4, 5, 6 or 8 bits"),
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
        (
            QuantizedWeight::quantize(&random32(&[2, 48], 1)?, 16, 4, QuantizedMode::Nvfp4),
            "32 weights or a multiple",
        ),
    ] {
        let text = message(weight);
        assert!(text.contains(expected), "{text}");
    }
    let plain = QuantizedLinear::default();
    let other = weight(FORMATS[2], 4, 128, Dtype::Float32, 67)?;
    let short = weight(FORMATS[3], 4, 64, Dtype::Float32, 67)?;
    let wide = weight(FORMATS[3], 6, 128, Dtype::Float32, 67)?;
    let gain = random32(&[64], 68)?;
    let scalar = Array::scalar(1.0f32)?;
    for (y, expected) in [
        (ops::quantized_linear(&random32(&[2, 64], 1)?, &w, plain), "a last axis of 128"),
        (ops::quantized_linear(&scalar, &w, plain), "a last axis of 128"),
        (ops::quantized_linears(&x, &[], None), "at least one weight"),
        (ops::quantized_linears(&x, &[&w, &w, &w, &w], None), "1 to 3 weights"),
        (ops::quantized_linears(&x, &[&w, &other], None), "weights of one format"),
        (ops::quantized_linears(&x, &[&w, &short], None), "the same axis"),
        (ops::quantized_swiglu(&x, &w, &wide, None), "gate and up of one shape"),
        (ops::quantized_linears(&x, &[&w], Some((&gain, EPS))), "norm's weight of shape (128)"),
        (
            ops::quantized_linear(&x, &w, QuantizedLinear { bias: Some(&gain), ..plain }),
            "a bias of shape (4)",
        ),
        (
            ops::quantized_linear(&x, &w, QuantizedLinear { residual: Some(&gain), ..plain }),
            "a residual of shape",
        ),
        (
            ops::quantized_linear(&x.astype(Dtype::Complex64)?, &w, plain),
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
#[ignore = "run by simulated::kernel_traffic"]
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
        // The kernel reads the weights once, and each threadgroup reads x once. Four lanes share a
        // group of weights, so they read its scale and bias together.
        let of_weights = dispatched[0].arrays[1..4].iter().map(|array| array[0]).sum::<u64>();
        assert_eq!(of_weights as usize, w.nbytes());
        let columns = if rows == 1 { 16 } else { 8 };
        assert_eq!(dispatched[0].arrays[0][0], x.nbytes() as u64 * (n as u64 / columns));
        if least {
            let ideal = w.nbytes() + x.nbytes() + (rows * n * 2) as usize;
            report_traffic("quantized_linear", &dispatched, ideal)?;
        }
        let normed = moved(|| ops::quantized_linears(&x, &[&w], Some((&gain, EPS))))?;
        assert_eq!(normed.len(), 1, "the norm needs no separate dispatch");
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
