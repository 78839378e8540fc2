//! `cross_entropy` against MLX's composition and against f64: sizes, targets, smoothing,
//! gradients, vmap.

use mlx_primitives::device::Device;
use mlx_primitives::ops::{CrossEntropyOptions, cross_entropy};
use mlx_primitives::transforms::{compile, grad, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin, stack};

use crate::support::compare::{assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, LAYOUTS, data, random, random32};
use crate::support::{self, Checked, each_device, message, reference, refs};

const PLAIN: CrossEntropyOptions = CrossEntropyOptions { label_smoothing: 0.0, ignore_index: None };
const OPTIONS: [CrossEntropyOptions; 3] = [
    PLAIN,
    CrossEntropyOptions { label_smoothing: 0.1, ignore_index: None },
    CrossEntropyOptions { label_smoothing: 0.3, ignore_index: Some(1) },
];

fn targets(rows: usize, classes: usize) -> Vec<i32> {
    (0..rows).map(|row| (row * 7919 % classes) as i32).collect()
}

fn losses(x: &[f64], targets: &[i32], classes: usize, options: CrossEntropyOptions) -> Vec<f64> {
    let smoothing = f64::from(options.label_smoothing);
    let of = |(row, &target): (&[f64], &i32)| {
        if options.ignore_index == Some(target) {
            return 0.0;
        }
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log = row.iter().map(|v| (v - max).exp()).sum::<f64>().ln();
        let mean = row.iter().sum::<f64>() / classes as f64 - max;
        log - (1.0 - smoothing) * (row[target as usize] - max) - smoothing * mean
    };
    x.chunks_exact(classes).zip(targets).map(of).collect()
}

/// The largest absolute error in f32: as of logsumexp, and the differences of a few numbers up to 12.
fn bound(device: Device, classes: usize) -> f64 {
    let exp = if device == Device::Gpu { 15.0 } else { 2.0 };
    (exp + 24.0 + (classes as f64).sqrt()) * f64::from(f32::EPSILON)
}

fn check(device: Device, x: &Array, options: CrossEntropyOptions, what: &str) -> Checked {
    let classes = x.dim(-1)? as usize;
    let shape = &x.shape()[..x.ndim() - 1];
    let rows = shape.iter().product::<i32>() as usize;
    let classes_of = targets(rows, classes);
    let targets = Array::from_slice(&classes_of, shape)?;
    let y = cross_entropy(x, &targets, options)?;
    assert_eq!((y.shape(), y.dtype()), (shape, x.dtype()), "{what}");
    // logsumexp of MLX refuses arrays of no elements.
    let theirs = (rows > 0).then(|| builtin::composition(&y)).transpose()?;
    let want = losses(&numbers(x)?, &classes_of, classes, options);
    for (got, want) in numbers(&y)?.iter().zip(&want) {
        let allowed = bound(device, classes) + 0.51 * ulp(*want, x.dtype());
        assert!((got - want).abs() <= allowed, "{what}: {got} for {want}");
    }
    // Every step of the composition is rounded: the shifted logits, up to 6, the logarithm, up to
    // 10, the scores and what is made of them; and MLX adds up a mean in 16 bits.
    let steps = 4.0 + if options.label_smoothing > 0.0 { 8.0 } else { 0.0 };
    let tolerance = 2.0 * bound(device, classes) + steps * ulp(10.0, x.dtype());
    if let Some(theirs) = theirs {
        for (got, theirs) in numbers(&y)?.iter().zip(numbers(&theirs[0])?) {
            assert!((got - theirs).abs() <= tolerance, "{what}: {got} and MLX's {theirs}");
        }
    }
    Ok(())
}

