//! Quantized products: single rows and batches, fused operations, several weights at once, extreme
//! numbers. The conformance table (`tests/catalog`) tests their values.

mod centered;
mod k_quants;
mod weights;

use mlx_primitives::ops::{self, QuantizedLinear, QuantizedMode, QuantizedWeight};
use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Dtype, Result, builtin, concatenate};

use crate::support::compare::{assert_close, assert_same, is_nvidia, numbers, ulp};
use crate::support::input::{FLOATS, random, random32};
use crate::support::{Checked, EPS, each_device, message, refs, simulated};
use crate::table::inputs::{FORMATS, decoded, weight};

#[test]
fn groups_and_bits_that_no_kernel_has_are_refused() -> Checked {
    let w = random(&[2, 64], Dtype::Float32, 1)?;
    for number in [0, -1, 7, 1 << 20, i32::MAX, i32::MIN] {
        for (group, bits) in [(number, 4), (32, number), (number, number)] {
            for mode in QuantizedMode::ALL {
                let text = message(QuantizedWeight::quantize(&w, group, bits, mode));
                assert!(text.starts_with("[quantized_weight] expected"), "{text}");
            }
        }
    }
    Ok(())
}

/// Returns the elements of `x · Wᵀ`, and for each element the sum of its terms' magnitudes.
pub fn product(x: &[f64], w: &[f64], k: usize) -> (Vec<f64>, Vec<f64>) {
    let pairs = x
        .chunks_exact(k)
        .flat_map(|x| w.chunks_exact(k).map(move |w| crate::table::reference_loops::dot(x, w)));
    pairs.unzip()
}

/// The relative distance of adjacent numbers of a type.
fn epsilon(dtype: Dtype) -> f64 {
    ulp(1.0, dtype)
}

/// The allowed error. An f32 sum has an error of a few ulps of its terms' magnitudes, whose sum is
/// `reach`. The kernel rounds the result once. With many rows, it also rounds each decoded weight
/// to the type, by half an ulp.
fn bound(want: f64, reach: f64, rows: usize, dtype: Dtype) -> f64 {
    let decoded = if rows > 8 { reach * epsilon(dtype) / 2.0 } else { 0.0 };
    ulp(want, dtype) * 0.51 + reach * 4e-6 + decoded
}

#[track_caller]
fn check(y: &Array, want: &[f64], reach: &[f64], rows: usize, what: &str) -> anyhow::Result<()> {
    let got = numbers(y)?;
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, got) in got.iter().enumerate() {
        let bound = bound(want[i], reach[i], rows, y.dtype());
        let error = (got - want[i]).abs();
        assert!(error <= bound, "{what}: {got} at {i}, expected {} within {bound:e}", want[i]);
    }
    Ok(())
}

fn linear(x: &Array, w: &QuantizedWeight) -> Result<Array> {
    ops::quantized_linear(x, w, QuantizedLinear::default())
}

/// The gradient of x is a product with `W`, not with its transpose. Its kernel always decodes the
/// weights.
#[test]
fn gradients_of_x() -> Checked {
    let (n, k) = (45, 256);
    each_device(|_| {
        for format in FORMATS {
            for dtype in FLOATS {
                let w = weight(format, n, k, dtype, 3)?;
                let numbers_of_w = decoded(&w, dtype)?;
                let columns = |column: usize| numbers_of_w.iter().skip(column).step_by(k as usize);
                let turned: Vec<f64> = (0..k as usize).flat_map(columns).copied().collect();
                for rows in [2, 37] {
                    let (x, g) = (random(&[rows, k], dtype, 4)?, random(&[rows, n], dtype, 5)?);
                    let gradient = vjp(|x: Array| linear(&x, &w), &x, &g)?.1;
                    let (want, reach) = product(&numbers(&g)?, &turned, n as usize);
                    check(&gradient, &want, &reach, 9, &format!("{format:?} {dtype} {rows}"))?;
                }
            }
        }
        Ok(())
    })
}

