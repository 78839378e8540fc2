//! `masked_softmax` against MLX's composition and against f64: sizes, masks, windows, layouts,
//! extremes, derivatives, vmap.

use half::{bf16, f16};
use mlx_primitives::device::Device;
use mlx_primitives::ops::{SoftmaxOptions, masked_softmax};
use mlx_primitives::transforms::{compile, grad, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin, stack};

use crate::support::compare::{array_ulps, assert_close, assert_same, numbers, ulp, ulps};
use crate::support::input::{FLOATS, LAYOUTS, data, random, random32};
use crate::support::{self, Checked, each_device, message, reference, refs};

const PLAIN: SoftmaxOptions =
    SoftmaxOptions { scale: 1.0, mask: None, causal: false, window: None };

/// The ways to hide keys without a mask in memory.
const RANGES: [(bool, Option<i32>); 5] =
    [(false, None), (true, None), (true, Some(1)), (false, Some(16)), (true, Some(1000))];

fn rounded(value: f64, dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Float16 => f16::from_f64(value).to_f64(),
        Dtype::Bfloat16 => bf16::from_f64(value).to_f64(),
        _ => f64::from(value as f32),
    }
}

fn lowest(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Float16 => f16::MIN.to_f64(),
        Dtype::Bfloat16 => bf16::MIN.to_f64(),
        _ => f64::from(f32::MIN),
    }
}

/// In f64, but for the roundings of the scores, which all implementations share.
fn exact(x: &Array, options: SoftmaxOptions) -> anyhow::Result<Vec<f64>> {
    let dtype = x.dtype();
    let (keys, queries) = (x.dim(-1)? as usize, if x.ndim() > 1 { x.dim(-2)? as usize } else { 1 });
    let scale = rounded(f64::from(options.scale), dtype);
    let mask = options.mask.map(|mask| mask.broadcast_to(x.shape())).transpose()?;
    let bools = mask.as_ref().is_some_and(|mask| mask.dtype() == Dtype::Bool);
    let mask = mask.map(|mask| numbers(&mask)).transpose()?;
    let xs = numbers(x)?;
    let mut out = Vec::with_capacity(xs.len());
    for (row, x) in xs.chunks_exact(keys).enumerate() {
        let position = (row % queries + keys) as i64 - queries as i64;
        let scores: Vec<f64> = (0..keys)
            .map(|key| {
                let mut score = rounded(x[key] * scale, dtype);
                if let Some(mask) = &mask {
                    let value = mask[row * keys + key];
                    score = match bools {
                        true if value == 0.0 => lowest(dtype),
                        true => score,
                        false => rounded(score + value, dtype),
                    };
                }
                let back = position - key as i64;
                let far = options.window.is_some_and(|window| back >= i64::from(window));
                let causal = options.causal || options.window.is_some();
                if causal && back < 0 || far { lowest(dtype) } else { score }
            })
            .collect();
        out.extend(reference::softmax(&scores, keys));
    }
    Ok(out)
}

/// As of softmax, in ulps from f64 and from MLX; scores reach 6 apart, with a mask 12.
fn bounds(device: Device, dtype: Dtype, keys: usize) -> (f64, f64) {
    let exp = if device == Device::Gpu { 15.0 } else { 2.0 };
    match dtype {
        Dtype::Float32 => (10.0 + exp, 10.0 + 2.0 * exp + (keys as f64).sqrt()),
        _ => (0.52, 1.0),
    }
}

fn check(device: Device, x: &Array, options: SoftmaxOptions, what: &str) -> Checked {
    let keys = x.dim(-1)? as usize;
    let y = masked_softmax(x, options)?;
    assert_eq!((y.shape(), y.dtype()), (x.shape(), x.dtype()), "{what}");
    let bound = bounds(device, y.dtype(), keys);
    let from_exact = ulps(&numbers(&y)?, &exact(x, options)?, y.dtype(), what);
    assert!(from_exact <= bound.0, "{what}: {from_exact} ulps from f64");
    if x.ndim() > 1 {
        let peer = builtin::composition(&masked_softmax(x, options)?)?.swap_remove(0);
        let from_mlx = array_ulps(&y, &peer, what)?;
        assert!(from_mlx <= bound.1, "{what}: {from_mlx} ulps from MLX");
    }
    Ok(())
}

