//! `layer_norm` against MLX's and against f64: sizes, layouts, extremes, derivatives, vmap.

use mlx_primitives::transforms::{jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin, graph, ops, stack};

use crate::support::compare::{assert_close, assert_same, differing, numbers, ulp};
use crate::support::input::{FLOATS, LAYOUTS, data, random, random32};
use crate::support::{self, Checked, EPS, each_device, message, reference, refs};

/// The normalised rows in f64, and for each element the errors that the arithmetic allows: those
/// of f32 and those of roundings to the type.
struct Exact {
    y: Vec<f64>,
    single: Vec<f64>,
    rounded: Vec<f64>,
}

fn exact(
    x: &[f64],
    weight: Option<&[f64]>,
    bias: Option<&[f64]>,
    axis: usize,
    eps: f64,
    dtype: Dtype,
) -> Exact {
    let mut exact = Exact { y: vec![], single: vec![], rounded: vec![] };
    for row in x.chunks_exact(axis) {
        let mean = row.iter().sum::<f64>() / axis as f64;
        let magnitude = row.iter().map(|v| v.abs()).sum::<f64>() / axis as f64;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / axis as f64;
        let inverse = 1.0 / (variance + eps).sqrt();
        for (i, v) in row.iter().enumerate() {
            let (w, b) = (weight.map_or(1.0, |w| w[i]), bias.map_or(0.0, |b| b[i]));
            let normalised = (v - mean) * inverse;
            let y = normalised * w + b;
            // In f32: the mean is off by some half ulps of the elements' magnitude, x - mean by
            // half an ulp of its own; the deviation and the products add a few more.
            let half = 2f64.powi(-24);
            let centred = (6.0 * magnitude + v.abs()) * inverse + 6.0 * normalised.abs();
            // Then at most three roundings to the type.
            let rounded = (ulp(normalised, dtype) * w.abs() + ulp(normalised * w, dtype)) / 2.0;
            exact.y.push(y);
            exact.single.push(half * centred * w.abs());
            exact.rounded.push(rounded + ulp(y, dtype) * 0.51);
        }
    }
    exact
}

/// Within `times` f32's errors and those of `rounds` results; what is not finite must be the same.
#[track_caller]
fn assert_within(got: &[f64], want: &[f64], errors: &Exact, times: f64, rounds: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let allowed = times * errors.single[i] + rounds * errors.rounded[i];
        let close = (got - want).abs() <= allowed && want.is_finite();
        let same = got == want || got.is_nan() && want.is_nan();
        assert!(close || same, "{what}: {got:e} at {i}, expected {want:e} within {allowed:e}");
    }
}

fn check(x: &Array, weight: Option<&Array>, bias: Option<&Array>, what: &str) -> Checked {
    let axis = x.dim(-1)? as usize;
    let y = ops::layer_norm(x, weight, bias, EPS)?;
    assert_eq!(y.primitive().as_deref(), Some("LayerNorm"), "{what}");
    let theirs = builtin::composition(&y)?.swap_remove(0);
    assert_eq!((y.shape(), y.dtype()), (x.shape(), theirs.dtype()), "{what}");
    let (w, b) = (weight.map(numbers).transpose()?, bias.map(numbers).transpose()?);
    let want = exact(&numbers(x)?, w.as_deref(), b.as_deref(), axis, f64::from(EPS), y.dtype());
    let (ours, mlx) = (numbers(&y)?, numbers(&theirs)?);
    assert_within(&ours, &want.y, &want, 1.0, 1.0, what);
    // MLX adds in one chain: its sums are off by a walk of half ulps over the whole axis.
    let chain = 2.0 + (axis as f64).sqrt() / 4.0;
    assert_within(&ours, &mlx, &want, chain, 2.0, &format!("{what}, MLX's"));
    if y.dtype() != Dtype::Float32 {
        // Rounded where MLX rounds: only f32 results a few ulps apart may tip a 16-bit rounding.
        let count = differing(&y, &theirs)?;
        assert!(count <= 2 + y.size() / 25, "{what}: {count} of {} differ from MLX", y.size());
    }
    Ok(())
}

