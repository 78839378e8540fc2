//! Derivatives, vmap and compilation of `masked_softmax`.

use mlx_primitives::ops::{SoftmaxOptions, masked_softmax};
use mlx_primitives::transforms::{compile, grad, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin, stack};

use super::{PLAIN, mask};
use crate::support::compare::{assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, random, random32};
use crate::support::{Checked, each_device, reference, refs};

#[test]
fn derivatives() -> Checked {
    each_device(|_| {
        for keys in [7i32, 150] {
            let shape = [2, 5, keys];
            let (x, t, g) = (random32(&shape, 15)?, random32(&shape, 16)?, random32(&shape, 17)?);
            let bools = random32(&[5, keys], 18)?.greater(-1.5)?;
            let added = random32(&[2, 1, keys], 19)?;
            let (xs, gs, ts) = (numbers(&x)?, numbers(&g)?, numbers(&t)?);
            for mask in [None, Some(&bools), Some(&added)] {
                for (causal, window) in [(false, None), (true, None), (true, Some(3))] {
                    let options = SoftmaxOptions { scale: 0.5, mask, causal, window };
                    let f = |p: &[Array]| Ok(vec![masked_softmax(&p[0], options)?]);
                    let plain = |x: &[f64]| {
                        // The same function without its roundings, by what it hides.
                        let hidden = numbers(&masked_softmax(&random32(&shape, 20)?, options)?)?;
                        let mask = mask.filter(|mask| mask.dtype() != Dtype::Bool);
                        let mask = mask.map(|m| numbers(&m.broadcast_to(&shape)?)).transpose()?;
                        let score = |i: usize| {
                            let score = 0.5 * x[i] + mask.as_ref().map_or(0.0, |mask| mask[i]);
                            if hidden[i] == 0.0 { f64::NEG_INFINITY } else { score }
                        };
                        let scores: Vec<f64> = (0..x.len()).map(score).collect();
                        Ok::<_, anyhow::Error>(reference::softmax(&scores, keys as usize))
                    };
                    let what = format!("{keys} {causal} {window:?} {:?}", mask.map(Array::dtype));
                    let y = plain(&xs)?;
                    let mut want = Vec::new();
                    for (y, g) in y.chunks_exact(keys as usize).zip(gs.chunks_exact(keys as usize))
                    {
                        let along = reference::dot(y, g);
                        want.extend(y.iter().zip(g).map(|(y, g)| 0.5 * y * (g - along)));
                    }
                    let ours = vjp(f, &[&x], &[&g])?.1;
                    assert_close(&numbers(&ours[0])?, &want, 2e-5, &what);
                    let forward = jvp(f, &[&x], &[&t])?.1;
                    let there = reference::dot(&gs, &numbers(&forward[0])?);
                    let back = reference::dot(&numbers(&ours[0])?, &ts);
                    assert!((there - back).abs() < 1e-4, "{what}: {there} and {back}");
                    if !causal && keys == 7 {
                        let value = |x: &[f64]| reference::dot(&gs, &plain(x).expect("numbers"));
                        let differences = reference::gradient(&xs, 1e-5, value);
                        assert_close(&want, &differences, 1e-8, "the reference itself");
                    }
                    // Second derivatives, both ways.
                    let inner = |p: &[Array]| Ok(vjp(f, &[&p[0]], &[&g])?.1);
                    let second = jvp(inner, &[&x], &[&t])?.1;
                    let along = |p: &[Array]| inner(p)?[0].multiply(&t)?.sum(.., false);
                    let reverse = grad(along, &[0], &[&x])?;
                    let (a, b) = (numbers(&second[0])?, numbers(&reverse[0])?);
                    assert!((reference::dot(&a, &ts) - reference::dot(&b, &ts)).abs() < 1e-3);
                }
            }
        }
        Ok(())
    })
}

#[test]
fn gradient_of_an_additive_mask() -> Checked {
    each_device(|_| {
        let (x, g) = (random32(&[2, 3, 5, 9], 21)?, random32(&[2, 3, 5, 9], 22)?);
        for shape in [&[][..], &[9], &[5, 1], &[3, 1, 9], &[2, 1, 5, 9], &[2, 3, 5, 9]] {
            let mask = random32(shape, 23)?;
            let f = |p: &[Array]| {
                let options =
                    SoftmaxOptions { scale: 0.5, mask: Some(&p[1]), causal: true, ..PLAIN };
                Ok(vec![masked_softmax(&p[0], options)?])
            };
            let peer = |p: &[Array]| Ok(vec![builtin::composition(&f(p)?[0])?.swap_remove(0)]);
            let (ours, theirs) =
                (vjp(f, &[&x, &mask], &[&g])?.1, vjp(peer, &[&x, &mask], &[&g])?.1);
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert_eq!(ours.shape(), theirs.shape());
                assert_close(&numbers(ours)?, &numbers(theirs)?, 5e-5, &format!("{shape:?}"));
            }
        }
        Ok(())
    })
}

