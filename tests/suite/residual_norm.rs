//! `rms_norm_residual` and `layer_norm_residual`: bit for bit what two ops give, in one kernel.

use mlx_primitives::transforms::{compile, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin, eval, graph, ops, stack};

use crate::support::compare::{assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, LAYOUTS, data, random, random32};
use crate::support::{self, Checked, EPS, each_device, message, reference, refs};

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

fn check(
    centered: bool,
    x: &Array,
    residual: &Array,
    weight: Option<&Array>,
    bias: Option<&Array>,
    what: &str,
) -> Checked {
    let (sum, normed) = fused(centered, x, residual, weight, bias)?;
    eval([&sum, &normed])?;
    assert_same(&sum, &x.add(residual)?, &format!("{what}, sum"))?;
    let want = norm(centered, &sum, weight, bias)?;
    assert_same(&normed, &want, &format!("{what}, centered {centered}"))?;
    Ok(())
}

#[test]
fn sizes_in_every_type() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for axis in [1, 3, 31, 33, 100, 1000, 4096, 4097, 16384, 20001] {
                for rows in [0, 1, 3, 67] {
                    if rows * axis > 60_000 {
                        continue;
                    }
                    let x = random(&[rows, axis], dtype, 1)?;
                    let residual = random(&[rows, axis], dtype, 2)?;
                    let (w, b) = (random(&[axis], dtype, 3)?, random(&[axis], dtype, 4)?);
                    let what = format!("{dtype} {rows}x{axis}");
                    check(false, &x, &residual, Some(&w), None, &what)?;
                    check(true, &x, &residual, Some(&w), Some(&b), &what)?;
                    if axis <= 1000 {
                        check(false, &x, &residual, None, None, &what)?;
                        check(true, &x, &residual, None, None, &what)?;
                        check(true, &x, &residual, None, Some(&b), &what)?;
                        check(true, &x, &residual, Some(&w), None, &what)?;
                    }
                }
            }
        }
        Ok(())
    })
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
fn layouts_of_x_and_residual() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for shape in [&[3, 33][..], &[2, 5, 31], &[7, 1]] {
                let w = random(&shape[shape.len() - 1..], dtype, 1)?;
                for layout in LAYOUTS {
                    let what = format!("{dtype} {shape:?} {layout:?}");
                    let (x, r) = (layout.make(shape, dtype, 2)?, random(shape, dtype, 3)?);
                    check(false, &x, &r, Some(&w), None, &what)?;
                    check(true, &r, &x, None, Some(&w), &what)?;
                }
                let x = random(shape, dtype, 4)?;
                check(true, &x, &x, Some(&w), Some(&w), "x twice")?;
            }
        }
        Ok(())
    })
}

#[test]
fn types_are_those_of_the_two_ops() -> Checked {
    each_device(|_| {
        for of_x in FLOATS {
            for of_residual in FLOATS {
                for of_vector in [Dtype::Float32, Dtype::Float16, Dtype::Int32] {
                    let (x, r) = (random(&[4, 33], of_x, 1)?, random(&[4, 33], of_residual, 2)?);
                    let w = random32(&[33], 3)?.astype(of_vector)?;
                    let what = format!("{of_x} + {of_residual}, {of_vector}");
                    check(false, &x, &r, Some(&w), None, &what)?;
                    check(true, &x, &r, Some(&w), Some(&w), &what)?;
                    check(true, &x, &r, None, Some(&w), &what)?;
                }
            }
        }
        Ok(())
    })
}