/// Numbers to add, or true for three keys in four.
fn mask(shape: &[i32], dtype: Dtype, bools: bool, seed: u64) -> Result<Array> {
    if bools { random32(shape, seed)?.greater(-1.5) } else { random(shape, dtype, seed) }
}

#[test]
fn sizes_in_every_type() -> Checked {
    each_device(|device| {
        for dtype in FLOATS {
            for (batch, queries, keys) in [
                (1, 1, 1),
                (2, 0, 5),
                (0, 3, 5),
                (2, 7, 7),
                (3, 5, 31),
                (1, 40, 5),
                (2, 3, 128),
                (1, 9, 129),
                (1, 33, 300),
                (1, 3, 4097),
                (1, 2, 8200),
                (1, 2, 17000),
            ] {
                let x = random(&[batch, queries, keys], dtype, 1)?;
                let part = batch * queries * keys > 10_000;
                for (causal, window) in RANGES {
                    let options = SoftmaxOptions { scale: 0.37, causal, window, ..PLAIN };
                    let what = format!("{dtype} {:?} {causal} {window:?}", x.shape());
                    check(device, &x, options, &what)?;
                    for bools in [true, false] {
                        if part && window.is_some() {
                            continue;
                        }
                        let mask = mask(&[1, queries, keys], dtype, bools, 2)?;
                        let options = SoftmaxOptions { mask: Some(&mask), ..options };
                        check(device, &x, options, &format!("{what} bools {bools}"))?;
                    }
                }
            }
            let x = random(&[100], dtype, 3)?;
            check(device, &x, SoftmaxOptions { window: Some(9), ..PLAIN }, "a vector")?;
        }
        Ok(())
    })
}

#[test]
fn masks_of_every_shape_that_broadcasts() -> Checked {
    each_device(|device| {
        for dtype in FLOATS {
            let x = random(&[2, 3, 5, 40], dtype, 4)?;
            for shape in [
                &[][..],
                &[1],
                &[40],
                &[1, 40],
                &[5, 1],
                &[5, 40],
                &[3, 1, 1],
                &[3, 1, 40],
                &[2, 1, 5, 40],
                &[2, 1, 1, 40],
                &[1, 3, 5, 40],
                &[2, 3, 1, 1],
                &[2, 3, 5, 40],
            ] {
                for bools in [true, false] {
                    for causal in [true, false] {
                        let mask = mask(shape, dtype, bools, 5)?;
                        let options = SoftmaxOptions { mask: Some(&mask), causal, ..PLAIN };
                        check(device, &x, options, &format!("{dtype} {shape:?} bools {bools}"))?;
                    }
                }
            }
        }
        let deep = random32(&[2, 1, 2, 1, 2, 1, 2, 1, 2, 3, 4], 6)?;
        for shape in [&[2, 1, 1, 1, 2, 1, 1, 1, 2, 1, 4][..], &[2, 1, 2, 1, 2, 1, 2, 1, 2, 3, 4]] {
            let mask = mask(shape, Dtype::Float32, false, 7)?;
            let options = SoftmaxOptions { mask: Some(&mask), ..PLAIN };
            check(device, &deep, options, "eleven axes")?;
        }
        Ok(())
    })
}

