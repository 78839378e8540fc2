//! Compares `linear_cross_entropy` with a linear layer followed by `cross_entropy`. `memory::peaks`
//! measures how much memory it saves.

use mlx_primitives::ops::{
    self, CrossEntropy, Linear, LinearCrossEntropy, LinearWeight, QuantizedLinear,
    linear_cross_entropy,
};
use mlx_primitives::transforms::{compile, grad, jvp, value_and_grad, vmap};
use mlx_primitives::{Array, Dtype, Result};

use crate::support::compare::{assert_close, numbers, ulp};
use crate::support::input::{FLOATS, random, random32};
use crate::support::{Checked, each_device, message};
use crate::table::inputs::{FORMATS, small, weight};

/// Adds a bias to the options.
fn biased<'a>(options: LinearCrossEntropy<'_>, bias: &'a Array) -> LinearCrossEntropy<'a> {
    let LinearCrossEntropy { cross_entropy, chunk_rows, .. } = options;
    LinearCrossEntropy { bias: Some(bias), cross_entropy, chunk_rows }
}

const SMOOTH: CrossEntropy = CrossEntropy { label_smoothing: 0.2, ignore_index: Some(3) };

fn targets(rows: usize, classes: usize) -> Vec<i32> {
    (0..rows).map(|row| (row * 7919 % classes) as i32).collect()
}

fn unfused(
    x: &Array,
    w: &LinearWeight,
    targets: &Array,
    options: LinearCrossEntropy,
) -> Result<Array> {
    let bias = options.bias;
    let logits = match w {
        LinearWeight::Plain(w) => ops::linear(x, w, Linear { bias, ..Default::default() })?,
        LinearWeight::Quantized(w) => {
            ops::quantized_linear(x, w, QuantizedLinear { bias, ..Default::default() })?
        }
    };
    ops::cross_entropy(&logits, targets, options.cross_entropy)
}

/// The largest difference, in ulps of the largest expected number. A sum's error depends on the
/// size of its terms, even if the result is small.
fn distance(got: &Array, want: &Array, what: &str) -> anyhow::Result<f64> {
    assert_eq!((got.shape(), got.dtype()), (want.shape(), want.dtype()), "{what}");
    let (got, expected) = (numbers(got)?, numbers(want)?);
    let largest = expected.iter().fold(0.0f64, |most, v| most.max(v.abs()));
    let pairs = got.iter().zip(&expected);
    let worst = pairs.map(|(got, want)| (got - want).abs()).fold(0.0, f64::max);
    Ok(if worst == 0.0 { 0.0 } else { worst / ulp(largest, want.dtype()) })
}

/// The bound in ulps. Both ops round each logit to the type. They add at most 33 products in
/// float32, in different orders, so a few logits differ by one ulp. For 16-bit types, an ulp of a
/// logit up to 8 is 8 ulps of a loss. A gradient changes by the logit's error times a probability.
/// The fused op rounds the gradient of the weight once per chunk.
fn bound(dtype: Dtype) -> f64 {
    if dtype == Dtype::Float32 { 64.0 } else { 8.0 }
}