#[test]
fn sizes_in_every_type() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for axis in [1, 3, 31, 33, 100, 1000, 4096, 4097, 16384, 20001] {
                for rows in [0, 1, 3, 7, 67] {
                    if rows * axis > 70_000 {
                        continue;
                    }
                    let x = random(&[rows, axis], dtype, 1)?.add(1.5)?.astype(dtype)?;
                    let (w, b) = (random(&[axis], dtype, 2)?, random(&[axis], dtype, 3)?);
                    let some = (Some(&w), Some(&b));
                    let mut affine = vec![(None, None), some];
                    if axis <= 1000 {
                        affine.extend([(some.0, None), (None, some.1)]);
                    }
                    for (w, b) in affine {
                        let (has_w, has_b) = (w.is_some(), b.is_some());
                        check(&x, w, b, &format!("{dtype} {rows}x{axis} {has_w} {has_b}"))?;
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn layouts_of_x_weight_and_bias() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for shape in [&[3, 33][..], &[2, 5, 31], &[7, 1], &[2, 3, 1, 100]] {
                let axis = shape[shape.len() - 1];
                for layout in LAYOUTS {
                    let what = format!("{dtype} {shape:?} {layout:?}");
                    let weight =
                        layout.make(&[2, axis], dtype, 4)?.slice(&[&(1..2)])?.squeeze(&[0])?;
                    let bias = random(&[2 * axis], dtype, 5)?.slice(&[&(.., -2)])?;
                    check(&layout.make(shape, dtype, 3)?, Some(&weight), Some(&bias), &what)?;
                    let evaluated = layout.make(shape, dtype, 3)?;
                    evaluated.eval()?;
                    check(&evaluated, None, Some(&bias), &what)?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn types_promote_as_mlx_promotes_them() -> Checked {
    each_device(|_| {
        let types = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Int32];
        for of_x in FLOATS {
            let x = random(&[4, 33], of_x, 6)?;
            for of_w in types {
                for of_b in types {
                    let w = random32(&[33], 7)?.astype(of_w)?;
                    let b = random32(&[33], 8)?.astype(of_b)?;
                    for w in [Some(&w), None] {
                        let y = ops::layer_norm(&x, w, Some(&b), EPS)?;
                        let theirs = builtin::layer_norm(&x, w, Some(&b), EPS)?;
                        assert_eq!(y.dtype(), theirs.dtype(), "{of_x} {of_w} {of_b}");
                        let tolerance = 4.0 * ulp(1.0, y.dtype()) + 1e-5;
                        assert_close(&numbers(&y)?, &numbers(&theirs)?, tolerance, "promoted");
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn extremes_are_those_of_mlx() -> Checked {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let spread = |head: &[f32]| {
        let mut row: Vec<f32> = (0..40).map(|i| i as f32 / 8.0 - 2.0).collect();
        row[..head.len()].copy_from_slice(head);
        row
    };
    each_device(|_| {
        for dtype in FLOATS {
            let (large, small) =
                if dtype == Dtype::Float16 { (65504.0, 6e-8) } else { (1e18, 1e-40) };
            for (i, row) in [
                vec![0.0; 40],
                vec![5.0; 40],
                vec![large; 40],
                vec![small; 40],
                vec![-inf; 40],
                vec![nan; 40],
                spread(&[large]),
                spread(&[-large, large]),
                spread(&[small, -small, -0.0]),
                spread(&[inf]),
                spread(&[inf, -inf]),
                spread(&[nan]),
            ]
            .into_iter()
            .enumerate()
            {
                let x = data(&row, &[1, 40], dtype)?;
                // An infinite weight makes NaN of 0: not where the last bits of a sum decide.
                let last = if i < 8 { 1e4 } else { inf };
                for (w, b) in [(1.0, 0.0), (-3.0, 1.0), (1e4, -1e4), (1.0, -inf), (last, 1.0)] {
                    let w = data(&[w; 40], &[40], dtype)?;
                    let b = data(&[b; 40], &[40], dtype)?;
                    let y = ops::layer_norm(&x, Some(&w), Some(&b), EPS)?;
                    let theirs = builtin::layer_norm(&x, Some(&w), Some(&b), EPS)?;
                    let (nw, nb) = (numbers(&w)?, numbers(&b)?);
                    let want =
                        exact(&numbers(&x)?, Some(&nw), Some(&nb), 40, f64::from(EPS), dtype);
                    let what = format!("{dtype} row {i} {w} {b}");
                    let (ours, theirs) = (numbers(&y)?, numbers(&theirs)?);
                    assert_within(&ours, &theirs, &want, 4.0, 2.0, &what);
                }
            }
        }
        Ok(())
    })
}

#[test]
fn a_mean_far_from_zero_is_subtracted_first() -> Checked {
    each_device(|_| {
        // The squares of such numbers in f32 leave no digit of a variance of a quarter.
        for axis in [64, 4096, 20_000] {
            let x: Vec<f32> = (0..axis).map(|i| 1e4 + (i % 2) as f32).collect();
            let y = ops::layer_norm(&data(&x, &[1, axis], Dtype::Float32)?, None, None, 0.0)?;
            let worst = numbers(&y)?.iter().map(|v| (v.abs() - 1.0).abs()).fold(0.0, f64::max);
            // The mean's rounding, half an ulp of ten thousand, is a thousandth of the deviation.
            assert!(worst <= 0.005, "{axis}: {worst}");
        }
        Ok(())
    })
}

#[test]
fn a_spoilt_row_spoils_no_other() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            let clean = random(&[3, 100], dtype, 11)?;
            let spoilt =
                clean.slice_update(&[&(1..2)], &Array::scalar(f32::NAN)?.astype(dtype)?)?;
            let y = ops::layer_norm(&spoilt, None, None, EPS)?;
            let want = ops::layer_norm(&clean, None, None, EPS)?;
            for row in [0..1, 2..3] {
                assert_same(&y.slice(&[&row])?, &want.slice(&[&row])?, dtype.name())?;
            }
            assert!(numbers(&y.slice(&[&(1..2)])?)?.iter().all(|v| v.is_nan()), "{dtype}");
        }
        Ok(())
    })
}

fn op(p: &[Array]) -> Result<Vec<Array>> {
    Ok(vec![ops::layer_norm(&p[0], p.get(1), p.get(2), EPS)?])
}

#[test]
fn derivatives() -> Checked {
    const AXIS: usize = 7;
    each_device(|_| {
        let (x, g, tx) = (random32(&[3, 7], 1)?, random32(&[3, 7], 2)?, random32(&[3, 7], 3)?);
        let (w, b) = (random32(&[7], 4)?, random32(&[7], 5)?);
        let (tw, tb) = (random32(&[7], 6)?, random32(&[7], 7)?);
        let [nx, ng, nw, nb] = [&x, &g, &w, &b].map(|a| numbers(a).expect("numbers"));
        let norm = |x: &[f64], w: &[f64], b: &[f64]| {
            exact(x, Some(w), Some(b), AXIS, f64::from(EPS), Dtype::Float32).y
        };
        let ours = vjp(op, &[&x, &w, &b], &[&g])?.1;
        // Central differences in f64, exact to 1e-9; sums of 21 products up to 9 in f32.
        let (step, tolerance) = (1e-5, 3e-5);
        for (i, (ours, want)) in ours
            .iter()
            .zip([
                reference::gradient(&nx, step, |x| reference::dot(&ng, &norm(x, &nw, &nb))),
                reference::gradient(&nw, step, |w| reference::dot(&ng, &norm(&nx, w, &nb))),
                reference::gradient(&nb, step, |b| reference::dot(&ng, &norm(&nx, &nw, b))),
            ])
            .enumerate()
        {
            assert_close(&numbers(ours)?, &want, tolerance, &format!("vjp, argument {i}"));
        }
        // <g, J t> = <J' g, t>, in each argument and in all of them.
        let tangents = jvp(op, &[&x, &w, &b], &[&tx, &tw, &tb])?.1;
        let forward = reference::dot(&numbers(&tangents[0])?, &ng);
        let mut backward = 0.0;
        for (gradient, t) in ours.iter().zip([&tx, &tw, &tb]) {
            backward += reference::dot(&numbers(gradient)?, &numbers(t)?);
        }
        assert!((forward - backward).abs() <= 1e-4 * (1.0 + forward.abs()), "{forward} {backward}");
        // An argument alone, and no affine part.
        let alone = vjp(|p| op(&[x.clone(), p[0].clone(), b.clone()]), &[&w], &[&g])?.1;
        assert_close(&numbers(&alone[0])?, &numbers(&ours[1])?, 1e-6, "weight alone");
        let bare = vjp(op, &[&x], &[&g])?.1;
        let ones = vec![1.0; AXIS];
        let zeros = vec![0.0; AXIS];
        let want = reference::gradient(&nx, step, |x| reference::dot(&ng, &norm(x, &ones, &zeros)));
        assert_close(&numbers(&bare[0])?, &want, tolerance, "without weight and bias");
        Ok(())
    })
}

/// vmap against the op of each slice, bit for bit.
#[test]
fn vmap_over_each_axis_of_each_input() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (x_shape, x_axis) in [
                (&[3, 5, 8][..], Some(0)),
                (&[5, 3, 8], Some(1)),
                (&[5, 8, 3], Some(2)),
                (&[5, 8], None),
            ] {
                for (w_shape, w_axis) in [(&[3, 8][..], Some(0)), (&[8, 3], Some(1)), (&[8], None)]
                {
                    for (b_shape, b_axis) in [(&[3, 8][..], Some(0)), (&[8], None)] {
                        let axes = [x_axis, w_axis, b_axis];
                        if axes.iter().all(Option::is_none) {
                            continue;
                        }
                        let inputs = [
                            random(x_shape, dtype, 1)?,
                            random(w_shape, dtype, 2)?,
                            random(b_shape, dtype, 3)?,
                        ];
                        let batched = vmap(op, &refs(&inputs), &axes, &[])?;
                        let mut slices = Vec::new();
                        for i in 0..3 {
                            let slice = |(x, axis): (&Array, Option<i32>)| match axis {
                                Some(axis) => x.slice_axis(axis, i..i + 1)?.squeeze(&[axis]),
                                None => Ok(x.clone()),
                            };
                            let entry: Result<Vec<_>> =
                                inputs.iter().zip(axes).map(slice).collect();
                            slices.push(op(&entry?)?.swap_remove(0));
                        }
                        let want = stack(&refs(&slices), 0)?;
                        assert_same(&batched[0], &want, &format!("{dtype} {axes:?}"))?;
                    }
                }
            }
            // Our kernel stays: one node over the batch.
            let x = random(&[3, 5, 8], dtype, 1)?;
            let y = vmap(op, &[&x], &[Some(0)], &[])?;
            assert_eq!(y[0].primitive().as_deref(), Some("LayerNorm"));
        }
        Ok(())
    })
}

#[test]
fn bad_input_is_refused() -> Checked {
    let x = random32(&[2, 8], 1)?;
    let refused = |result: Result<Array>, mentions: &str| {
        let text = message(result);
        assert!(text.starts_with("[layer_norm] expected ") && text.contains("got "), "{text}");
        assert!(text.contains(mentions), "{text} lacks {mentions}");
    };
    for shape in [&[][..], &[1], &[7], &[9], &[8, 1], &[1, 8]] {
        let vector = Array::ones::<f32>(shape)?;
        refused(ops::layer_norm(&x, Some(&vector), None, EPS), "weight of shape (8)");
        refused(ops::layer_norm(&x, None, Some(&vector), EPS), "bias of shape (8)");
    }
    refused(ops::layer_norm(&Array::scalar(1.0f32)?, None, None, EPS), "scalar");
    refused(ops::layer_norm(&Array::zeros::<f32>(&[3, 0])?, None, None, EPS), "(3,0)");
    for dtype in [Dtype::Int32, Dtype::Bool, Dtype::Complex64, Dtype::Float64] {
        refused(ops::layer_norm(&x.astype(dtype)?, None, None, EPS), dtype.name());
    }
    Ok(())
}

#[test]
fn plans_keep_a_row_in_registers_while_it_fits() -> Checked {
    for (axis, threads, form, group) in [
        (128, 1024, "simd", 256),
        (129, 1024, "row", 64),
        (4096, 1024, "row", 1024),
        (4096, 512, "row2", 512),
        (16384, 1024, "row4", 1024),
        (16385, 1024, "looped", 1024),
    ] {
        let x = Array::zeros::<half::bf16>(&[8, axis])?;
        let launch = &graph::dispatches(&ops::layer_norm(&x, None, None, EPS)?, threads)?[0];
        assert_eq!(launch.kernel, format!("mlxp_layer_norm_{form}_bfloat16"));
        assert_eq!(launch.group, [group, 1, 1]);
        // Two floats for each SIMD group.
        let scratch = if form == "simd" { 0 } else { group / 32 * 8 };
        assert_eq!(launch.threadgroup_bytes, scratch);
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_each_byte_once_and_long_rows_twice() -> Checked {
    for (rows, axis, reads) in [(8, 100, 1), (4, 1024, 1), (2, 16384, 1), (1, 20_000, 2)] {
        let (x, w) = (random32(&[rows, axis], 1)?, random32(&[axis], 2)?);
        let b = random32(&[axis], 3)?;
        mlx_primitives::eval([&x, &w, &b])?;
        let moved = support::moved(|| ops::layer_norm(&x, Some(&w), Some(&b), EPS))?;
        assert_eq!(moved.len(), 1);
        // Weight and bias are asked for by every row; caches answer all but the first.
        let (row, all) = (4 * axis as u64, 4 * (rows * axis) as u64);
        let want = [[reads * all, 0, all], [all, 0, row], [all, 0, row], [0, all, 0]];
        assert_eq!(moved[0].arrays, want, "{rows}x{axis}");
        if axis == 1024 {
            let ideal = x.nbytes() * 2 + w.nbytes() * 2 * rows as usize;
            support::report_traffic("layer_norm", &moved, ideal)?;
        }
    }
    Ok(())
}
