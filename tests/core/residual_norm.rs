//! `rms_norm_residual` and `layer_norm_residual`: comparison with MLX's ops, types, use of a single
//! output. The conformance table (`tests/catalog`) tests their values.

use mlx_primitives::{Array, Dtype, Result, builtin, ops};

use crate::support::compare::{assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, random, random32};
use crate::support::{Checked, EPS, each_device};

/// Calls the fused op: with layer normalization if `centered` is true, and otherwise with RMS
/// normalization.
fn fused(
    centered: bool,
    x: &Array,
    residual: &Array,
    weight: Option<&Array>,
    bias: Option<&Array>,
) -> Result<(Array, Array)> {
    if centered {
        ops::layer_norm_residual(x, residual, weight, bias, EPS)
    } else {
        ops::rms_norm_residual(x, residual, weight, EPS)
    }
}

fn norm(centered: bool, h: &Array, w: Option<&Array>, b: Option<&Array>) -> Result<Array> {
    if centered { ops::layer_norm(h, w, b, EPS) } else { ops::rms_norm(h, w, EPS) }
}

/// The fused op gives nearly the same numbers as separate ops of MLX. Other tests compare the norms
/// with a float64 reference.
#[test]
fn composition_of_mlx() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            let (x, r) = (random(&[5, 300], dtype, 1)?, random(&[5, 300], dtype, 2)?);
            let (w, b) = (random(&[300], dtype, 3)?, random(&[300], dtype, 4)?);
            for centered in [false, true] {
                let bias = centered.then_some(&b);
                let (sum, normed) = fused(centered, &x, &r, Some(&w), bias)?;
                let nodes = [&sum, &normed].map(|y| y.primitive().unwrap_or_default());
                assert_eq!(nodes, ["ResidualNorm", "ResidualNorm"]);
                let theirs = builtin::composition(&normed)?;
                assert_eq!(theirs.len(), 2);
                assert_same(&sum, &theirs[0], "sum")?;
                // The normalized value is at most four. Three of its roundings may differ in the
                // last bit.
                let tolerance = 12.0 * ulp(1.0, dtype) + 1e-5;
                assert_close(&numbers(&normed)?, &numbers(&theirs[1])?, tolerance, dtype.name());
            }
        }
        Ok(())
    })
}

#[test]
fn types_are_those_of_the_two_ops() -> Checked {
    each_device(|_| {
        for (of_x, of_residual) in FLOATS.into_iter().flat_map(|x| FLOATS.map(|r| (x, r))) {
            for of_vector in [Dtype::Float32, Dtype::Float16, Dtype::Int32] {
                let (x, r) = (random(&[4, 33], of_x, 1)?, random(&[4, 33], of_residual, 2)?);
                let v = random32(&[33], 3)?.astype(of_vector)?;
                let what = format!("{of_x} + {of_residual}, {of_vector}");
                for (centered, w, b) in
                    [(false, Some(&v), None), (true, Some(&v), Some(&v)), (true, None, Some(&v))]
                {
                    let (sum, normed) = fused(centered, &x, &r, w, b)?;
                    assert_same(&sum, &x.add(&r)?, &what)?;
                    assert_same(&normed, &norm(centered, &sum, w, b)?, &what)?;
                }
            }
        }
        Ok(())
    })
}

/// A program may use either output alone. The op overwrites neither input.
#[test]
fn one_output_alone() -> Checked {
    each_device(|_| {
        let make = || random32(&[4, 100], 1)?.multiply(2.0);
        let want = norm(true, &make()?.add(&make()?)?, None, None)?;
        let (_, normed) = fused(true, &make()?, &make()?, None, None)?;
        assert_same(&normed, &want, "norm alone")?;
        let (sum, _) = fused(false, &make()?, &make()?, None, None)?;
        assert_same(&sum, &make()?.add(&make()?)?, "sum alone")?;
        // A chain as in a model: the sum h is the next residual, and its norm is the next x.
        let (mut h, mut y) = fused(false, &make()?, &make()?, None, None)?;
        let mut plain_h = make()?.add(&make()?)?;
        let mut plain_y = norm(false, &plain_h, None, None)?;
        for _ in 0..4 {
            (h, y) = fused(false, &y, &h, None, None)?;
            plain_h = plain_y.add(&plain_h)?;
            plain_y = norm(false, &plain_h, None, None)?;
        }
        assert_same(&h, &plain_h, "stream")?;
        assert_same(&y, &plain_y, "stream, norm")?;
        Ok(())
    })
}