#[test]
fn values_and_gradients_are_those_of_separate_ops() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (rows, k, classes) in [(1, 5, 3), (13, 33, 70), (32, 16, 300)] {
                let x = random(&[rows, k], dtype, 1)?;
                let w = small(&[classes, k], dtype, 2)?;
                let bias = small(&[classes], dtype, 3)?;
                let all = targets(rows as usize, classes as usize);
                let all = Array::from_slice(&all, [rows])?;
                for cross_entropy in [CrossEntropy::default(), SMOOTH] {
                    for chunk_rows in [None, Some(1), Some(4), Some(13), Some(usize::MAX)] {
                        if chunk_rows == Some(1) && rows > 13 {
                            continue;
                        }
                        let options = LinearCrossEntropy { bias: None, cross_entropy, chunk_rows };
                        let what = format!("{dtype} {rows}x{k}x{classes} {chunk_rows:?}");
                        let ours = |(x, w, b): (Array, Array, Array)| {
                            linear_cross_entropy(&x, &w, &all, biased(options, &b))?.sum(..)
                        };
                        let theirs = |(x, w, b): (Array, Array, Array)| {
                            unfused(&x, &(&w).into(), &all, biased(options, &b))?.sum(..)
                        };
                        let at = (&x, &w, &bias);
                        let (_, (dx, dw, db)) = value_and_grad(ours, at)?;
                        let (_, (want_dx, want_dw, want_db)) = value_and_grad(theirs, at)?;
                        let losses = linear_cross_entropy(&x, &w, &all, options)?;
                        let want = unfused(&x, &(&w).into(), &all, options)?;
                        for (name, got, want) in [
                            ("losses", losses, want),
                            ("gradient of x", dx, want_dx),
                            ("gradient of the weight", dw, want_dw),
                            ("gradient of the bias", db, want_db),
                        ] {
                            let off = distance(&got, &want, &what)?;
                            assert!(off <= bound(dtype), "{what}: {name} off by {off} ulps");
                        }
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn gradients_are_finite_differences() -> Checked {
    let (x, w) = (random32(&[5, 6], 1)?, random32(&[7, 6], 2)?);
    let all = Array::from_slice(&targets(5, 7), [5])?;
    let options =
        LinearCrossEntropy { cross_entropy: SMOOTH, chunk_rows: Some(2), ..Default::default() };
    let loss = |x: &Array, w: &Array| linear_cross_entropy(x, w, &all, options)?.sum(..);
    let (dx, dw) = grad(|(x, w)| loss(&x, &w), (&x, &w))?;
    let (tx, tw) = (random32(&[5, 6], 3)?, random32(&[7, 6], 4)?);
    let slope = numbers(&(&dx * &tx)?.sum(..)?.add((&dw * &tw)?.sum(..)?)?)?[0];
    // The step h is 2^-7. The third derivative makes the difference quotient wrong by about 1e-4.
    // The rounding of a loss near 40 adds an error of 1e-5 / 2^-7.
    let h = 1.0f32 / 128.0;
    let at = |h: f32| loss(&x.add(tx.multiply(h)?)?, &w.add(tw.multiply(h)?)?)?.item::<f32>();
    let quotient = f64::from(at(h)? - at(-h)?) / f64::from(2.0 * h);
    assert!((slope - quotient).abs() < 0.02 * (1.0 + slope.abs()), "{slope} {quotient}");
    let (_, forward) = jvp(|(x, w): (Array, Array)| loss(&x, &w), (&x, &w), (&tx, &tw))?;
    assert_close(&numbers(&forward)?, &[slope], 1e-4, "jvp");
    Ok(())
}

#[test]
fn packed_weights_are_constants() -> Checked {
    each_device(|_| {
        for format in [FORMATS[3], FORMATS[7]] {
            let w = weight(format, 40, 64, Dtype::Float32, 1)?;
            let (x, bias) = (random32(&[7, 64], 2)?, random32(&[40], 3)?);
            let all = Array::from_slice(&targets(7, 40), [7])?;
            let options = LinearCrossEntropy { chunk_rows: Some(3), ..Default::default() };
            let ours = |(x, b): (Array, Array)| {
                linear_cross_entropy(&x, &w, &all, biased(options, &b))?.mean(..)
            };
            let theirs = |(x, b): (Array, Array)| {
                unfused(&x, &(&w).into(), &all, biased(options, &b))?.mean(..)
            };
            let (value, (dx, db)) = value_and_grad(ours, (&x, &bias))?;
            let (want, (want_dx, want_db)) = value_and_grad(theirs, (&x, &bias))?;
            for (got, want) in [(&value, &want), (&dx, &want_dx), (&db, &want_db)] {
                assert_close(&numbers(got)?, &numbers(want)?, 1e-5, &format!("{format:?}"));
            }
        }
        Ok(())
    })
}

#[test]
fn leading_axes_and_no_rows() -> Checked {
    let w = small(&[9, 8], Dtype::Float32, 1)?;
    let x = random32(&[2, 3, 8], 2)?;
    let flat = targets(6, 9);
    let options = LinearCrossEntropy { chunk_rows: Some(4), ..Default::default() };
    let loss = linear_cross_entropy(&x, &w, &Array::from_slice(&flat, [2, 3])?, options)?;
    let rows = x.reshape([6, 8])?;
    let want = linear_cross_entropy(&rows, &w, &Array::from_slice(&flat, [6])?, options)?;
    assert_eq!((loss.shape(), want.shape()), (&[2, 3][..], &[6][..]));
    assert_close(&numbers(&loss)?, &numbers(&want)?, 0.0, "leading axes");
    let one = rows.i(0)?;
    let alone = linear_cross_entropy(&one, &w, &Array::scalar(flat[0])?, options)?;
    assert_eq!(alone.ndim(), 0);
    assert_close(&numbers(&alone)?, &numbers(&want)?[..1], 1e-5, "one row");

    let none = Array::zeros::<f32>([0, 8])?;
    let no_targets = Array::zeros::<i32>([0])?;
    let loss = |(x, w): (Array, Array)| linear_cross_entropy(&x, &w, &no_targets, options);
    assert!(loss((none.clone(), w.clone()))?.to_vec::<f32>()?.is_empty());
    let (dx, dw) = grad(|p| loss(p)?.sum(..), (&none, &w))?;
    assert_eq!((dx.shape(), dw.to_vec::<f32>()?), (&[0, 8][..], vec![0.0; 72]));
    Ok(())
}

#[test]
fn inside_other_transforms() -> Checked {
    let (x, w) = (random32(&[4, 6, 8], 1)?, small(&[9, 8], Dtype::Float32, 2)?);
    let all = Array::from_slice(&targets(24, 9), [4, 6])?;
    let options = LinearCrossEntropy { chunk_rows: Some(4), ..Default::default() };
    let want = numbers(&linear_cross_entropy(&x, &w, &all, options)?)?;
    let mapped = vmap(
        |(x, targets)| linear_cross_entropy(&x, &w, &targets, options),
        (&x, &all),
        [Some(0), Some(0)],
        0,
    )?;
    assert_close(&numbers(&mapped)?, &want, 1e-5, "vmap over rows and targets");

    let gradients = move |x: &Array, w: &Array, all: &Array| {
        grad(|(x, w)| linear_cross_entropy(&x, &w, all, options)?.mean(..), (x, w))
    };
    let (dx, dw) = gradients(&x, &w, &all)?;
    let compiled = compile(move |p| gradients(&p[0], &p[1], &p[2]), false)?;
    for _ in 0..2 {
        let (got_dx, got_dw) = compiled.call((&x, &w, &all))?;
        assert_close(&numbers(&got_dx)?, &numbers(&dx)?, 1e-5, "compiled, x");
        assert_close(&numbers(&got_dw)?, &numbers(&dw)?, 1e-5, "compiled, weight");
    }
    // Compare second derivatives.
    let slope = |f: &dyn Fn(Array) -> Result<Array>| grad(|x| grad(f, &x)?.square()?.sum(..), &x);
    let got = slope(&|x| linear_cross_entropy(&x, &w, &all, options)?.sum(..))?;
    let want = slope(&|x| unfused(&x, &(&w).into(), &all, options)?.sum(..))?;
    assert_close(&numbers(&got)?, &numbers(&want)?, 1e-4, "second derivative");
    Ok(())
}

#[test]
fn shapes_and_options_that_do_not_fit_are_refused() -> Checked {
    let (x, w) = (random32(&[4, 8], 1)?, random32(&[9, 8], 2)?);
    let (all, bias) = (Array::from_slice(&targets(4, 9), [4])?, random32(&[8], 3)?);
    let options = LinearCrossEntropy::default();
    let floats = random32(&[4], 4)?;
    let smooth = CrossEntropy { label_smoothing: 1.5, ignore_index: None };
    for (result, said) in [
        (linear_cross_entropy(&x.t()?, &w, &all, options), "x [..., k] and a weight"),
        (linear_cross_entropy(&x, &w.i(0)?, &all, options), "x [..., k] and a weight"),
        (linear_cross_entropy(&x, &w, &all.reshape([2, 2])?, options), "targets of shape [4]"),
        (
            linear_cross_entropy(&x, &w, &all, LinearCrossEntropy { bias: Some(&bias), ..options }),
            "a bias [9]",
        ),
        (
            linear_cross_entropy(
                &x,
                &w,
                &all,
                LinearCrossEntropy { chunk_rows: Some(0), ..options },
            ),
            "at least 1 row",
        ),
        (linear_cross_entropy(&x, &w, &floats, options), "integer"),
        (
            linear_cross_entropy(
                &x,
                &w,
                &all,
                LinearCrossEntropy { cross_entropy: smooth, ..options },
            ),
            "smoothing",
        ),
        (
            linear_cross_entropy(&x.astype(Dtype::Int32)?, &w.astype(Dtype::Int32)?, &all, options),
            "float32",
        ),
    ] {
        let text = message(result);
        assert!(text.contains(said), "{said}: {text}");
    }
    Ok(())
}