#[test]
fn sizes_in_every_type() -> Checked {
    each_device(|device| {
        for dtype in FLOATS {
            for classes in [1, 3, 31, 33, 100, 129, 1000, 4096, 4097, 16385] {
                for rows in [0, 1, 3, 67] {
                    if rows * classes > 50_000 {
                        continue;
                    }
                    for options in OPTIONS {
                        let what = format!("{dtype} {rows}x{classes} {options:?}");
                        check(device, &random(&[rows, classes], dtype, 1)?, options, &what)?;
                    }
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
            for shape in [&[3, 33][..], &[2, 5, 31], &[7, 1], &[2, 3, 1, 200]] {
                for layout in LAYOUTS {
                    let what = format!("{dtype} {shape:?} {layout:?}");
                    check(device, &layout.make(shape, dtype, 2)?, OPTIONS[1], &what)?;
                }
            }
            check(device, &random(&[257], dtype, 3)?, PLAIN, "a vector")?;
        }
        let (x, all) = (random32(&[4, 9], 4)?, Array::from_slice(&[1i32, 8, 0, 3], &[4])?);
        let want = cross_entropy(&x, &all, PLAIN)?;
        for dtype in [Dtype::Int8, Dtype::Uint8, Dtype::Uint32, Dtype::Int64, Dtype::Uint64] {
            let got = cross_entropy(&x, &all.astype(dtype)?, PLAIN)?;
            assert_same(&got, &want, dtype.name())?;
        }
        let twice = Array::from_slice(&[3i32, 5, 0, 5, 8, 5, 1, 5], &[8])?.slice(&[&(.., -2)])?;
        let shifted = Array::from_slice(&[5i32, 5, 5, 5], &[4])?;
        assert_same(&cross_entropy(&x, &twice, PLAIN)?, &cross_entropy(&x, &shifted, PLAIN)?, "")?;
        Ok(())
    })
}

#[test]
fn targets_that_are_no_class_are_nan() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for classes in [5i32, 300] {
                let x = random(&[5, classes], dtype, 5)?;
                let wide = [-1i64, i64::from(classes), (1 << 32) + 1, 2, -(1 << 32) + 1];
                let targets = Array::from_slice(&wide, &[5])?;
                let y = numbers(&cross_entropy(&x, &targets, PLAIN)?)?;
                let nan: Vec<bool> = y.iter().map(|v| v.is_nan()).collect();
                assert_eq!(nan, [true, true, true, false, true], "{dtype} {classes}: {y:?}");
                let loss = |p: &[Array]| cross_entropy(&p[0], &targets, PLAIN)?.sum(.., false);
                let g = numbers(&grad(loss, &[0], &[&x])?[0])?;
                for (row, nan) in g.chunks_exact(classes as usize).zip(nan) {
                    assert!(row.iter().all(|v| v.is_nan() == nan), "{dtype} {classes}");
                }
                let ignoring = CrossEntropyOptions { ignore_index: Some(-1), ..PLAIN };
                let y = numbers(&cross_entropy(&x, &targets, ignoring)?)?;
                assert!(y[0] == 0.0 && y[1].is_nan(), "{dtype} {classes}");
            }
        }
        Ok(())
    })
}

#[test]
fn an_ignored_row_costs_nothing_whatever_it_holds() -> Checked {
    each_device(|_| {
        let x = data(&[f32::NAN, 1.0, 2.0, 0.5, 0.5, 0.5], &[2, 3], Dtype::Float32)?;
        let targets = Array::from_slice(&[-100i32, 1], &[2])?;
        let ignoring = CrossEntropyOptions { ignore_index: Some(-100), ..PLAIN };
        let loss = |p: &[Array]| cross_entropy(&p[0], &targets, ignoring)?.sum(.., false);
        assert!((numbers(&loss(std::slice::from_ref(&x))?)?[0] - 3f64.ln()).abs() < 1e-6);
        let g = numbers(&grad(loss, &[0], &[&x])?[0])?;
        assert_eq!(g[..3], [0.0; 3]);
        assert_close(&g[3..], &[1.0 / 3.0, -2.0 / 3.0, 1.0 / 3.0], 1e-6, "the other row");
        Ok(())
    })
}

#[test]
fn large_logits_keep_their_gaps() -> Checked {
    each_device(|_| {
        // The loss depends on differences alone; with logsumexp less a logit it would be 0.
        let x = data(&[1e6, 1e6 - 1.0, 1e6 - 3.0], &[1, 3], Dtype::Float32)?;
        let targets = Array::from_slice(&[1i32], &[1])?;
        let want = losses(&numbers(&x)?, &[1], 3, PLAIN);
        let got = numbers(&cross_entropy(&x, &targets, PLAIN)?)?;
        assert_close(&got, &want, 2e-6, "loss");
        let loss = |p: &[Array]| cross_entropy(&p[0], &targets, PLAIN)?.sum(.., false);
        let e = [1.0, (-1f64).exp(), (-3f64).exp()];
        let sum: f64 = e.iter().sum();
        let want = [e[0] / sum, e[1] / sum - 1.0, e[2] / sum];
        assert_close(&numbers(&grad(loss, &[0], &[&x])?[0])?, &want, 2e-6, "gradient");
        Ok(())
    })
}

