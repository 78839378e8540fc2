//! `logsumexp` and `log_softmax` against MLX's and against f64: sizes, layouts, extremes,
//! derivatives, vmap.

use half::f16;
use mlx_primitives::device::Device;
use mlx_primitives::transforms::{compile, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin, ops, stack};

use crate::support::compare::{array_ulps, assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, LAYOUTS, data, random, random32};
use crate::support::{self, Checked, each_device, message, reference, refs};

/// f64's logarithm for each row.
fn logs(x: &[f64], axis: usize) -> Vec<f64> {
    let of = |row: &[f64]| {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.iter().map(|v| (v - max).exp()).sum::<f64>().ln() + max
    };
    x.chunks_exact(axis).map(of).collect()
}

/// The largest absolute error of a logarithm before it is rounded, beside f64's and MLX's.
///
/// Each exponential is off by 2 ulps (15 for Metal's fast one) and by half an ulp of its argument,
/// at most 6 here; the sum by a walk of an ulp over the chains of MLX, which has one. Relative
/// errors of the sum are absolute ones of its logarithm. Adding the maximum rounds once more.
fn bound(device: Device, axis: usize) -> f64 {
    let exp = if device == Device::Gpu { 15.0 } else { 2.0 };
    (exp + 8.0 + (axis as f64).sqrt()) * f64::from(f32::EPSILON)
}

fn check(device: Device, x: &Array, what: &str) -> Checked {
    let axis = x.dim(-1)? as usize;
    let y = ops::logsumexp(x, true)?;
    let mut shape = x.shape().to_vec();
    *shape.last_mut().expect("an axis") = 1;
    assert_eq!((y.shape(), y.dtype()), (&shape[..], x.dtype()), "{what}");
    let log = ops::log_softmax(x)?;
    assert_eq!((log.shape(), log.dtype()), (x.shape(), x.dtype()), "{what}");
    // logsumexp of MLX refuses arrays of no elements.
    let peers = if x.size() > 0 {
        [&y, &log].map(|ours| Some(builtin::composition(ours).ok()?.swap_remove(0)))
    } else {
        [None, None]
    };
    let dropped = ops::logsumexp(x, false)?;
    assert_eq!(dropped.shape(), &shape[..shape.len() - 1], "{what}");
    let (got, want) = (numbers(&y)?, logs(&numbers(x)?, axis));
    assert_eq!(numbers(&dropped)?, got, "{what}");
    for (got, want) in got.iter().zip(&want) {
        let allowed = bound(device, axis) + 0.51 * ulp(*want, x.dtype());
        assert!((got - want).abs() <= allowed, "{what}: {got} for {want}");
    }
    let [Some(of_y), Some(of_log)] = peers else {
        assert_eq!(x.size(), 0, "{what}");
        return Ok(());
    };
    // With the logarithm that was rounded, the subtraction is exact but for one rounding.
    assert_same(&log, &x.subtract(&y)?, what)?;
    let theirs = numbers(&of_y)?;
    for (got, theirs) in got.iter().zip(&theirs) {
        let allowed = 2.0 * bound(device, axis) + 1.01 * ulp(*theirs, x.dtype());
        assert!((got - theirs).abs() <= allowed, "{what}: {got} and MLX's {theirs}");
    }
    // The peer rounds where we do: only a last bit of the logarithm may differ.
    let peer = numbers(&of_log)?;
    for (row, (got, want)) in numbers(&log)?.iter().zip(&peer).enumerate() {
        let allowed = 2.0 * bound(device, axis) + ulp(theirs[row / axis], x.dtype());
        let allowed = allowed + ulp(*want, x.dtype());
        assert!((got - want).abs() <= allowed, "{what}: {got} and MLX's {want}");
    }
    Ok(())
}