/// Sums that overflow, cancel or are NaN already: as the two ops.
#[test]
fn extremes() -> Checked {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    each_device(|_| {
        for dtype in FLOATS {
            let large = if dtype == Dtype::Float16 { 60000.0 } else { 3e38 };
            for (a, b) in [
                (large, large),
                (large, -large),
                (inf, -inf),
                (inf, 1.0),
                (nan, 1.0),
                (-0.0, -0.0),
                (1e-7, 1e-7),
            ] {
                for axis in [40, 200] {
                    let mut x: Vec<f32> = (0..3 * axis).map(|i| (i % 13) as f32 - 6.0).collect();
                    let mut r: Vec<f32> = (0..3 * axis).map(|i| (i % 7) as f32 - 3.0).collect();
                    (x[axis as usize], r[axis as usize]) = (a, b);
                    let (x, r) = (data(&x, &[3, axis], dtype)?, data(&r, &[3, axis], dtype)?);
                    for centered in [false, true] {
                        check(centered, &x, &r, None, None, &format!("{dtype} {a} {b} {axis}"))?;
                    }
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

fn op(centered: bool) -> impl Fn(&[Array]) -> Result<Vec<Array>> + Copy {
    move |p| {
        let (sum, norm) = fused(centered, &p[0], &p[1], p.get(2), p.get(3))?;
        Ok(vec![sum, norm])
    }
}

fn two_ops(centered: bool) -> impl Fn(&[Array]) -> Result<Vec<Array>> + Copy {
    move |p| {
        let sum = p[0].add(&p[1])?;
        let norm = if centered {
            builtin::layer_norm(&sum, p.get(2), p.get(3), EPS)?
        } else {
            builtin::rms_norm(&sum, p.get(2), EPS)?
        };
        Ok(vec![sum, norm])
    }
}

#[test]
fn derivatives() -> Checked {
    each_device(|_| {
        let of = |shape: &[i32], seed| random32(shape, seed);
        for centered in [false, true] {
            let mut inputs = vec![of(&[3, 7], 1)?, of(&[3, 7], 2)?, of(&[7], 3)?];
            let mut tangents = vec![of(&[3, 7], 4)?, of(&[3, 7], 5)?, of(&[7], 6)?];
            if centered {
                inputs.push(of(&[7], 7)?);
                tangents.push(of(&[7], 8)?);
            }
            let cotangents = [of(&[3, 7], 9)?, of(&[3, 7], 10)?];
            let ours = vjp(op(centered), &refs(&inputs), &refs(&cotangents))?.1;
            let theirs = vjp(two_ops(centered), &refs(&inputs), &refs(&cotangents))?.1;
            let mut backward = 0.0;
            for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                assert_close(&numbers(ours)?, &numbers(theirs)?, 4e-5, &format!("vjp {i}"));
                backward += reference::dot(&numbers(ours)?, &numbers(&tangents[i])?);
            }
            // Central differences of one loss along all tangents at once.
            let loss = |h: f32| -> Result<f64> {
                let moved: Result<Vec<_>> =
                    inputs.iter().zip(&tangents).map(|(x, t)| x.add(&t.multiply(h)?)).collect();
                let outputs = op(centered)(&moved?)?;
                let mut loss = 0.0;
                for (y, g) in outputs.iter().zip(&cotangents) {
                    loss += reference::dot(&numbers(y)?, &numbers(g)?);
                }
                Ok(loss)
            };
            // Errors of h² and of f32's 1e-6 over h.
            let (step, tolerance) = (1e-2, 2e-2);
            let difference = (loss(step)? - loss(-step)?) / (2.0 * f64::from(step));
            let scale = 1.0 + backward.abs();
            assert!((difference - backward).abs() <= tolerance * scale, "{difference} {backward}");
            let moved = jvp(op(centered), &refs(&inputs), &refs(&tangents))?.1;
            let mut forward = 0.0;
            for (t, g) in moved.iter().zip(&cotangents) {
                forward += reference::dot(&numbers(t)?, &numbers(g)?);
            }
            assert!((forward - backward).abs() <= 1e-4 * scale, "{forward} {backward}");
        }
        Ok(())
    })
}

#[test]
fn vmap_over_each_axis_of_each_input() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (shape, axis) in [
                (&[3, 5, 8][..], Some(0)),
                (&[5, 3, 8], Some(1)),
                (&[5, 8, 3], Some(2)),
                (&[5, 8], None),
            ] {
                for (r_shape, r_axis) in [(&[5, 3, 8][..], Some(1)), (&[5, 8], None)] {
                    for (w_shape, w_axis) in [(&[3, 8][..], Some(0)), (&[8], None)] {
                        let axes = [axis, r_axis, w_axis, None];
                        if axes.iter().all(Option::is_none) {
                            continue;
                        }
                        let inputs = [
                            random(shape, dtype, 1)?,
                            random(r_shape, dtype, 2)?,
                            random(w_shape, dtype, 3)?,
                            random(&[8], dtype, 4)?,
                        ];
                        for centered in [false, true] {
                            let count = if centered { 4 } else { 3 };
                            let (inputs, axes) = (&inputs[..count], &axes[..count]);
                            let batched = vmap(op(centered), &refs(inputs), axes, &[])?;
                            for output in [0, 1] {
                                let mut slices = Vec::new();
                                for i in 0..3 {
                                    let slice = |(x, axis): (&Array, &Option<i32>)| match *axis {
                                        Some(axis) => {
                                            x.slice_axis(axis, i..i + 1)?.squeeze(&[axis])
                                        }
                                        None => Ok(x.clone()),
                                    };
                                    let entry: Result<Vec<_>> =
                                        inputs.iter().zip(axes).map(slice).collect();
                                    slices.push(op(centered)(&entry?)?.swap_remove(output));
                                }
                                let want = stack(&refs(&slices), 0)?;
                                let what = format!("{dtype} {axes:?} output {output}");
                                assert_same(&batched[output], &want, &what)?;
                            }
                        }
                    }
                }
            }
        }
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
fn compiled_for_any_shape() -> Checked {
    each_device(|_| {
        for centered in [false, true] {
            let compiled = compile(op(centered), true)?;
            for shape in [[2, 8], [5, 8], [3, 40]] {
                let (x, r) = (random32(&shape, 1)?, random32(&shape, 2)?);
                let outputs = compiled.call(&[&x, &r])?;
                let (sum, norm) = fused(centered, &x, &r, None, None)?;
                assert_same(&outputs[0], &sum, "sum")?;
                assert_same(&outputs[1], &norm, "norm")?;
            }
        }
        Ok(())
    })
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
