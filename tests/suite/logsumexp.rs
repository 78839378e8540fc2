//! `logsumexp` and `log_softmax` beside their rows of `table`: other types, extremes, derivatives of
//! derivatives, vmap.

use half::f16;
use mlx_primitives::transforms::{compile, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin, ops, stack};

use crate::support::compare::{array_ulps, assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, data, random32};
use crate::support::{self, Checked, each_device, message, reference, refs};

#[test]
fn integers_become_float32() -> Checked {
    each_device(|_| {
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
            let (gs, ts) = (numbers(&g)?, numbers(&t)?);
            let ours = vjp(f, &[&x], &[&g])?.1;
            let forward = jvp(f, &[&x], &[&t])?.1;
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