#[test]
fn layouts_of_scores_and_masks() -> Checked {
    each_device(|device| {
        for dtype in FLOATS {
            for shape in [&[3, 33][..], &[2, 5, 31], &[2, 3, 4, 150]] {
                for layout in LAYOUTS {
                    let what = format!("{dtype} {shape:?} {layout:?}");
                    for bools in [false, true] {
                        let mut mask = layout.make(shape, dtype, 8)?;
                        if bools {
                            // Views of bools: each layout of numbers, seen as its sign.
                            mask = mask.greater(-1.5)?;
                        }
                        let x = layout.make(shape, dtype, 9)?;
                        let options = SoftmaxOptions { mask: Some(&mask), causal: true, ..PLAIN };
                        check(device, &x, options, &what)?;
                        mask.eval()?;
                        check(device, &x, options, &format!("{what} evaluated"))?;
                    }
                }
            }
        }
        // Bools that are views themselves.
        let bools = random32(&[40, 66], 10)?.greater(-1.5)?;
        let x = random32(&[2, 40, 33], 11)?;
        for view in [
            bools.slice_axis(1, (.., 2))?,
            bools.slice_axis(1, (.., -2))?,
            bools.slice_axis(1, 20..53)?.slice_axis(0, (.., -1))?,
            bools.t()?.slice(&[&(..40), &(..33)])?,
        ] {
            check(device, &x, SoftmaxOptions { mask: Some(&view), ..PLAIN }, "a view of bools")?;
        }
        Ok(())
    })
}

#[test]
fn rows_that_see_nothing_are_as_mlx_has_them() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for keys in [6i32, 200] {
                let x = random(&[1, 2, keys], dtype, 12)?;
                let values = |options| numbers(&masked_softmax(&x, options)?);
                let even = rounded(1.0 / f64::from(keys), dtype);
                let near = |v: &f64| (v - even).abs() <= ulp(even, dtype);
                // Hidden by bools: the lowest number everywhere, so all keys alike.
                let none = Array::zeros_of(&[keys], Dtype::Bool)?;
                let y = values(SoftmaxOptions { mask: Some(&none), ..PLAIN })?;
                assert!(y.iter().all(near), "{dtype} {keys}: {y:?}");
                // Minus infinity added: NaN.
                let minus = data(&[f32::NEG_INFINITY], &[1], dtype)?;
                let y = values(SoftmaxOptions { mask: Some(&minus), ..PLAIN })?;
                assert!(y.iter().all(|v| v.is_nan()), "{dtype} {keys}: {y:?}");
                // Both at once: what is hidden is above minus infinity.
                let y = values(SoftmaxOptions { mask: Some(&minus), causal: true, ..PLAIN })?;
                let (first, second) = y.split_at(keys as usize);
                assert_eq!(first[..keys as usize - 1], vec![0.0; keys as usize - 1]);
                assert_eq!(first[keys as usize - 1], 1.0);
                assert!(second.iter().all(|v| v.is_nan()));
            }
            // More queries than keys: the first see none.
            let x = random(&[5, 3], dtype, 13)?;
            let y = numbers(&masked_softmax(&x, SoftmaxOptions { causal: true, ..PLAIN })?)?;
            assert!(y[..6].iter().all(|v| (v - 1.0 / 3.0).abs() <= ulp(0.33, dtype)));
            assert_eq!(y[6..9], [1.0, 0.0, 0.0]);
            let f = |p: &[Array]| {
                Ok(vec![masked_softmax(&p[0], SoftmaxOptions { causal: true, ..PLAIN })?])
            };
            let g = numbers(&vjp(f, &[&x], &[&x])?.1[0])?;
            assert_eq!(g[..9], [0.0; 9], "no gradient where nothing is seen, or one key");
        }
        Ok(())
    })
}

