//! `rms_norm` against MLX's and against f64: sizes, layouts, weights, extremes.

use half::f16;
use mlx_primitives::{Array, Dtype, builtin, ops};

use crate::support::compare::{array_ulps, assert_same, differing, numbers, ulps};
use crate::support::input::{FLOATS, LAYOUTS, data, random, random32};
use crate::support::{self, Checked, EPS, each_device, reference};

/// The largest errors in ulps that the arithmetic allows, against f64 and against MLX's.
///
/// 16-bit: the normalised value and the product are each rounded once, half an ulp each; a last
/// bit of the first can weigh two of the second. f32: four roundings after the sum; the sum's own
/// error, halved by the root, stays below one more, as its positive terms are added in 64 chains
/// whose errors average out. MLX adds in fewer: a walk of half ulps over the whole axis.
fn bounds(dtype: Dtype, axis: usize) -> (f64, f64) {
    match dtype {
        Dtype::Float32 => (4.0, 5.0 + (axis as f64).sqrt() / 2.0),
        _ => (2.0, 2.0),
    }
}

fn check(x: &Array, weight: Option<&Array>, what: &str) -> anyhow::Result<(f64, f64)> {
    let axis = x.dim(-1)? as usize;
    let y = ops::rms_norm(x, weight, EPS)?;
    assert_eq!(y.shape(), x.shape(), "{what}");
    let built_in = builtin::rms_norm(x, weight, EPS)?;
    let weight = weight.map(numbers).transpose()?;
    let want = reference::rms_norm(&numbers(x)?, weight.as_deref(), axis, f64::from(EPS));
    let exact = ulps(&numbers(&y)?, &want, y.dtype(), what);
    let same = array_ulps(&y, &built_in, what)?;
    let bound = bounds(y.dtype(), axis);
    assert!(exact <= bound.0, "{what}: {exact} ulps from f64, at most {}", bound.0);
    assert!(same <= bound.1, "{what}: {same} ulps from MLX, at most {}", bound.1);
    if y.dtype() != Dtype::Float32 {
        // Rounded where MLX rounds: only sums a few f32 ulps apart may tip a 16-bit rounding, of
        // which there are 2^13 f32 ulps to each.
        let count = differing(&y, &built_in)?;
        assert!(count <= 1 + y.size() / 50, "{what}: {count} of {} differ from MLX", y.size());
    }
    Ok((exact, same))
}

#[test]
fn sizes_in_every_type() -> Checked {
    each_device(|device| {
        for dtype in FLOATS {
            let mut worst = (0.0f64, 0.0f64);
            for axis in [1, 3, 31, 33, 100, 1000, 4096, 4097, 16384, 20001] {
                for rows in [0, 1, 3, 7, 67] {
                    if rows * axis > 100_000 {
                        continue;
                    }
                    let x = random(&[rows, axis], dtype, 1)?;
                    let weight = random(&[axis], dtype, 2)?;
                    for weight in [None, Some(&weight)] {
                        let what = format!("{dtype} {rows}x{axis} weighted {}", weight.is_some());
                        let (exact, same) = check(&x, weight, &what)?;
                        worst = (worst.0.max(exact), worst.1.max(same));
                    }
                }
            }
            println!(
                "{device:?} {dtype}: at most {:.2} ulps from f64, {:.2} from MLX",
                worst.0, worst.1
            );
        }
        Ok(())
    })
}

#[test]
fn layouts_of_x_and_weight() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for shape in [&[3, 33][..], &[2, 5, 31], &[7, 1], &[1, 7], &[2, 3, 1, 100]] {
                let axis = shape[shape.len() - 1];
                for layout in LAYOUTS {
                    // A fresh view each time: evaluated arrays take another path than lazy ones.
                    let what = format!("{dtype} {shape:?} {layout:?}");
                    check(&layout.make(shape, dtype, 3)?, None, &what)?;
                    let weight =
                        layout.make(&[2, axis], dtype, 4)?.slice(&[&(1..2)])?.squeeze(&[0])?;
                    check(&layout.make(shape, dtype, 3)?, Some(&weight), &what)?;
                    let evaluated = layout.make(shape, dtype, 3)?;
                    evaluated.eval()?;
                    weight.eval()?;
                    check(&evaluated, Some(&weight), &what)?;
                }
                let one = random(&[1], dtype, 5)?;
                let repeated = one.broadcast_to(&[axis])?;
                check(&random(shape, dtype, 6)?, Some(&repeated), "one weight, repeated")?;
                let strided = random(&[2 * axis], dtype, 7)?.slice(&[&(.., -2)])?;
                check(&random(shape, dtype, 6)?, Some(&strided), "weight with a stride of -2")?;
            }
        }
        Ok(())
    })
}