/// The gradients of scales and biases equal the gradients of MLX's ops, but may add up in another
/// order.
#[test]
fn gradients_of_scales_and_biases() -> Checked {
    let (n, k) = (24, 128);
    each_device(|_| {
        for (rows, bits) in [(3, 4), (37, 8)] {
            let w =
                QuantizedWeight::quantize(&random32(&[n, k], 3)?, 64, bits, QuantizedMode::Affine)?;
            let x = random32(&[rows, k], 4)?;
            let biases = w.biases().expect("an affine format");
            let primals = [&x, w.scales(), biases, w.scales(), biases];
            for swiglu in [false, true] {
                let of = |p: &[Array]| -> Result<Array> {
                    let with = |scales: &Array, biases: &Array| {
                        let (packed, mode) = (w.packed().clone(), QuantizedMode::Affine);
                        let biases = Some(biases.clone());
                        QuantizedWeight::new(packed, scales.clone(), biases, 64, bits, mode)
                    };
                    let (first, second) = (with(&p[1], &p[2])?, with(&p[3], &p[4])?);
                    match swiglu {
                        true => ops::quantized_swiglu(&p[0], &first, &second, None),
                        false => linear(&p[0], &first)?.add(&linear(&p[0], &second)?),
                    }
                };
                let g = random32(&[rows, n], 5)?;
                let ours = vjp(|p: Vec<Array>| Ok(vec![of(&p)?]), &primals[..], &[&g])?.1;
                let composed = |p: Vec<Array>| match swiglu {
                    true => builtin::composition(&of(&p)?),
                    false => {
                        let of_weight = |scales: &Array, biases: &Array| {
                            let w = ops::dequantize(w.packed(), scales, biases, 64, bits)?;
                            p[0].matmul(&w.t()?)
                        };
                        Ok(vec![of_weight(&p[1], &p[2])?.add(&of_weight(&p[3], &p[4])?)?])
                    }
                };
                let theirs = vjp(composed, &primals[..], &[&g])?.1;
                for (ours, theirs) in ours.iter().zip(&theirs) {
                    let (ours, theirs) = (numbers(ours)?, numbers(theirs)?);
                    let largest = theirs.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                    for (ours, theirs) in ours.iter().zip(&theirs) {
                        assert!((ours - theirs).abs() <= 1e-5 * largest, "{ours}, {theirs}");
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn a_row_is_equal_alone_and_in_a_batch() -> Checked {
    each_device(|_| {
        for format in FORMATS {
            for dtype in FLOATS {
                let w = weight(format, 21, 640, dtype, 3)?;
                let x = random(&[7, 640], dtype, 4)?;
                let all = linear(&x, &w)?;
                for row in [0, 3, 6] {
                    let one = linear(&x.i(row..row + 1)?, &w)?;
                    assert_same(&one, &all.i(row..row + 1)?, &format!("{format:?}"))?;
                }
            }
        }
        Ok(())
    })
}

/// If a machine has only some rows of the weights, the kernel uses threadgroups of another size. It
/// still normalizes x to the same bits.
#[test]
fn normalizes_to_the_same_bits_for_any_rows_of_weights() -> Checked {
    let (all, part, axis) = (8200, 40, 1024);
    let codes: Vec<u32> =
        (0..(all * axis / 8) as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ (i >> 3)).collect();
    let codes = Array::from_slice(&codes, [all, axis / 8])?;
    each_device(|_| {
        for dtype in [Dtype::Float32, Dtype::Bfloat16] {
            let scales = random(&[all, axis / 64], dtype, 1)?;
            let rows = |rows: i32| {
                let scales = scales.slice_axis(0, 0..rows)?;
                let codes = codes.slice_axis(0, 0..rows)?;
                QuantizedWeight::new(
                    codes,
                    scales.clone(),
                    Some(scales),
                    64,
                    4,
                    QuantizedMode::Affine,
                )
            };
            let (x, gain) = (random(&[1, axis], dtype, 2)?, random(&[axis], dtype, 3)?);
            let options = QuantizedLinear { norm: Some((&gain, EPS)), ..Default::default() };
            let few = ops::quantized_linear(&x, &rows(part)?, options)?;
            let many = ops::quantized_linear(&x, &rows(all)?, options)?;
            assert_same(&few, &many.slice_axis(1, 0..part)?, &dtype.to_string())?;
        }
        Ok(())
    })
}

/// The fused normalization equals `rms_norm`, except for the last bit of the sum of squares. On
/// GPUs, threads may divide this sum differently. This changes a few roundings.
#[test]
fn normalizes_the_input() -> Checked {
    each_device(|device| {
        for format in [FORMATS[3], FORMATS[1], FORMATS[7]] {
            for dtype in FLOATS {
                for rows in [1, 4, 17] {
                    let w = weight(format, 26, 1152, dtype, 8)?;
                    let x = random(&[rows, 1152], dtype, 9)?;
                    let gain = random(&[1152], dtype, 10)?;
                    let options =
                        QuantizedLinear { norm: Some((&gain, EPS)), ..Default::default() };
                    let y = ops::quantized_linear(&x, &w, options)?;
                    let normed = ops::rms_norm(&x, Some(&gain), EPS)?;
                    let what = format!("{format:?} {dtype} {rows}");
                    if simulated() || is_nvidia(device) {
                        let (want, reach) = product(&numbers(&normed)?, &decoded(&w, dtype)?, 1152);
                        let tipped: Vec<f64> =
                            reach.iter().map(|r| r * (1.0 + 1e4 * epsilon(dtype))).collect();
                        check(&y, &want, &tipped, rows as usize, &what)?;
                    } else {
                        assert_same(&y, &linear(&normed, &w)?, &what)?;
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn bias_and_residual_round_one_after_the_other() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for rows in [1, 3, 40] {
                let w = weight(FORMATS[3], 35, 128, dtype, 11)?;
                let x = random(&[rows, 128], dtype, 12)?;
                let bias = random(&[35], dtype, 13)?;
                let residual = random(&[rows, 35], dtype, 14)?;
                let product = linear(&x, &w)?;
                let options = |bias, residual| QuantizedLinear { bias, residual, norm: None };
                for (bias, residual) in
                    [(Some(&bias), None), (None, Some(&residual)), (Some(&bias), Some(&residual))]
                {
                    let y = ops::quantized_linear(&x, &w, options(bias, residual))?;
                    let mut want = product.clone();
                    for addend in [bias, residual].into_iter().flatten() {
                        want = want.add(addend)?;
                    }
                    assert_same(&y, &want, &format!("{dtype} {rows}"))?;
                }
                // Nothing else reads this residual, so the result may overwrite its buffer.
                let given =
                    ops::quantized_linear(&x, &w, options(None, Some(&residual.add(&residual)?)))?;
                assert_same(&given, &product.add(residual.add(&residual)?)?, "donated")?;
            }
        }
        Ok(())
    })
}

#[test]
fn several_weights_in_one_dispatch() -> Checked {
    each_device(|_| {
        for format in FORMATS {
            for dtype in FLOATS {
                for rows in [1, 5, 12] {
                    let [q, k, v] = [(40, 15), (9, 16), (9, 17)]
                        .map(|(n, seed)| weight(format, n, 256, dtype, seed));
                    let (q, k, v) = (q?, k?, v?);
                    let x = random(&[rows, 256], dtype, 18)?;
                    let what = format!("{format:?} {dtype} {rows}");
                    let y = ops::quantized_linears(&x, &[&q, &k, &v], None)?;
                    let alone = [linear(&x, &q)?, linear(&x, &k)?, linear(&x, &v)?];
                    assert_same(&y, &concatenate(&refs(&alone), -1)?, &what)?;

                    let gain = random(&[256], dtype, 19)?;
                    let y = ops::quantized_swiglu(&x, &k, &v, Some((&gain, EPS)))?;
                    let joined = ops::quantized_linears(&x, &[&k, &v], Some((&gain, EPS)))?;
                    let joined = numbers(&joined)?;
                    // The kernel rounds three times: the sigmoid, its product with the gate, and
                    // the result.
                    for (i, got) in numbers(&y)?.into_iter().enumerate() {
                        let (gate, up) =
                            (joined[i / 9 * 18 + i % 9], joined[i / 9 * 18 + 9 + i % 9]);
                        let want = gate / (1.0 + (-gate).exp()) * up;
                        // MLX's sigmoid rounds e^|x| to the type. In float16 this overflows above
                        // 65504.
                        let lost = if dtype == Dtype::Float16 { 1.6e-5 } else { 0.0 };
                        let bound = 2.5 * epsilon(dtype) * want.abs()
                            + lost * (gate * up).abs()
                            + 3.0 * ulp(0.0, dtype)
                            + 1e-7;
                        assert!((got - want).abs() <= bound, "{what}: {got}, expected {want}");
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn swiglu_is_bit_for_bit_that_of_mlx() -> Checked {
    if simulated() {
        return Ok(());
    }
    each_device(|device| {
        for dtype in FLOATS {
            let (gate, up) =
                (weight(FORMATS[3], 70, 64, dtype, 20)?, weight(FORMATS[3], 70, 64, dtype, 21)?);
            let x = random(&[3, 64], dtype, 22)?;
            let y = ops::quantized_swiglu(&x, &gate, &up, None)?;
            let (g, u) = (linear(&x, &gate)?, linear(&x, &up)?);
            let want = g.multiply(g.sigmoid()?)?.multiply(&u)?;
            if !is_nvidia(device) {
                assert_same(&y, &want, &format!("{dtype}"))?;
                continue;
            }
            // For NVIDIA GPUs, the compiler fuses products and sums differently in the kernel for
            // two matrices than in the kernel for one. This changes the products `g` and `u` by a
            // few units in the last place. The slope of SiLU, which is applied to `g`, is near 1.
            let (y, want, g, u) = (numbers(&y)?, numbers(&want)?, numbers(&g)?, numbers(&u)?);
            for (i, (y, want)) in y.iter().zip(&want).enumerate() {
                let bound = 8.0 * ulp(1.0, dtype) * (1.0 + g[i].abs()) * (1.0 + u[i].abs());
                assert!((y - want).abs() <= bound, "{dtype}: {y} at {i}, expected {want}");
            }
        }
        Ok(())
    })
}

#[test]
fn extremes() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            let w = weight(FORMATS[3], 5, 128, dtype, 23)?;
            for rows in [1, 10] {
                let clean = random(&[rows, 128], dtype, 24)?;
                for value in [f32::NAN, f32::INFINITY] {
                    let value = Array::scalar(value)?.astype(dtype)?;
                    let x = clean.slice_update((0..1, 77..78), &value)?;
                    let y = numbers(&linear(&x, &w)?)?;
                    assert!(y[..5].iter().all(|v| !v.is_finite()), "{dtype}");
                    assert!(y[5..].iter().all(|v| v.is_finite()), "{dtype}");
                }
            }
        }
        // A sum becomes infinite only if it is outside the type's range.
        let w = weight(FORMATS[3], 2, 64, Dtype::Float16, 25)?;
        let large = Array::from_slice(&[6e4f32; 64], [1, 64])?.astype(Dtype::Float16)?;
        let (want, _) = product(&[6e4; 64], &decoded(&w, Dtype::Float16)?, 64);
        for (got, want) in numbers(&linear(&large, &w)?)?.iter().zip(want) {
            assert_eq!(got.is_infinite(), want.abs() >= 65520.0, "{got} {want}");
        }
        Ok(())
    })
}