#[test]
fn sizes_in_every_type() -> Checked {
    each_device(|device| {
        for dtype in FLOATS {
            for axis in [1, 3, 31, 33, 100, 129, 1000, 4096, 4097, 16384, 20001] {
                for rows in [0, 1, 3, 67] {
                    if rows * axis > 50_000 {
                        continue;
                    }
                    let what = format!("{dtype} {rows}x{axis}");
                    check(device, &random(&[rows, axis], dtype, 1)?, &what)?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn layouts() -> Checked {
    each_device(|device| {
        for dtype in FLOATS {
            for shape in [&[3, 33][..], &[2, 5, 31], &[7, 1], &[2, 3, 1, 100]] {
                for layout in LAYOUTS {
                    let what = format!("{dtype} {shape:?} {layout:?}");
                    check(device, &layout.make(shape, dtype, 2)?, &what)?;
                    let evaluated = layout.make(shape, dtype, 2)?;
                    evaluated.eval()?;
                    check(device, &evaluated, &what)?;
                }
            }
            check(device, &random(&[257], dtype, 3)?, "a vector")?;
        }
        for dtype in [Dtype::Int8, Dtype::Int64, Dtype::Bool] {
            let x = random32(&[3, 33], 4)?.abs()?.astype(dtype)?;
            let (ours, theirs) = (ops::logsumexp(&x, false)?, x.logsumexp(-1, false)?);
            assert_eq!(ours.dtype(), Dtype::Float32);
            assert_close(&numbers(&ours)?, &numbers(&theirs)?, 4e-6, dtype.name());
        }
        Ok(())
    })
}

#[test]
fn extremes_are_those_of_mlx() -> Checked {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    each_device(|_| {
        for dtype in FLOATS {
            let large = if dtype == Dtype::Float16 { f16::MAX.to_f32() } else { 1e30 };
            for (len, fill) in [(5, 0.5f32), (40, 0.5), (300, -inf), (300, 0.5)] {
                for special in [&[][..], &[inf], &[-inf], &[nan], &[large], &[-large], &[inf, -inf]]
                {
                    let mut row = vec![fill; len];
                    row[..special.len()].copy_from_slice(special);
                    let x = data(&row, &[1, len as i32], dtype)?;
                    let what = format!("{dtype} {special:?} in {len} of {fill}");
                    let y = ops::logsumexp(&x, true)?;
                    let peer = builtin::composition(&y)?;
                    let error = array_ulps(&y, &peer[0], &what)?;
                    // Sums of equal terms: the logarithm of 300 is within 20 ulps of itself.
                    assert!(error <= 20.0, "{what}: {error} ulps");
                    let y = ops::log_softmax(&x)?;
                    let peer = builtin::composition(&y)?;
                    let (ours, theirs) = (numbers(&y)?, numbers(&peer[0])?);
                    for (a, b) in ours.iter().zip(&theirs) {
                        let close = (a - b).abs() <= 8.0 * ulp(6.0, dtype);
                        assert!(close || a == b || a.is_nan() && b.is_nan(), "{what}: {a}, {b}");
                    }
                }
            }
        }
        Ok(())
    })
}

type Op = fn(&Array) -> Result<Array>;
const OPS: [(&str, Op, Op); 2] = [
    ("logsumexp", |x| ops::logsumexp(x, true), |x| x.logsumexp(-1, true)),
    ("log_softmax", ops::log_softmax, |x| x.subtract(x.logsumexp(-1, true)?)),
];

#[test]
fn derivatives() -> Checked {
    each_device(|_| {
        for (name, op, theirs) in OPS {
            let (x, t) = (random32(&[3, 7], 5)?, random32(&[3, 7], 6)?);
            let g = random32(op(&x)?.shape(), 7)?;
            let f = |p: &[Array]| Ok(vec![op(&p[0])?]);
            let value = |x: &[f64]| -> Vec<f64> {
                let logs = logs(x, 7);
                if name == "logsumexp" {
                    return logs;
                }
                x.iter().enumerate().map(|(i, v)| v - logs[i / 7]).collect()
            };
            let (gs, ts) = (numbers(&g)?, numbers(&t)?);
            let xs = numbers(&x)?;
            let want = reference::gradient(&xs, 1e-5, |x| reference::dot(&gs, &value(x)));
            let ours = vjp(f, &[&x], &[&g])?.1;
            assert_close(&numbers(&ours[0])?, &want, 2e-5, name);
            let want = reference::along(&xs, &ts, 1e-5, value);
            let forward = jvp(f, &[&x], &[&t])?.1;
            assert_close(&numbers(&forward[0])?, &want, 2e-5, name);
            // The two agree: <g, J t> = <J' g, t>.
            let (there, back) = (reference::dot(&gs, &numbers(&forward[0])?), numbers(&ours[0])?);
            assert!((there - reference::dot(&back, &ts)).abs() < 1e-4, "{name}");
            // Of the gradient, against the same of MLX's own.
            let twice = |f: Op| {
                let inner =
                    move |p: &[Array]| Ok(vjp(|p| Ok(vec![f(&p[0])?]), &[&p[0]], &[&p[1]])?.1);
                jvp(inner, &[&x, &g], &[&t, &g])
            };
            let (ours, theirs) = (twice(op)?.1, twice(theirs)?.1);
            assert_close(&numbers(&ours[0])?, &numbers(&theirs[0])?, 1e-4, name);
            for dtype in FLOATS {
                let (x, g) = (x.astype(dtype)?, g.astype(dtype)?);
                assert_eq!(vjp(f, &[&x], &[&g])?.1[0].dtype(), dtype);
            }
        }
        Ok(())
    })
}

#[test]
fn mapped_and_compiled() -> Checked {
    each_device(|_| {
        for (name, op, _) in OPS {
            let x = random32(&[2, 4, 6, 8], 8)?;
            for axis in 0..4 {
                let f = |p: &[Array]| Ok(vec![op(&p[0])?]);
                let all = vmap(f, &[&x], &[Some(axis)], &[0])?;
                let each: Vec<Array> = (0..x.dim(axis)?)
                    .map(|i| op(&x.slice_axis(axis, i..i + 1)?.squeeze(&[axis])?))
                    .collect::<Result<_>>()?;
                assert_same(&all[0], &stack(&refs(&each), 0)?, &format!("{name} axis {axis}"))?;
            }
            for shapeless in [false, true] {
                let f = compile(move |p| Ok(vec![op(&p[0].add(1.0)?)?]), shapeless)?;
                for shape in [&[2, 3, 8][..], &[5, 2, 8]] {
                    let x = random32(shape, 9)?;
                    assert_same(&f.call(&[&x])?[0], &op(&x.add(1.0)?)?, name)?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn bad_input_is_refused() -> Checked {
    for dtype in [Dtype::Complex64, Dtype::Float64] {
        let x = random32(&[2, 8], 10)?.astype(dtype)?;
        assert!(message(ops::logsumexp(&x, false)).starts_with("[logsumexp] expected"));
        assert!(message(ops::log_softmax(&x)).starts_with("[log_softmax] expected"));
    }
    for x in [Array::scalar(1.0f32)?, Array::zeros::<f32>(&[2, 0])?] {
        assert!(message(ops::logsumexp(&x, false)).starts_with("[logsumexp] expected"));
        assert!(message(ops::log_softmax(&x)).starts_with("[log_softmax] expected"));
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_each_byte_once() -> Checked {
    let x = random32(&[8, 5000], 1)?;
    x.eval()?;
    let bytes = x.nbytes() as u64;
    let moved = support::moved(|| ops::logsumexp(&x, true))?;
    assert_eq!(moved[0].arrays, [[bytes, 0, bytes], [0, 32, 0]]);
    support::report_traffic("logsumexp", &moved, x.nbytes() + 32)?;
    let moved = support::moved(|| ops::log_softmax(&x))?;
    assert_eq!(moved[0].arrays, [[bytes, 0, bytes], [0, bytes, 0]]);
    support::report_traffic("log_softmax", &moved, 2 * x.nbytes())
}