#[test]
fn types_promote_as_mlx_promotes_them() -> Checked {
    each_device(|_| {
        let types = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Int32, Dtype::Bool];
        for of_x in FLOATS {
            for of_weight in types {
                let x = random(&[4, 33], of_x, 8)?;
                let weight = random(&[33], Dtype::Float32, 9)?.astype(of_weight)?;
                let y = ops::rms_norm(&x, Some(&weight), EPS)?;
                let want = builtin::rms_norm(&x, Some(&weight), EPS)?;
                let what = format!("{of_x} with weight {of_weight}");
                let error = array_ulps(&y, &want, &what)?;
                assert!(error <= bounds(y.dtype(), 33).1, "{what}: {error} ulps");
            }
        }
        Ok(())
    })
}

#[test]
fn epsilon_counts() -> Checked {
    each_device(|_| {
        for eps in [0.0, 1e-12, 1e-6, 1.0, 1e10] {
            let x = random32(&[3, 100], 10)?.multiply(1e-3)?;
            let y = ops::rms_norm(&x, None, eps)?;
            let want = reference::rms_norm(&numbers(&x)?, None, 100, f64::from(eps));
            let error = ulps(&numbers(&y)?, &want, Dtype::Float32, "eps");
            assert!(error <= bounds(Dtype::Float32, 100).0, "eps {eps}: {error} ulps");
        }
        Ok(())
    })
}

/// Rows at the edges of the types, each finished with ordinary numbers to 40 elements.
fn extreme_rows(dtype: Dtype) -> Vec<Vec<f32>> {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let large = if dtype == Dtype::Float16 { f16::MAX.to_f32() } else { 1e30 };
    let small = if dtype == Dtype::Float16 { 6e-8 } else { 1e-42 };
    let spread = |head: &[f32]| {
        let mut row: Vec<f32> = (0..40).map(|i| i as f32 / 8.0 - 2.0).collect();
        row[..head.len()].copy_from_slice(head);
        row
    };
    vec![
        vec![0.0; 40],
        vec![-0.0; 40],
        vec![5.0; 40],
        vec![large; 40],
        vec![-large; 40],
        vec![small; 40],
        vec![-inf; 40],
        vec![nan; 40],
        spread(&[large]),
        spread(&[-large, large]),
        spread(&[small, -small, 0.0, -0.0]),
        spread(&[inf]),
        spread(&[-inf]),
        spread(&[inf, -inf]),
        spread(&[nan]),
        spread(&[nan, inf]),
    ]
}

#[test]
fn extremes_are_those_of_mlx() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (i, row) in extreme_rows(dtype).into_iter().enumerate() {
                let x = data(&row, &[1, 40], dtype)?;
                for weight in [1.0, -3.0, 1e4, f32::INFINITY, f32::NAN, 0.0] {
                    let weight = data(&[weight; 40], &[40], dtype)?;
                    for eps in [0.0, EPS] {
                        let y = ops::rms_norm(&x, Some(&weight), eps)?;
                        let want = builtin::rms_norm(&x, Some(&weight), eps)?;
                        let what = format!("{dtype} row {i} weight {weight} eps {eps}");
                        let error = array_ulps(&y, &want, &what)?;
                        assert!(error <= bounds(dtype, 40).1, "{what}: {error} ulps");
                    }
                }
            }
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
            let y = ops::rms_norm(&spoilt, None, EPS)?;
            let want = ops::rms_norm(&clean, None, EPS)?;
            for row in [0..1, 2..3] {
                let what = format!("{dtype} row {row:?}");
                assert_same(&y.slice(&[&row])?, &want.slice(&[&row])?, &what)?;
            }
            assert!(numbers(&y.slice(&[&(1..2)])?)?.iter().all(|v| v.is_nan()), "{dtype}");
        }
        Ok(())
    })
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_each_byte_once() -> Checked {
    let (rows, axis) = (8, 1024);
    let (x, w) = (random32(&[rows, axis], 1)?, random32(&[axis], 2)?);
    mlx_primitives::eval([&x, &w])?;
    let moved = support::moved(|| ops::rms_norm(&x, Some(&w), EPS))?;
    // The weight is asked for by every row; caches answer all but the first.
    let (row, all) = (4 * axis as u64, 4 * (rows * axis) as u64);
    assert_eq!(moved[0].arrays, [[all, 0, all], [all, 0, row], [0, all, 0]]);
    support::report_traffic("rms_norm", &moved, x.nbytes() * 2 + w.nbytes() * rows as usize)
}