#[test]
fn derivatives() -> Checked {
    each_device(|_| {
        for classes in [7usize, 150] {
            for options in OPTIONS {
                let shape = &[3, classes as i32];
                let (x, t, g) = (random32(shape, 6)?, random32(shape, 7)?, random32(&[3], 8)?);
                let classes_of = targets(3, classes);
                let targets = Array::from_slice(&classes_of, &[3])?;
                let f = |p: &[Array]| Ok(vec![cross_entropy(&p[0], &targets, options)?]);
                let value = |x: &[f64]| losses(x, &classes_of, classes, options);
                let (xs, gs, ts) = (numbers(&x)?, numbers(&g)?, numbers(&t)?);
                let what = format!("{classes} {options:?}");
                let want = reference::gradient(&xs, 1e-5, |x| reference::dot(&gs, &value(x)));
                let ours = vjp(f, &[&x], &[&g])?.1;
                assert_close(&numbers(&ours[0])?, &want, 2e-5, &what);
                let forward = jvp(f, &[&x], &[&t])?.1;
                let want = reference::along(&xs, &ts, 1e-5, value);
                assert_close(&numbers(&forward[0])?, &want, 1e-4, &what);
                // The gradient along a direction, against differences of the gradient.
                let inner = |p: &[Array]| Ok(vjp(f, &[&p[0]], &[&g])?.1);
                let second = jvp(inner, &[&x], &[&t])?.1;
                let of = |h: f32| inner(&[x.add(t.multiply(h)?)?]);
                let want = of(1e-2)?[0].subtract(&of(-1e-2)?[0])?.divide(2e-2)?;
                assert_close(&numbers(&second[0])?, &numbers(&want)?, 2e-3, &what);
                let along = |p: &[Array]| inner(p)?[0].multiply(&t)?.sum(.., false);
                let reverse = grad(along, &[0], &[&x])?;
                assert_close(&numbers(&reverse[0])?, &numbers(&second[0])?, 2e-4, &what);
            }
        }
        Ok(())
    })
}

