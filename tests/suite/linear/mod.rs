//! Linear layers and products of matrices against f64 and against MLX's: extents, layouts, what
//! follows the product.

mod derivatives;

use half::f16;
use mlx_primitives::ops::{self, Activation, LinearOptions};
use mlx_primitives::{Array, Dtype, builtin};

use crate::support::compare::{assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, LAYOUTS, data, random, random32};
use crate::support::{self, Checked, each_device, message, simulated};

/// What a sum of k products in f32 may be off by: half an ulp of the sum of magnitudes for each
/// addition in the worst chain, of which the root is what random signs leave; times 8 for safety.
fn slack(magnitude: f64, k: usize) -> f64 {
    magnitude * 2f64.powi(-24) * 8.0 * (4.0 + (k as f64).sqrt())
}

/// x [m, k] times w [n, k]: the sums and their slack.
fn products(x: &[f64], w: &[f64], n: usize, k: usize) -> (Vec<f64>, Vec<f64>) {
    let rows = x.len().checked_div(k).unwrap_or(0);
    let (mut sums, mut slacks) = (Vec::new(), Vec::new());
    for i in 0..rows {
        for j in 0..n {
            let terms = || x[i * k..][..k].iter().zip(&w[j * k..][..k]).map(|(a, b)| a * b);
            sums.push(terms().sum());
            slacks.push(slack(terms().map(f64::abs).sum(), k));
        }
    }
    (sums, slacks)
}

/// The product alone: within its slack and a rounding of f64, within both and an ulp of MLX's.
fn check_product(y: &Array, want: &[f64], slacks: &[f64], what: &str) -> Checked {
    let peer = builtin::composition(y)?.swap_remove(0);
    assert_eq!((y.shape(), y.dtype()), (peer.shape(), peer.dtype()), "{what}");
    let (got, theirs) = (numbers(y)?, numbers(&peer)?);
    assert_eq!(got.len(), want.len(), "{what}");
    for i in 0..got.len() {
        let rounding = ulp(want[i], y.dtype());
        let error = (got[i] - want[i]).abs();
        assert!(error <= slacks[i] + 0.51 * rounding, "{what}: {} for {}", got[i], want[i]);
        let apart = (got[i] - theirs[i]).abs();
        assert!(apart <= 2.0 * slacks[i] + rounding, "{what}: {}, MLX's {}", got[i], theirs[i]);
    }
    Ok(())
}

/// m, n, k: few rows, tiles, edges of both, more than a chunk and than a block of k.
const EXTENTS: [[i32; 3]; 15] = [
    [1, 1, 1],
    [1, 37, 100],
    [2, 16, 31],
    [3, 5, 130],
    [4, 33, 1029],
    [5, 40, 2],
    [8, 70, 600],
    [1, 3, 4100],
    [9, 7, 33],
    [16, 65, 40],
    [33, 31, 17],
    [40, 64, 64],
    [65, 70, 5],
    [0, 5, 3],
    [20, 0, 3],
];

#[test]
fn sizes_in_every_type() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for [m, n, k] in EXTENTS {
                let (x, w) = (random(&[m, k], dtype, 1)?, random(&[n, k], dtype, 2)?);
                let (want, slacks) = products(&numbers(&x)?, &numbers(&w)?, n as usize, k as usize);
                let what = format!("{dtype} {m}x{n}x{k}");
                let y = ops::linear(&x, &w, &LinearOptions::default())?;
                check_product(&y, &want, &slacks, &what)?;
                let y = ops::matmul(&x, &w, true)?;
                check_product(&y, &want, &slacks, &format!("{what} transposed"))?;
                let y = ops::matmul(&x, &w.t()?.contiguous()?, false)?;
                check_product(&y, &want, &slacks, &format!("{what} columns"))?;
            }
        }
        Ok(())
    })
}

#[test]
fn no_products_are_zeros() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (m, n) in [(1, 5), (20, 40), (3, 0), (0, 3)] {
                let (x, w) = (random(&[m, 0], dtype, 1)?, random(&[n, 0], dtype, 2)?);
                let bias = random(&[n], dtype, 3)?;
                let options = LinearOptions { bias: Some(&bias), ..Default::default() };
                let want = bias.add(Array::zeros::<f32>(&[m, n])?.astype(dtype)?)?;
                assert_same(&ops::linear(&x, &w, &options)?, &want, "only a bias")?;
            }
        }
        Ok(())
    })
}