#[test]
fn extremes_are_those_of_mlx() -> Checked {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    each_device(|device| {
        for dtype in FLOATS {
            let low = lowest(dtype) as f32;
            let large = if dtype == Dtype::Float16 { 65504.0 } else { 1e30 };
            for special in [inf, -inf, nan, low, low / 1.0001, large, -large, 1e-42] {
                for at in [0, 3, 9] {
                    // Four queries of ten keys each, one row special in one place or all over.
                    let mut one: Vec<f32> = (0..40).map(|i| i as f32 / 16.0).collect();
                    one[10 + at] = special;
                    let mut row: Vec<f32> = one.clone();
                    row[20..30].fill(special);
                    let bools = random32(&[4, 10], 14)?.greater(-1.0)?;
                    for values in [one, row] {
                        let x = data(&values, &[4, 10], dtype)?;
                        for mask in [None, Some(&bools)] {
                            for (causal, window) in [(false, None), (true, None), (true, Some(3))] {
                                let options = SoftmaxOptions { mask, causal, window, ..PLAIN };
                                let y = masked_softmax(&x, options)?;
                                let peer = builtin::composition(&masked_softmax(&x, options)?)?;
                                let what = format!("{dtype} {special} {at} {causal} {window:?}");
                                let error = array_ulps(&y, &peer[0], &what)?;
                                let bound = bounds(device, dtype, 10).1;
                                assert!(error <= bound, "{what}: {error} ulps\n{y}\n{}", peer[0]);
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

#[test]
fn bad_input_is_refused() -> Checked {
    let x = random32(&[2, 3, 8], 36)?;
    let says = |x: &Array, options: SoftmaxOptions, part: &str| {
        let text = message(masked_softmax(x, options));
        assert!(text.starts_with("[masked_softmax] expected ") && text.contains(part), "{text}");
    };
    says(&Array::scalar(1.0f32)?, PLAIN, "scalar");
    says(&Array::zeros::<f32>(&[2, 0])?, PLAIN, "(2,0)");
    for dtype in [Dtype::Int32, Dtype::Bool, Dtype::Complex64, Dtype::Float64] {
        says(&x.astype(dtype)?, PLAIN, dtype.name());
    }
    for shape in [&[2][..], &[2, 8], &[3, 3, 8], &[1, 2, 3, 8], &[3, 7], &[0]] {
        let mask = Array::zeros::<f32>(shape)?;
        says(&x, SoftmaxOptions { mask: Some(&mask), ..PLAIN }, "broadcasts to (2,3,8)");
    }
    let wide = Array::zeros::<f32>(&[8])?;
    let half = x.astype(Dtype::Float16)?;
    says(&half, SoftmaxOptions { mask: Some(&wide), ..PLAIN }, "float16");
    for window in [0, -1, i32::MIN] {
        says(&x, SoftmaxOptions { window: Some(window), ..PLAIN }, &window.to_string());
    }
    // Integers promote, and are added.
    let ones = Array::ones::<i32>(&[8])?;
    let y = masked_softmax(&half, SoftmaxOptions { mask: Some(&ones), ..PLAIN })?;
    assert_eq!(y.dtype(), Dtype::Float16);
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_only_what_is_seen() -> Checked {
    let x = random32(&[1, 64, 512], 1)?;
    let bools = random32(&[64, 512], 2)?.greater(-1.5)?;
    x.eval()?;
    bools.eval()?;
    let bytes = x.nbytes() as u64;
    let causal = SoftmaxOptions { scale: 0.5, causal: true, ..PLAIN };
    // Query q of 64 sees 449 + q of 512 keys.
    let seen: u64 = (0..64).map(|q| 449 + q).sum();
    let moved = support::moved(|| masked_softmax(&x, causal))?;
    assert_eq!((moved[0].arrays[0], moved[0].arrays[2]), ([4 * seen, 0, 4 * seen], [0, bytes, 0]));
    let ideal = (4 * seen + bytes) as usize;
    support::report_traffic("masked_softmax causal", &moved, ideal)?;
    let moved =
        support::moved(|| masked_softmax(&x, SoftmaxOptions { mask: Some(&bools), ..causal }))?;
    assert_eq!(moved[0].arrays[..2], [[4 * seen, 0, 4 * seen], [seen, 0, seen]]);
    support::report_traffic("masked_softmax", &moved, ideal + seen as usize)?;
    let moved =
        support::moved(|| masked_softmax(&x, SoftmaxOptions { window: Some(16), ..PLAIN }))?;
    assert_eq!(moved[0].arrays[0], [4 * 64 * 16, 0, 4 * 64 * 16]);
    Ok(())
}
