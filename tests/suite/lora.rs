//! Linear layers with low-rank updates against f64 and against the same ops one after the other.

use mlx_primitives::ops::{self, LinearOptions, LinearWeight, Lora, QuantizedOptions};
use mlx_primitives::transforms::{jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin};

use crate::quantized_matmul::{FORMATS, decoded, product, weight};
use crate::support::compare::{assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, LAYOUTS, random, random32};
use crate::support::{Checked, each_device, message, reference, refs, simulated};

const SCALE: f32 = 1.7;

fn small(shape: &[i32], dtype: Dtype, seed: u64) -> Result<Array> {
    random(shape, dtype, seed)?.multiply(Array::scalar(0.2f32)?.astype(dtype)?)
}

/// The base, and what it stands for.
fn bases(n: i32, k: i32, dtype: Dtype) -> anyhow::Result<Vec<(LinearWeight, Vec<f64>)>> {
    let plain = small(&[n, k], dtype, 1)?;
    let dense = numbers(&plain)?;
    let mut bases = vec![(plain.into(), dense)];
    for format in [FORMATS[1], FORMATS[3], FORMATS[7]] {
        if k % format.0 == 0 {
            let w = weight(format, n, k, dtype, 2)?;
            let dense = decoded(&w, dtype)?;
            bases.push((w.into(), dense));
        }
    }
    Ok(bases)
}

/// Our own ops, one after the other.
fn unfused(x: &Array, base: &LinearWeight, a: &Array, b: &Array) -> Result<Array> {
    let options = LinearOptions::default();
    let y = match base {
        LinearWeight::Plain(w) => ops::linear(x, w, &options)?,
        LinearWeight::Quantized(w) => ops::quantized_linear(x, w, &QuantizedOptions::default())?,
    };
    let z = ops::linear(&ops::linear(x, a, &options)?, b, &options)?;
    y.add(z.multiply(Array::scalar(SCALE)?.astype(x.dtype())?)?)
}

#[test]
fn every_base_rank_and_size() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (n, k) in [(1, 1), (7, 33), (37, 128), (20, 256)] {
                for (base, dense) in bases(n, k, dtype)? {
                    for rank in [1, 4, 8, 17, 40] {
                        for rows in [0, 1, 3, 11, 35] {
                            if simulated() && (rank == 40 || rows == 35) {
                                continue;
                            }
                            let x = random(&[rows, k], dtype, 3)?;
                            let (a, b) =
                                (small(&[rank, k], dtype, 4)?, small(&[n, rank], dtype, 5)?);
                            let what = format!("{dtype} {rows}x{n}x{k} rank {rank}");
                            let y = ops::lora_linear(&x, &base, &a, &b, SCALE)?;
                            assert_eq!((y.shape(), y.dtype()), (&[rows, n][..], dtype), "{what}");
                            if rows == 0 {
                                y.eval()?;
                                continue;
                            }
                            let x = numbers(&x)?;
                            let (base, reach) = product(&x, &dense, k as usize);
                            let (low, low_reach) = product(&x, &numbers(&a)?, k as usize);
                            let b = numbers(&b)?;
                            let (high, _) = product(&low, &b, rank as usize);
                            let magnitudes: Vec<f64> = b.iter().map(|b| b.abs()).collect();
                            let (high_reach, _) = product(&low_reach, &magnitudes, rank as usize);
                            let scale = numbers(&Array::scalar(SCALE)?.astype(dtype)?)?[0];
                            // Five roundings, of which the first goes through B, and weights that
                            // were rounded where many rows meet them.
                            for (i, got) in numbers(&y)?.into_iter().enumerate() {
                                let correction = scale * high[i];
                                let want = base[i] + correction;
                                let terms = base[i].abs() + correction.abs() + want.abs();
                                let decoded = if rows > 8 { reach[i] } else { 0.0 };
                                let epsilon = ulp(1.0, dtype);
                                let bound = epsilon * (terms + scale * high_reach[i] + decoded)
                                    + 4e-6 * (reach[i] + scale * high_reach[i]);
                                let error = (got - want).abs();
                                assert!(
                                    error <= bound,
                                    "{what}: {got}, expected {want}, {bound:e}"
                                );
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    })
}

/// The order of roundings is that of the separate ops; sums of few rows are even the same ones.
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
                    // f32 sums of 128 products in another order err by half an ulp of a partial sum each.
                    let ulps = if dtype == Dtype::Float32 { 64.0 } else { 4.0 };
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
fn layouts_of_every_input() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            let plain = |x: &Array| -> Result<Array> {
                Array::from_slice(&x.astype(Dtype::Float32)?.to_vec::<f32>()?, x.shape())?
                    .astype(dtype)
            };
            for layout in LAYOUTS {
                let make = |shape: &[i32], seed| layout.make(shape, dtype, seed);
                let x = make(&[2, 3, 64], 9)?;
                let (w, a, b) = (make(&[12, 64], 10)?, make(&[4, 64], 11)?, make(&[12, 4], 12)?);
                let y = ops::lora_linear(&x, &(&w).into(), &a, &b, SCALE)?;
                let base = plain(&w)?.into();
                let want = ops::lora_linear(&plain(&x)?, &base, &plain(&a)?, &plain(&b)?, SCALE)?;
                assert_same(&y, &want, &format!("{dtype} {layout:?}"))?;
            }
        }
        Ok(())
    })
}