/// The rounded product is taken as given: what follows is then the same as MLX's ops on it.
#[test]
fn each_step_after_the_product_is_rounded() -> Checked {
    let activations =
        [Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu].map(Some);
    each_device(|_| {
        for dtype in FLOATS {
            for (m, n, k) in [(1, 19, 40), (6, 33, 24), (35, 41, 16)] {
                let (x, w) = (random(&[1, m, k], dtype, 4)?, random(&[n, k], dtype, 5)?);
                let w = w.multiply(0.2f32)?.astype(dtype)?;
                let (bias, residual) = (random(&[n], dtype, 6)?, random(&[1, m, n], dtype, 7)?);
                let product = ops::linear(&x, &w, &LinearOptions::default())?;
                for activation in [None].into_iter().chain(activations) {
                    for bias in [None, Some(&bias)] {
                        for residual in [None, Some(&residual)] {
                            let options = LinearOptions { bias, activation, residual };
                            let y = ops::linear(&x, &w, &options)?;
                            let mut want = product.clone();
                            if let Some(bias) = bias {
                                want = want.add(bias)?;
                            }
                            want = match activation {
                                None => want,
                                Some(Activation::Relu) => ops::relu(&want)?,
                                Some(Activation::Gelu) => ops::gelu(&want)?,
                                Some(Activation::GeluTanh) => ops::gelu_tanh(&want)?,
                                Some(Activation::Silu) => ops::silu(&want)?,
                            };
                            if let Some(residual) = residual {
                                want = want.add(residual)?;
                            }
                            let what = format!("{dtype} {m} {activation:?} {}", bias.is_some());
                            assert_same(&y, &want, &what)?;
                        }
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn layouts() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for layout in LAYOUTS {
                let (x, w) =
                    (layout.make(&[2, 5, 12], dtype, 8)?, layout.make(&[9, 12], dtype, 9)?);
                let residual = layout.make(&[2, 5, 9], dtype, 10)?;
                let bias = layout.make(&[9, 9], dtype, 11)?.slice_axis(0, 1..2)?.squeeze(&[0])?;
                let what = format!("{dtype} {layout:?}");
                let with = |x: &Array, w: &Array, bias: &Array, residual: &Array| {
                    let (bias, residual) = (Some(bias), Some(residual));
                    ops::linear(x, w, &LinearOptions { bias, activation: None, residual })
                };
                let plain = |x: &Array| x.contiguous();
                let want = with(&plain(&x)?, &plain(&w)?, &plain(&bias)?, &plain(&residual)?)?;
                assert_same(&with(&x, &w, &bias, &residual)?, &want, &what)?;
                for transposed in [true, false] {
                    let b = layout.make(if transposed { &[9, 12] } else { &[12, 9] }, dtype, 12)?;
                    let want = ops::matmul(&plain(&x)?, &plain(&b)?, transposed)?;
                    assert_same(&ops::matmul(&x, &b, transposed)?, &want, &what)?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn leading_axes_and_batches() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            let w = random(&[6, 10], dtype, 13)?;
            for shape in [&[10][..], &[1, 10], &[2, 1, 3, 10], &[2, 0, 10]] {
                let x = random(shape, dtype, 14)?;
                let (want, slacks) = products(&numbers(&x)?, &numbers(&w)?, 6, 10);
                let y = ops::linear(&x, &w, &LinearOptions::default())?;
                check_product(&y, &want, &slacks, &format!("{shape:?}"))?;
            }
            for (a, b) in [
                (&[3, 4, 10][..], &[3, 5, 10][..]),
                (&[2, 3, 20, 10], &[3, 5, 10]),
                (&[4, 10], &[2, 5, 10]),
                (&[2, 1, 4, 10], &[1, 3, 5, 10]),
                (&[2, 3, 4, 10], &[5, 10]),
            ] {
                let (a, b) = (random(a, dtype, 15)?, random(b, dtype, 16)?);
                let columns = b.t()?;
                let y = ops::matmul(&a, &b, true)?;
                assert_eq!(y.shape(), ops::matmul(&a, &columns, false)?.shape());
                let peer = numbers(&builtin::composition(&y)?[0])?;
                // Ten products of up to 9 each.
                let tolerance = slack(90.0, 10) + ulp(90.0, dtype);
                assert_close(&numbers(&y)?, &peer, tolerance, "transposed");
                let y = numbers(&ops::matmul(&a, &columns, false)?)?;
                assert_close(&y, &peer, tolerance, "columns");
            }
        }
        Ok(())
    })
}

#[test]
fn types_are_promoted() -> Checked {
    each_device(|_| {
        let (x, w) = (random(&[3, 8], Dtype::Float16, 17)?, random(&[5, 8], Dtype::Bfloat16, 18)?);
        let y = ops::linear(&x, &w, &LinearOptions::default())?;
        assert_eq!(y.dtype(), Dtype::Float32);
        let wide = |x: &Array| x.astype(Dtype::Float32);
        assert_same(&y, &ops::matmul(&wide(&x)?, &wide(&w)?, true)?, "float16 and bfloat16")?;
        let bias = random32(&[5], 19)?;
        let options = LinearOptions { bias: Some(&bias), ..Default::default() };
        let y = ops::linear(&x, &x.slice_axis(0, 0..1)?.broadcast_to(&[5, 8])?, &options)?;
        assert_eq!(y.dtype(), Dtype::Float32);
        let whole = x.astype(Dtype::Int32)?;
        assert_eq!(ops::matmul(&whole, &bias.broadcast_to(&[8, 5])?, false)?.dtype(), y.dtype());
        Ok(())
    })
}

#[test]
fn extremes() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for m in [2, 12] {
                let mut x = vec![1.0f32; m * 20];
                (x[3], x[25], x[26]) = (f32::INFINITY, f32::NAN, 1.0);
                let x = data(&x, &[m as i32, 20], dtype)?;
                let w = data(&[1.0; 20 * 7], &[7, 20], dtype)?;
                let y = numbers(&ops::matmul(&x, &w, true)?)?;
                for (i, y) in y.iter().enumerate() {
                    match i / 7 {
                        0 => assert_eq!(*y, f64::INFINITY),
                        1 => assert!(y.is_nan()),
                        _ => assert_eq!(*y, 20.0),
                    }
                }
            }
        }
        // Sums beyond float16 on the way, but not in the end; then also in the end.
        let large = f16::MAX.to_f32();
        let x = data(&[large, large, -large, -large, 1.0], &[1, 5], Dtype::Float16)?;
        let w = data(&[1.0; 5], &[1, 5], Dtype::Float16)?;
        assert_eq!(numbers(&ops::matmul(&x, &w, true)?)?, [1.0]);
        let x = data(&[large, large, 0.0, 0.0, 1.0], &[1, 5], Dtype::Float16)?;
        assert_eq!(numbers(&ops::matmul(&x, &w, true)?)?, [f64::INFINITY]);
        Ok(())
    })
}

#[test]
fn refusals() -> Checked {
    let (x, w) = (random32(&[2, 8], 60)?, random32(&[5, 8], 61)?);
    let none = LinearOptions::default();
    for (x, w) in [
        (&[2, 7][..], &[5, 8][..]),
        (&[], &[5, 8]),
        (&[2, 8], &[8]),
        (&[2, 8], &[1, 5, 8]),
        (&[8, 2], &[5, 8]),
    ] {
        let said = message(ops::linear(&random32(x, 62)?, &random32(w, 63)?, &none));
        assert!(said.starts_with("[linear] expected x [..., k] and w [n, k], got "), "{said}");
    }
    for shape in [&[1][..], &[8], &[1, 5], &[]] {
        let bias = random32(shape, 64)?;
        let options = LinearOptions { bias: Some(&bias), ..none };
        let said = message(ops::linear(&x, &w, &options));
        assert!(said.starts_with("[linear] expected bias of shape (5), got "), "{said}");
    }
    for shape in [&[5][..], &[1, 5], &[2, 8], &[1, 2, 5]] {
        let residual = random32(shape, 65)?;
        let options = LinearOptions { residual: Some(&residual), ..none };
        let said = message(ops::linear(&x, &w, &options));
        assert!(said.starts_with("[linear] expected residual of shape (2,5), got "), "{said}");
    }
    for dtype in [Dtype::Int32, Dtype::Bool, Dtype::Complex64, Dtype::Float64] {
        let said = message(ops::linear(&x.astype(dtype)?, &w.astype(dtype)?, &none));
        assert!(
            said.starts_with("[linear] expected float32") && said.contains(dtype.name()),
            "{said}"
        );
        let said = message(ops::matmul(&x.astype(dtype)?, &w.astype(dtype)?, true));
        assert!(
            said.starts_with("[matmul] expected float32") && said.contains(dtype.name()),
            "{said}"
        );
    }
    for (a, b, transposed) in [
        (&[2, 8][..], &[5, 8][..], false),
        (&[2, 8], &[8, 5], true),
        (&[8], &[8, 5], false),
        (&[2, 8], &[8], true),
    ] {
        let said = message(ops::matmul(&random32(a, 66)?, &random32(b, 67)?, transposed));
        assert!(said.starts_with("[matmul] expected a [..., m, k] and b"), "{said}");
    }
    assert!(ops::matmul(&random32(&[2, 3, 8], 68)?, &random32(&[3, 5, 8], 69)?, true).is_err());
    Ok(())
}

/// A residual that nothing else reads lends its buffer; one that is read again keeps it.
#[test]
fn a_chain_of_residuals() -> Checked {
    each_device(|_| {
        let (x, w) = (random32(&[4, 16], 70)?, random32(&[16, 16], 71)?.multiply(0.01f32)?);
        let rounds = if simulated() { 10 } else { 100 };
        let (mut y, mut want) = (x.clone(), x.clone());
        for _ in 0..rounds {
            y = ops::linear(&x, &w, &LinearOptions { residual: Some(&y), ..Default::default() })?;
            want = ops::matmul(&x, &w, true)?.add(&want)?;
        }
        assert_same(&y, &want, "chain")?;
        assert_same(&x, &random32(&[4, 16], 70)?, "the input")?;
        Ok(())
    })
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_weights_once_for_few_rows() -> Checked {
    for (dtype, m) in [(Dtype::Float32, 1), (Dtype::Bfloat16, 1), (Dtype::Float16, 8)] {
        let (x, w) = (random(&[m, 512], dtype, 80)?, random(&[128, 512], dtype, 81)?);
        x.eval()?;
        w.eval()?;
        let moved = support::moved(|| ops::linear(&x, &w, &LinearOptions::default()))?;
        let (wide, rows) = (w.nbytes() as u64, x.nbytes() as u64);
        let out = rows / 4;
        assert_eq!(moved[0].arrays[1], [wide, 0, wide], "{dtype} {m}");
        assert_eq!(*moved[0].arrays.last().expect("out"), [0, out, 0], "{dtype} {m}");
        // Each threadgroup of 32 rows of w stages x.
        assert_eq!(moved[0].arrays[0], [4 * rows, 0, rows], "{dtype} {m}");
        let name = if m > 1 { "linear, 8 rows" } else { "linear" };
        support::report_traffic(name, &moved, x.nbytes() + w.nbytes() + out as usize)?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_tiles_as_often_as_they_are_needed() -> Checked {
    let (m, n, k) = (128u64, 192u64, 64u64);
    let (x, w) = (random32(&[128, 64], 82)?, random32(&[192, 64], 83)?);
    x.eval()?;
    w.eval()?;
    for transposed in [true, false] {
        let w = if transposed { w.clone() } else { w.t()?.contiguous()? };
        w.eval()?;
        let moved = support::moved(|| ops::matmul(&x, &w, transposed))?;
        // Tiles of 64 by 64 outputs.
        assert_eq!(moved[0].arrays[0], [4 * m * k * (n / 64), 0, 4 * m * k]);
        assert_eq!(moved[0].arrays[1], [4 * n * k * (m / 64), 0, 4 * n * k]);
        assert_eq!(*moved[0].arrays.last().expect("out"), [0, 4 * m * n, 0]);
        let name = if transposed { "linear, 128 rows" } else { "matmul" };
        support::report_traffic(name, &moved, 4 * (m * k + n * k + m * n) as usize)?;
    }
    Ok(())
}
