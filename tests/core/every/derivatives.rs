//! Second derivatives of ops, and types and layouts of derivatives. The conformance table
//! (`tests/catalog`) compares the first derivatives with a float64 reference.

use std::rc::Rc;

use mlx_primitives::transforms::{grad, jvp, vjp};
use mlx_primitives::tune::{Choices, with_choices};
use mlx_primitives::{Array, Dtype, Result, ops};

use super::loss;
use crate::support::compare::{assert_close, numbers, ulp};
use crate::support::input::{FLOATS, LAYOUTS, random, random32};
use crate::support::{Checked, each_device, refs};
use crate::table::ops::OPS;

/// Computes the second derivative along a direction in forward and in reverse mode. Compares both
/// with a finite difference of the gradient.
#[test]
fn second_derivatives() -> Checked {
    each_device(|_| {
        for op in OPS.iter().filter(|op| op.smooth) {
            let (x, t) = (op.inputs(3, 5)?, op.inputs(3, 15)?);
            let g: Vec<Array> = (op.run)(&x)?
                .iter()
                .zip(25..)
                .map(|(y, seed)| random32(y.shape(), seed))
                .collect::<Result<_>>()?;
            let inner = |p: &[Array]| Ok(vjp(|p| (op.run)(&p), &refs(p), &refs(&g))?.1);
            let second = jvp(|p| inner(&p), &refs(&x), &refs(&t))?.1;
            let along = |p: &[Array]| {
                let parts = inner(p)?.into_iter().zip(&t);
                let parts = parts.map(|(d, t)| d.multiply(t)?.sum(..));
                parts.reduce(|a, b| a?.add(b?)).unwrap_or_else(|| Array::scalar(0.0f32))
            };
            let reverse = grad(|p| along(&p), &refs(&x))?;
            let of = |h: f32| {
                let moved = x.iter().zip(&t).map(|(x, t)| x.add(t.multiply(h)?));
                inner(&moved.collect::<Result<Vec<_>>>()?)
            };
            let (above, below) = (of(1e-2)?, of(-1e-2)?);
            for (i, second) in second.iter().enumerate() {
                let want = numbers(&above[i].subtract(&below[i])?.divide(2e-2)?)?;
                // The step h is 1e-2. The finite difference has an error of h² times the third
                // derivative, and float32's error of 1e-6 divided by h.
                let scale = want.iter().fold(1.0f64, |a, b| a.max(b.abs()));
                let what = format!("{}, input {i}", op.name);
                assert_close(&numbers(second)?, &want, 4e-3 * scale, &what);
                assert_close(&numbers(&reverse[i])?, &numbers(second)?, 2e-4 * scale, &what);
            }
        }
        Ok(())
    })
}

/// For rows of up to 8192 elements, the kernel of a norm's gradient keeps the row in registers.
/// These rows are longer, so the kernel reads them more than once.
#[test]
fn gradients_of_norms_of_long_rows() -> Checked {
    each_device(|_| {
        for (dtype, near) in FLOATS.into_iter().zip([1e-5, 4e-3, 3e-2]) {
            let shapes: [&[i32]; 4] = [&[2, 8205], &[8205], &[8205], &[2, 8205]];
            let inputs = shapes.into_iter().zip(1..);
            let inputs = inputs.map(|(shape, seed)| random(shape, dtype, seed));
            let inputs = inputs.collect::<Result<Vec<_>>>()?;
            let wide =
                inputs.iter().map(|x| x.astype(Dtype::Float32)).collect::<Result<Vec<_>>>()?;
            for count in [2, 3] {
                let norm = |p: &[Array]| match p {
                    [x, weight, bias] => ops::layer_norm(x, Some(weight), Some(bias), 1e-5),
                    _ => ops::rms_norm(&p[0], p.get(1), 1e-5),
                };
                let gradients = |all: &[Array]| {
                    let (p, g) = (refs(&all[..count]), &all[3]);
                    Ok::<_, mlx_primitives::Error>(vjp(|p| Ok(vec![norm(&p)?]), &p, &[g])?.1)
                };
                let got = gradients(&inputs)?;
                let want = with_choices(Rc::new(Choices::mlx()), || gradients(&wide))?;
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    let want = numbers(want)?;
                    let scale = want.iter().fold(1.0f64, |a, b| a.max(b.abs()));
                    let what = format!("{dtype}, of {count}, input {i}");
                    assert_close(&numbers(got)?, &want, near * scale, &what);
                }
            }
        }
        Ok(())
    })
}

#[test]
fn gradients_in_some_arguments_are_those_in_all() -> Checked {
    for op in OPS {
        let inputs = op.inputs(3, 60)?;
        let all = grad(|p| loss(op.run)(&p), &refs(&inputs))?;
        for (argument, all) in all.iter().enumerate() {
            let others = |x: &Array| {
                let mut p = inputs.clone();
                p[argument] = x.clone();
                loss(op.run)(&p)
            };
            let alone = grad(|p| others(&p), &inputs[argument])?;
            assert_close(&numbers(&alone)?, &numbers(all)?, 1e-4, op.name);
        }
    }
    Ok(())
}

/// Each gradient has the type of its argument, whatever types the other arguments have.
#[test]
fn gradients_of_promoted_types_keep_each_arguments_type() -> Checked {
    for op in OPS.iter().filter(|op| op.promotes) {
        let inputs = op.inputs(3, 60)?.into_iter().enumerate();
        let inputs: Vec<Array> =
            inputs.map(|(i, x)| x.astype(FLOATS[(i + 1) % 3])).collect::<Result<_>>()?;
        for (x, gradient) in inputs.iter().zip(grad(|p| loss(op.run)(&p), &refs(&inputs))?) {
            assert_eq!((gradient.shape(), gradient.dtype()), (x.shape(), x.dtype()), "{}", op.name);
        }
    }
    Ok(())
}

/// Derivatives of strided inputs equal those of contiguous copies, except for rounding: a kernel
/// may add up strided elements in another order.
#[test]
fn derivatives_of_inputs_in_every_layout() -> Checked {
    for (op, dtype) in OPS.iter().flat_map(|op| FLOATS.map(|dtype| (op, dtype))) {
        for layout in LAYOUTS {
            let make = |x: &Array, seed| match x.ndim() {
                0 | 1 => random(x.shape(), dtype, seed),
                _ => layout.make(x.shape(), dtype, seed),
            };
            let of = |list: &[Array], seed: u64| -> Result<[Vec<Array>; 2]> {
                let views = list.iter().zip(seed..).map(|(x, seed)| make(x, seed));
                let views = views.collect::<Result<Vec<_>>>()?;
                let plain = views.iter().map(Array::contiguous).collect::<Result<_>>()?;
                Ok([views, plain])
            };
            let inputs = op.inputs(2, 0)?;
            let (x, t) = (of(&inputs, 70)?, of(&inputs, 80)?);
            let g = of(&(op.run)(&inputs)?, 90)?;
            let what = format!("{} {dtype} {layout:?}", op.name);
            let tolerance = 2e-5 + 4.0 * ulp(1.0, dtype);
            let back = [0, 1].map(|i| vjp(|p| (op.run)(&p), &refs(&x[i]), &refs(&g[i])));
            let forward = [0, 1].map(|i| jvp(|p| (op.run)(&p), &refs(&x[i]), &refs(&t[i])));
            for [ours, want] in [back, forward] {
                for (ours, want) in ours?.1.iter().zip(want?.1) {
                    assert_close(&numbers(ours)?, &numbers(&want)?, tolerance, &what);
                }
            }
        }
    }
    Ok(())
}