const ROWS: i32 = 3;
const N: i32 = 5;
const K: i32 = 64;
const RANK: i32 = 2;
/// Sums of 64 products of numbers up to 9, in f32.
const TOLERANCE: f64 = 5e-5;

fn lora_in_f64(p: &[Vec<f64>], dense: &[f64]) -> Vec<f64> {
    let (y, _) = product(&p[0], dense, K as usize);
    let (low, _) = product(&p[0], &p[1], K as usize);
    let (high, _) = product(&low, &p[2], RANK as usize);
    y.iter().zip(high).map(|(y, z)| y + f64::from(SCALE) * z).collect()
}

#[test]
fn derivatives_by_finite_differences() -> Checked {
    each_device(|_| {
        for (base, dense) in bases(N, K, Dtype::Float32)? {
            let shapes: [&[i32]; 3] = [&[ROWS, K], &[RANK, K], &[N, RANK]];
            let make = |seed: u64| -> Result<Vec<Array>> {
                shapes
                    .iter()
                    .zip(seed..)
                    .map(|(shape, seed)| small(shape, Dtype::Float32, seed))
                    .collect()
            };
            let (primals, tangents, g) = (make(20)?, make(30)?, random32(&[ROWS, N], 40)?);
            let p: Vec<Vec<f64>> = primals.iter().map(numbers).collect::<Result<_>>()?;
            let t: Vec<Vec<f64>> = tangents.iter().map(numbers).collect::<Result<_>>()?;
            let of_g = numbers(&g)?;
            let f = |p: &[Array]| Ok(vec![ops::lora_linear(&p[0], &base, &p[1], &p[2], SCALE)?]);
            let (y, gradients) = vjp(f, &refs(&primals), &[&g])?;
            assert_same(&y[0], &f(&primals)?[0], "value")?;
            for argument in 0..3 {
                let want = reference::gradient(&p[argument], 1e-5, |at| {
                    let mut p = p.clone();
                    p[argument] = at.to_vec();
                    reference::dot(&of_g, &lora_in_f64(&p, &dense))
                });
                assert_eq!(gradients[argument].shape(), primals[argument].shape());
                assert_close(&numbers(&gradients[argument])?, &want, TOLERANCE, "vjp");
            }
            // Each alone as among the others.
            for argument in 0..3usize {
                let alone = |x: &[Array]| {
                    let mut p = primals.clone();
                    p[argument] = x[0].clone();
                    f(&p)
                };
                let gradient = vjp(alone, &[&primals[argument]], &[&g])?.1;
                assert_same(&gradient[0], &gradients[argument], "alone")?;
            }
            let (_, forward) = jvp(f, &refs(&primals), &refs(&tangents))?;
            let moved = |h: f64| {
                let step = |(p, t): (&Vec<f64>, &Vec<f64>)| {
                    p.iter().zip(t).map(|(p, t)| p + h * t).collect()
                };
                lora_in_f64(&p.iter().zip(&t).map(step).collect::<Vec<_>>(), &dense)
            };
            let want: Vec<f64> =
                moved(1e-5).iter().zip(moved(-1e-5)).map(|(a, b)| (a - b) / 2e-5).collect();
            assert_close(&numbers(&forward[0])?, &want, TOLERANCE, "jvp");
        }
        // A plain base has a gradient as well.
        let (w, x, g) =
            (random32(&[N, K], 50)?, random32(&[ROWS, K], 51)?, random32(&[ROWS, N], 52)?);
        let (a, b) = (random32(&[RANK, K], 53)?, random32(&[N, RANK], 54)?);
        let f = |p: &[Array]| Ok(vec![ops::lora_linear(&x, &(&p[0]).into(), &a, &b, SCALE)?]);
        let gradient = vjp(f, &[&w], &[&g])?.1;
        let want = ops::matmul(&g.t()?, &x, false)?;
        assert_close(&numbers(&gradient[0])?, &numbers(&want)?, TOLERANCE, "base");
        Ok(())
    })
}