#[test]
fn gradients_in_every_type_and_size() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (rows, classes) in [(9, 3), (3, 129), (2, 1500), (1, 9000)] {
                for options in OPTIONS {
                    let x = random(&[rows, classes], dtype, 9)?;
                    let targets =
                        Array::from_slice(&targets(rows as usize, classes as usize), &[rows])?;
                    let g = random(&[rows], dtype, 10)?;
                    let f = |p: &[Array]| Ok(vec![cross_entropy(&p[0], &targets, options)?]);
                    let ours = &vjp(f, &[&x], &[&g])?.1[0];
                    assert_eq!((ours.shape(), ours.dtype()), (x.shape(), dtype));
                    let wide = |x: &Array| x.astype(Dtype::Float32);
                    let composed =
                        |p: &[Array]| Ok(vec![builtin::composition(&f(p)?[0])?.swap_remove(0)]);
                    let want = &vjp(composed, &[&wide(&x)?], &[&wide(&g)?])?.1[0];
                    let what = format!("{dtype} {rows}x{classes} {options:?}");
                    for (got, want) in numbers(ours)?.into_iter().zip(numbers(want)?) {
                        // Shares within some 30 ulps of themselves, then one rounding.
                        let allowed = 0.51 * ulp(want, dtype) + 1e-5 * want.abs() + 1e-6;
                        assert!((got - want).abs() <= allowed, "{what}: {got} for {want}");
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn mapped_and_compiled() -> Checked {
    each_device(|_| {
        let (x, all) = (random32(&[2, 4, 6, 8], 11)?, targets(48, 8));
        let all = Array::from_slice(&all, &[2, 4, 6])?;
        let f = |p: &[Array]| Ok(vec![cross_entropy(&p[0], &p[1], OPTIONS[1])?]);
        let gradient = |p: &[Array]| {
            let loss = |q: &[Array]| f(&[q[0].clone(), p[1].clone()])?[0].sum(.., false);
            grad(loss, &[0], &[&p[0]])
        };
        for axis in 0..3 {
            let slices: Vec<[Array; 2]> = (0..x.dim(axis)?)
                .map(|i| {
                    let cut = |a: &Array| a.slice_axis(axis, i..i + 1)?.squeeze(&[axis]);
                    Ok([cut(&x)?, cut(&all)?])
                })
                .collect::<Result<_>>()?;
            let each: Vec<Array> =
                slices.iter().map(|s| Ok(f(s)?.swap_remove(0))).collect::<Result<_>>()?;
            let mapped = vmap(f, &[&x, &all], &[Some(axis); 2], &[0])?;
            assert_same(&mapped[0], &stack(&refs(&each), 0)?, "both")?;
            let each: Vec<Array> =
                slices.iter().map(|s| Ok(gradient(s)?.swap_remove(0))).collect::<Result<_>>()?;
            let mapped = vmap(gradient, &[&x, &all], &[Some(axis); 2], &[0])?;
            assert_same(&mapped[0], &stack(&refs(&each), 0)?, "gradients")?;
        }
        let row = random32(&[8], 12)?;
        let some = Array::from_slice(&[3i32, 0, 7], &[3])?;
        let mapped = &vmap(f, &[&row, &some], &[None, Some(0)], &[0])?[0];
        let rows = row.broadcast_to(&[3, 8])?;
        assert_same(mapped, &cross_entropy(&rows, &some, OPTIONS[1])?, "targets alone")?;
        for shapeless in [false, true] {
            let compiled =
                compile(move |p| Ok(vec![cross_entropy(&p[0], &p[1], PLAIN)?]), shapeless)?;
            let want = cross_entropy(&x, &all, PLAIN)?;
            assert_same(&compiled.call(&[&x, &all])?[0], &want, "compiled")?;
        }
        Ok(())
    })
}

#[test]
fn bad_input_is_refused() -> Checked {
    let (x, targets) = (random32(&[2, 8], 13)?, Array::from_slice(&[1i32, 2], &[2])?);
    let says = |result: Result<Array>, part: &str| {
        let text = message(result);
        assert!(text.starts_with("[cross_entropy] expected ") && text.contains(part), "{text}");
    };
    says(cross_entropy(&Array::scalar(1.0f32)?, &targets, PLAIN), "scalar");
    says(cross_entropy(&Array::zeros::<f32>(&[2, 0])?, &targets, PLAIN), "(2,0)");
    says(cross_entropy(&x.astype(Dtype::Int32)?, &targets, PLAIN), "int32");
    says(cross_entropy(&x, &targets.astype(Dtype::Float32)?, PLAIN), "integer");
    says(cross_entropy(&x, &targets.astype(Dtype::Bool)?, PLAIN), "integer");
    says(cross_entropy(&x, &targets.reshape(&[2, 1])?, PLAIN), "shape (2)");
    says(cross_entropy(&x, &targets.slice(&[&(..1)])?, PLAIN), "shape (2)");
    for label_smoothing in [-0.1, 1.0, f32::NAN] {
        says(
            cross_entropy(&x, &targets, CrossEntropyOptions { label_smoothing, ..PLAIN }),
            "[0, 1)",
        );
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_each_byte_once() -> Checked {
    let (x, all) = (random32(&[8, 5000], 1)?, Array::from_slice(&targets(8, 5000), &[8])?);
    x.eval()?;
    all.eval()?;
    let bytes = x.nbytes() as u64;
    let moved = support::moved(|| cross_entropy(&x, &all, PLAIN))?;
    // The targets' logits come once more; two numbers a row are kept for the gradient.
    assert_eq!(moved[0].arrays, [[bytes + 32, 0, bytes], [32, 0, 32], [0, 32, 0], [0, 64, 0]]);
    support::report_traffic("cross_entropy", &moved, x.nbytes() + 64)?;
    let g = random32(&[8], 2)?;
    g.eval()?;
    let f = |p: &[Array]| Ok(vec![cross_entropy(&p[0], &all, PLAIN)?]);
    let moved = support::moved(|| Ok(vjp(f, &[&x], &[&g])?.1.swap_remove(0)))?;
    let gradient = moved.iter().find(|d| d.kernel.contains("_grad_")).expect("the gradient");
    assert_eq!((gradient.arrays[0], gradient.arrays[4]), ([bytes, 0, bytes], [0, bytes, 0]));
    // Sixteen bytes for each SIMD group of 512 elements, of which 32 a row are idle at most.
    assert!(gradient.read() < bytes + bytes / 64, "{gradient:?}");
    Ok(())
}