#[test]
fn gradients_in_every_type_and_size() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for shape in [[2, 9, 40], [1, 3, 300], [1, 2, 4100], [1, 2, 9000], [1, 2, 17000]] {
                let (x, g) = (random(&shape, dtype, 24)?, random(&shape, dtype, 25)?);
                let bools = random32(&shape[1..], 26)?.greater(-1.5)?;
                for mask in [None, Some(&bools)] {
                    let options = SoftmaxOptions { scale: 0.5, mask, causal: true, window: None };
                    let f = |p: &[Array]| Ok(vec![masked_softmax(&p[0], options)?]);
                    let ours = &vjp(f, &[&x], &[&g])?.1[0];
                    assert_eq!(ours.dtype(), dtype);
                    // By the formula, from the very result that the gradient is made of.
                    let (ys, gs) = (numbers(&masked_softmax(&x, options)?)?, numbers(&g)?);
                    let keys = shape[2] as usize;
                    let mut want = Vec::new();
                    for (y, g) in ys.chunks_exact(keys).zip(gs.chunks_exact(keys)) {
                        let along = reference::dot(y, g);
                        want.extend(y.iter().zip(g).map(|(y, g)| 0.5 * y * (g - along)));
                    }
                    for (got, want) in numbers(ours)?.into_iter().zip(want) {
                        let allowed = 0.51 * ulp(want, dtype) + 1e-6;
                        assert!((got - want).abs() <= allowed, "{dtype} {shape:?}: {got} {want}");
                    }
                }
            }
        }
        Ok(())
    })
}

/// `vmap` of the op against a loop, bit for bit; each of x and mask mapped or not.
fn check_vmap(x: (&Array, Option<i32>), mask: (&Array, Option<i32>), what: &str) -> Checked {
    let f = |p: &[Array]| {
        let options = SoftmaxOptions { scale: 0.5, mask: Some(&p[1]), causal: true, ..PLAIN };
        Ok(vec![masked_softmax(&p[0], options)?])
    };
    let gradient = |p: &[Array]| {
        let loss = |q: &[Array]| f(&[q[0].clone(), p[1].clone()])?[0].square()?.sum(.., false);
        grad(loss, &[0], &[&p[0]])
    };
    let both = [x, mask];
    let (of, axis) = both.into_iter().find(|(_, axis)| axis.is_some()).expect("a mapped one");
    let size = of.dim(axis.unwrap_or_default())?;
    let axes = both.map(|(_, axis)| axis);
    for function in [&f as &dyn Fn(&[Array]) -> Result<Vec<Array>>, &gradient] {
        let mapped = vmap(function, &[x.0, mask.0], &axes, &[0])?;
        let each: Vec<Array> = (0..size)
            .map(|i| {
                let cut = |(a, axis): (&Array, Option<i32>)| match axis {
                    Some(axis) => a.slice_axis(axis, i..i + 1)?.squeeze(&[axis]),
                    None => Ok(a.clone()),
                };
                Ok(function(&[cut(x)?, cut(mask)?])?.swap_remove(0))
            })
            .collect::<Result<_>>()?;
        assert_same(&mapped[0], &stack(&refs(&each), 0)?, what)?;
    }
    Ok(())
}

#[test]
fn mapped() -> Checked {
    each_device(|_| {
        let x = random32(&[2, 3, 5, 8], 27)?;
        for bools in [true, false] {
            for axis in 0..4 {
                let kept: Vec<i32> =
                    (0..4).filter(|&i| i != axis).map(|i| x.shape()[i as usize]).collect();
                let one = mask(&kept[1..], Dtype::Float32, bools, 28)?;
                check_vmap((&x, Some(axis)), (&one, None), &format!("x along {axis}"))?;
                let mut shape = kept.clone();
                shape.insert(2, x.shape()[axis as usize]);
                let each = mask(&shape, Dtype::Float32, bools, 29)?;
                let what = format!("both, x along {axis}");
                check_vmap((&x, Some(axis)), (&each, Some(2)), &what)?;
            }
            let row = mask(&[4, 8], Dtype::Float32, bools, 30)?;
            let rows = random32(&[4, 3, 8], 31)?;
            check_vmap((&rows, Some(0)), (&row, Some(0)), "a mask of rows each")?;
            check_vmap((&random32(&[3, 8], 32)?, None), (&row, Some(0)), "the mask alone")?;
            check_vmap((&random32(&[4, 8], 33)?, Some(0)), (&row, Some(0)), "vectors")?;
        }
        Ok(())
    })
}

#[test]
fn compiled() -> Checked {
    each_device(|_| {
        for shapeless in [false, true] {
            let f = compile(
                |p| {
                    let options =
                        SoftmaxOptions { scale: 0.5, mask: Some(&p[1]), window: Some(3), ..PLAIN };
                    Ok(vec![masked_softmax(&p[0].add(1.0)?, options)?])
                },
                shapeless,
            )?;
            for shape in [&[2, 3, 8][..], &[5, 2, 8]] {
                let x = random32(shape, 34)?;
                let mask = random32(&shape[1..], 35)?;
                let options =
                    SoftmaxOptions { scale: 0.5, mask: Some(&mask), window: Some(3), ..PLAIN };
                let want = masked_softmax(&x.add(1.0)?, options)?;
                assert_same(&f.call(&[&x, &mask])?[0], &want, "compiled")?;
            }
        }
        Ok(())
    })
}