#[test]
fn vmap_over_x_and_over_adapters() -> Checked {
    each_device(|_| {
        for (base, _) in bases(N, K, Dtype::Float32)? {
            let f = |p: &[Array]| Ok(vec![ops::lora_linear(&p[0], &base, &p[1], &p[2], SCALE)?]);
            let (x, a, b) = (
                random32(&[2, ROWS, K], 60)?,
                random32(&[2, RANK, K], 61)?,
                random32(&[N, 2, RANK], 62)?,
            );
            let entry =
                |x: &Array, axis: i32, i: i32| x.slice_axis(axis, i..i + 1)?.squeeze(&[axis]);
            let (a0, b0) = (entry(&a, 0, 0)?, entry(&b, 1, 0)?);
            let folded = &vmap(f, &[&x, &a0, &b0], &[Some(1), None, None], &[1])?[0];
            let whole = &f(&[x.clone(), a0, b0])?[0];
            assert_close(&numbers(folded)?, &numbers(whole)?, 1e-6, "x");
            let each = &vmap(f, &[&x, &a, &b], &[Some(0), Some(0), Some(1)], &[0])?[0];
            for i in 0..2 {
                let want = &f(&[entry(&x, 0, i)?, entry(&a, 0, i)?, entry(&b, 1, i)?])?[0];
                assert_same(&entry(each, 0, i)?, want, "adapters")?;
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
        // A format of 15 steps or fewer over the range of the merged weights, or of f32.
        let step = match &base {
            LinearWeight::Plain(_) => 1e-5,
            LinearWeight::Quantized(w) => 3.0 / f64::from((1 << w.bits()) - 1),
        };
        let pairs = dense.iter().zip(&update);
        let want: Vec<f64> = pairs.map(|(w, u)| w + f64::from(SCALE) * u).collect();
        assert_close(&values(&merged)?, &want, step, "merged");
        assert_close(&values(&lora.unmerge(&merged)?)?, &dense, 2.0 * step, "unmerged");
    }
    Ok(())
}

#[test]
fn refuses_what_does_not_fit() -> Checked {
    let (x, w) = (random32(&[2, 64], 80)?, random32(&[5, 64], 81)?);
    let (a, b) = (random32(&[3, 64], 82)?, random32(&[5, 3], 83)?);
    let base = LinearWeight::from(&w);
    let vector = LinearWeight::from(random32(&[64], 84)?);
    let whole = LinearWeight::from(w.astype(Dtype::Int32)?);
    for (y, expected) in [
        (ops::lora_linear(&w.t()?, &base, &a, &b, 1.0), "a last axis of 64"),
        (ops::lora_linear(&x, &vector, &a, &b, 1.0), "a matrix of weights"),
        (ops::lora_linear(&x, &whole, &a, &b, 1.0), "floating weights"),
        (ops::lora_linear(&x, &base, &b, &b, 1.0), "a of shape (rank, 64)"),
        (ops::lora_linear(&x, &base, &a, &a, 1.0), "b of shape (5, 3)"),
        (Lora::new(b.clone(), a.clone(), 1.0).map(|_| x.clone()), "a of shape [rank, k]"),
    ] {
        let text = message(y);
        assert!(text.contains(expected), "{text}");
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
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
    // The base, x with A, and their product with B on top of the base.
    assert_eq!(moved.len(), 3);
    crate::support::report_traffic("lora_linear", &moved, bytes)
}
