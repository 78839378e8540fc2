//! Linear layers with low-rank updates: fused and separate ops round in the same way, updates can
//! be merged into weights, and the traffic is counted. The conformance table (`tests/catalog`)
//! tests their values.

use mlx_primitives::ops::{self, Linear, LinearWeight, Lora, QuantizedLinear};
use mlx_primitives::{Array, Dtype, Result, builtin, transforms};

use crate::quantized_matmul::product;
use crate::support::compare::{assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, random, random32};
use crate::support::{Checked, each_device};
use crate::table::inputs::{FORMATS, SCALE, bases, small, weight};

/// Runs our separate ops, one after the other.
fn unfused(x: &Array, base: &LinearWeight, a: &Array, b: &Array) -> Result<Array> {
    let options = Linear::default();
    let y = match base {
        LinearWeight::Plain(w) => ops::linear(x, w, options)?,
        LinearWeight::Quantized(w) => ops::quantized_linear(x, w, QuantizedLinear::default())?,
    };
    let z = ops::linear(&ops::linear(x, a, options)?, b, options)?;
    y.add(z.multiply(Array::scalar(SCALE)?.astype(x.dtype())?)?)
}

/// The fused op rounds in the same order as the separate ops. With few rows, it also adds in the
/// same order.
#[test]
fn rounds_as_separate_ops() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (base, _) in bases(40, 128, dtype)? {
                for rows in [1, 5, 20] {
                    let x = random(&[rows, 128], dtype, 6)?;
                    let (a, b) = (small(&[8, 128], dtype, 7)?, small(&[40, 8], dtype, 8)?);
                    let y = numbers(&ops::lora_linear(&x, &base, &a, &b, SCALE)?)?;
                    let want = unfused(&x, &base, &a, &b)?;
                    let peer = builtin::composition(&ops::lora_linear(&x, &base, &a, &b, SCALE)?)?;
                    assert_eq!(peer[0].shape(), want.shape());
                    // Adding 128 products in another order changes the result by up to half an f32
                    // ulp of a partial sum per product. Partial sums are at most four before biases
                    // are added.
                    let ulps = if dtype == Dtype::Float32 { 256.0 } else { 4.0 };
                    let mut tipped = 0;
                    for (got, want) in y.iter().zip(numbers(&want)?) {
                        let error = (got - want).abs();
                        assert!(error <= ulps * ulp(want.abs().max(1.0), dtype), "{got} {want}");
                        tipped += usize::from(error > 0.0);
                    }
                    let allowed = if dtype == Dtype::Float32 { y.len() } else { 1 + y.len() / 20 };
                    assert!(tipped <= allowed, "{dtype} {rows}: {tipped} of {}", y.len());
                }
            }
        }
        Ok(())
    })
}

#[test]
fn merging_gives_the_same_layer() -> Checked {
    for (base, dense) in bases(12, 64, Dtype::Float32)? {
        let (a, b) = (small(&[4, 64], Dtype::Float32, 70)?, small(&[12, 4], Dtype::Float32, 71)?);
        let lora = Lora::new(a.clone(), b.clone(), SCALE)?;
        let of_mlx_lm = Lora::from_mlx_lm(&a.t()?, &b.t()?, SCALE)?;
        let x = random32(&[3, 64], 72)?;
        assert_same(&of_mlx_lm.apply(&x, &base)?, &lora.apply(&x, &base)?, "mlx-lm")?;
        let (update, _) = product(&numbers(&b)?, &numbers(&a.t()?)?, 4);
        let values = |base: &LinearWeight| match base {
            LinearWeight::Plain(w) => numbers(w),
            LinearWeight::Quantized(w) => numbers(&w.dequantize_to(Dtype::Float32)?),
        };
        let merged = lora.merge(&base)?;
        // Merged quantized weights are wrong by up to one quantization step: their range divided by
        // the number of steps. Merged plain weights have the error of f32.
        let step = match &base {
            LinearWeight::Plain(_) => 1e-5,
            LinearWeight::Quantized(w) => 3.0 / f64::from((1 << w.bits()) - 1),
        };
        let pairs = dense.iter().zip(&update);
        let want: Vec<f64> = pairs.map(|(w, u)| w + f64::from(SCALE) * u).collect();
        assert_close(&values(&merged)?, &want, step, "merged");
        assert_close(&values(&lora.unmerge(&merged)?)?, &dense, 2.0 * step, "unmerged");

        // With magnitudes, each row of the merged weight is scaled so that its norm is the row's
        // magnitude.
        let magnitude = random32(&[12], 73)?.abs()?.add(0.5)?;
        let scaled = lora.clone().with_magnitude(magnitude.clone())?;
        let (factors, wide) = (numbers(&magnitude)?, 64);
        let rows = want.chunks(wide).zip(&factors).map(|(row, m)| {
            let norm = row.iter().map(|w| w * w).sum::<f64>().sqrt();
            row.iter().map(move |w| w * m / norm)
        });
        let want: Vec<f64> = rows.flatten().collect();
        assert_close(&values(&scaled.merge(&base)?)?, &want, step, "merged magnitudes");
        let (y, _) = product(&numbers(&x)?, &want, wide);
        assert_close(&numbers(&scaled.apply(&x, &base)?)?, &y, 1e-4, "magnitudes");
        assert!(scaled.unmerge(&base).is_err());
        assert!(scaled.clone().with_magnitude(random32(&[11], 74)?).is_err());
        // The derivatives treat the rows' norms as constants.
        let sum = |(m, b): (Array, Array)| {
            Lora::new(a.clone(), b, SCALE)?.with_magnitude(m)?.apply(&x, &base)?.sum(..)
        };
        let (of_m, of_b) = transforms::grad(sum, (&magnitude, &b))?;
        let column = |at: usize| y.iter().skip(at).step_by(12).sum::<f64>();
        let slopes: Vec<f64> = factors.iter().zip(0..).map(|(m, at)| column(at) / m).collect();
        assert_close(&numbers(&of_m)?, &slopes, 1e-4, "slopes of magnitudes");
        let (low, _) = product(&numbers(&x)?, &numbers(&a)?, wide);
        let factors = numbers(&scaled.row_factors(&base, None)?.expect("magnitudes"))?;
        let slope = |at: usize| low.iter().skip(at).step_by(4).sum::<f64>() * f64::from(SCALE);
        let slopes: Vec<f64> =
            factors.iter().flat_map(|f| (0..4).map(move |at| f * slope(at))).collect();
        assert_close(&numbers(&of_b)?, &slopes, 1e-4, "slopes of B");
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_weights_once() -> Checked {
    let (n, k, dtype) = (256, 1024, Dtype::Bfloat16);
    let w = weight(FORMATS[3], n, k, dtype, 80)?;
    let x = random(&[1, k], dtype, 81)?;
    let (a, b) = (small(&[8, k], dtype, 82)?, small(&[n, 8], dtype, 83)?);
    for array in [&x, &a, &b, w.packed(), w.scales(), w.biases().expect("affine")] {
        array.eval()?;
    }
    let bytes = w.nbytes() + x.nbytes() + a.nbytes() + b.nbytes() + n as usize * 2;
    let w = LinearWeight::from(w);
    let moved = crate::support::moved(|| ops::lora_linear(&x, &w, &a, &b, SCALE))?;
    // The three dispatches compute the product with the base weight, the product of x and A, and
    // the product of that result and B, which is added to the first.
    assert_eq!(moved.len(), 3);
    crate::support::report_traffic("lora_linear", &moved, bytes)
}
