//! `rms_norm_residual` and `layer_norm_residual` beside their rows of `table`: MLX's composition, single
//! outputs, refusals, traffic.

use mlx_primitives::{Array, Dtype, Result, builtin, eval, graph, ops};

use crate::support::compare::{assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, random, random32};
use crate::support::{self, Checked, EPS, each_device, message};

/// Both outputs, RMS or layer normalisation.
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

/// What is fused is close to what MLX makes of it: the norms alone are held to f64 elsewhere.
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
                // A last bit of the normalised value, up to four, counts three times.
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

/// Either output may be all that is wanted, and neither input's buffer is given away.
#[test]
fn one_output_alone() -> Checked {
    each_device(|_| {
        let make = || random32(&[4, 100], 1)?.multiply(2.0);
        let want = norm(true, &make()?.add(&make()?)?, None, None)?;
        let (_, normed) = fused(true, &make()?, &make()?, None, None)?;
        assert_same(&normed, &want, "norm alone")?;
        let (sum, _) = fused(false, &make()?, &make()?, None, None)?;
        assert_same(&sum, &make()?.add(&make()?)?, "sum alone")?;
        // A residual stream: h feeds the next sum, and its norm what is added there.
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

#[test]
fn bad_input_is_refused() -> Checked {
    let (x, ones) = (random32(&[2, 8], 1)?, |shape: &[i32]| Array::ones::<f32>(shape));
    for centered in [false, true] {
        let op = if centered { "layer_norm_residual" } else { "rms_norm_residual" };
        let refused = |result: Result<(Array, Array)>, mentions: &str| {
            let text = message(result);
            assert!(text.starts_with(&format!("[{op}] expected ")), "{text}");
            assert!(text.contains("got ") && text.contains(mentions), "{text} lacks {mentions}");
        };
        for shape in [&[][..], &[8], &[1, 8], &[2, 7], &[8, 2], &[1, 2, 8]] {
            refused(fused(centered, &x, &ones(shape)?, None, None), "residual of shape (2,8)");
        }
        for shape in [&[][..], &[1], &[7], &[8, 1]] {
            let (r, vector) = (ones(&[2, 8])?, ones(shape)?);
            refused(fused(centered, &x, &r, Some(&vector), None), "weight of shape (8)");
            if centered {
                refused(fused(true, &x, &r, None, Some(&vector)), "bias of shape (8)");
            }
        }
        refused(fused(centered, &ones(&[])?, &ones(&[])?, None, None), "scalar");
        refused(fused(centered, &ones(&[3, 0])?, &ones(&[3, 0])?, None, None), "(3,0)");
        for dtype in [Dtype::Int32, Dtype::Complex64, Dtype::Float64] {
            let x = x.astype(dtype)?;
            refused(fused(centered, &x, &x, None, None), dtype.name());
        }
    }
    Ok(())
}

#[test]
fn plans_name_the_norm() -> Checked {
    for (centered, name) in [(false, "rms"), (true, "layer")] {
        let x = Array::zeros::<half::f16>(&[3, 4096])?;
        let (_, norm) = fused(centered, &x, &x, None, None)?;
        let launch = &graph::dispatches(&norm, graph::MAX_THREADS)?[0];
        assert_eq!(launch.kernel, format!("mlxp_residual_norm_row_{name}_float16"));
        assert_eq!((launch.grid, launch.group), ([3, 1, 1], [1024, 1, 1]));
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_each_byte_once_and_long_rows_one_more() -> Checked {
    for (rows, axis, again) in [(8, 100, 0), (4, 1024, 0), (2, 16384, 0), (1, 20_000, 1)] {
        let (x, r) = (random32(&[rows, axis], 1)?, random32(&[rows, axis], 2)?);
        let (w, b) = (random32(&[axis], 3)?, random32(&[axis], 4)?);
        eval([&x, &r, &w, &b])?;
        let (row, all) = (4 * axis as u64, 4 * (rows * axis) as u64);
        for centered in [false, true] {
            let op = || Ok(fused(centered, &x, &r, Some(&w), centered.then_some(&b))?.1);
            let moved = support::moved(op)?;
            assert_eq!(moved.len(), 1);
            let mut want = vec![[all, 0, all], [all, 0, all], [all, 0, row], [all, 0, row]];
            if !centered {
                want[3] = [0, 0, 0];
            }
            want.extend([[again * all, all, again * all], [0, all, 0]]);
            assert_eq!(moved[0].arrays, want, "{rows}x{axis} centered {centered}");
            if axis == 1024 {
                let vectors = if centered { 2 } else { 1 };
                let ideal = x.nbytes() * 4 + w.nbytes() * vectors * rows as usize;
                let op = if centered { "layer_norm_residual" } else { "rms_norm_residual" };
                support::report_traffic(op, &moved, ideal)?;
            }
        }
    }
    Ok(())
}
