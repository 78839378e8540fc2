//! `sum`, `mean`, `max`, `sum_of_squares` and `norm` against f64 and against MLX's.

use mlx_primitives::ops::{self, Axes};
use mlx_primitives::transforms::{compile, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin, graph, stack};

use reference_loops::Sums;

use crate::support::compare::{assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, LAYOUTS, data, random, random32};
use crate::support::{self, Checked, each_device, message, reference, refs};

type Op = fn(&Array, Axes, bool) -> Result<Array>;

const OPS: [(&str, Op); 5] = [
    ("sum", ops::sum),
    ("mean", ops::mean),
    ("max", ops::max),
    ("sum_of_squares", ops::sum_of_squares),
    ("norm", ops::norm),
];

const AXES: [Axes; 2] = [Axes::Last, Axes::All];

/// The exact result, and what it is a sum of, in magnitude, as a multiple of the result's scale.
fn exact(op: &str, x: &[f64]) -> (f64, f64) {
    let Sums { sum, reach, squares, max } = reference_loops::sums(x);
    let count = x.len() as f64;
    match op {
        "sum" => (sum, reach),
        "mean" => (sum / count, reach / count),
        "max" => (max, 0.0),
        "sum_of_squares" => (squares, squares),
        "norm" => (squares.sqrt(), squares.sqrt()),
        other => panic!("{other}"),
    }
}

/// The result as a type holds it.
fn held(value: f64, dtype: Dtype) -> f64 {
    if dtype == Dtype::Float16 && value.abs() >= 65520.0 {
        return f64::INFINITY.copysign(value);
    }
    value
}

fn check((name, op): (&str, Op), x: &Array, axes: Axes, what: &str) -> Checked {
    let what = format!("{name} {axes:?} {what}");
    let rows = match axes {
        Axes::Last => x.size() / x.dim(-1)? as usize,
        Axes::All => 1,
    };
    let values = numbers(x)?;
    for keepdims in [false, true] {
        let y = op(x, axes, keepdims)?;
        assert_eq!(y.primitive().as_deref(), Some("Reduction"), "{what}");
        let theirs = builtin::composition(&y)?.swap_remove(0);
        assert_eq!((y.shape(), y.dtype()), (theirs.shape(), theirs.dtype()), "{what}");
        let got = numbers(&y)?;
        assert_eq!(got.len(), rows, "{what}");
        for (row, got) in got.iter().enumerate() {
            let length = values.len() / rows;
            let (want, scale) = exact(name, &values[row * length..][..length]);
            let want = held(want, x.dtype());
            // Chains of up to 64 additions or so, their half ulps of the running sum averaging
            // out, then one rounding to the type.
            let allowed = 8.0 * 2f64.powi(-24) * scale + 0.51 * ulp(want, x.dtype());
            let same = *got == want || got.is_nan() && want.is_nan();
            let close = (got - want).abs() <= allowed;
            assert!(close || same, "{what}: {got:e} in row {row}, expected {want:e}");
        }
    }
    Ok(())
}

#[test]
fn sizes_in_every_type() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (rows, axis) in [
                (1, 1),
                (7, 1),
                (67, 3),
                (1, 31),
                (9, 33),
                (3, 100),
                (2, 512),
                (2, 513),
                (3, 1000),
                (2, 4097),
                (1, 16384),
                (2, 16385),
                (1, 50_021),
            ] {
                let x = random(&[rows, axis], dtype, 1)?.add(0.5)?.astype(dtype)?;
                for op in OPS {
                    for axes in AXES {
                        check(op, &x, axes, &format!("{dtype} {rows}x{axis}"))?;
                    }
                }
            }
        }
        Ok(())
    })
}

/// So many rows that none of them is split, and so many pieces that they grow.
#[test]
fn many_rows_and_many_pieces() -> Checked {
    if support::simulated() {
        return Ok(()); // ten million elements take minutes there
    }
    let x = random32(&[256, 20_000], 1)?;
    for op in OPS {
        check(op, &x, Axes::Last, "256x20000")?;
        check(op, &x, Axes::All, "256x20000")?;
    }
    Ok(())
}

/// In float32 the sums of MLX, which adds in one chain, are further off than ours.
#[test]
fn close_to_mlx() -> Checked {
    each_device(|_| {
        let x = random32(&[3, 1000], 1)?;
        for (name, op) in OPS {
            for axes in AXES {
                let y = op(&x, axes, false)?;
                let theirs = builtin::composition(&y)?.swap_remove(0);
                if name == "max" {
                    assert_same(&y, &theirs, name)?;
                    continue;
                }
                let (ours, theirs) = (numbers(&y)?, numbers(&theirs)?);
                let scale = exact(name, &numbers(&x)?).1;
                for (ours, theirs) in ours.iter().zip(theirs) {
                    assert!((ours - theirs).abs() <= 1e-5 * scale, "{name}: {ours} {theirs}");
                }
            }
        }
        Ok(())
    })
}

#[test]
fn layouts() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for shape in [&[3, 33][..], &[2, 5, 31], &[7, 1], &[2, 3, 1, 100]] {
                for layout in LAYOUTS {
                    for op in OPS {
                        let what = format!("{dtype} {shape:?} {layout:?}");
                        check(op, &layout.make(shape, dtype, 2)?, Axes::Last, &what)?;
                        check(op, &layout.make(shape, dtype, 2)?, Axes::All, &what)?;
                    }
                }
            }
            for op in OPS {
                check(op, &random(&[], dtype, 3)?, Axes::All, "scalar")?;
            }
        }
        Ok(())
    })
}

/// NaN, infinities and overflow: rows with one special element among ordinary ones.
#[test]
fn extremes_are_those_of_mlx() -> Checked {
    const INF: f32 = f32::INFINITY;
    each_device(|_| {
        for dtype in FLOATS {
            for axis in [1, 5, 40, 600, 20_000] {
                for special in [f32::NAN, INF, -INF, -0.0, 1e4] {
                    for at in [0, axis / 2, axis - 1] {
                        let mut x = vec![0.5f32; 2 * axis];
                        x[axis + at] = special;
                        let x = data(&x, &[2, axis as i32], dtype)?;
                        for (name, op) in OPS {
                            let y = op(&x, Axes::Last, false)?;
                            let theirs = builtin::composition(&y)?.swap_remove(0);
                            let (ours, theirs) = (numbers(&y)?, numbers(&theirs)?);
                            let what = format!("{name} {dtype} {axis} {special} at {at}");
                            if special.is_finite() {
                                // MLX adds sixteen bits in sixteen bits: not to be compared.
                                if name == "max" {
                                    assert_eq!(ours, theirs, "{what}");
                                }
                                continue;
                            }
                            assert!(ours[0].is_finite(), "{what}");
                            let same =
                                ours[1] == theirs[1] || ours[1].is_nan() && theirs[1].is_nan();
                            assert!(same, "{what}: {} for {}", ours[1], theirs[1]);
                        }
                    }
                }
            }
            let lowest = data(&[-INF; 40], &[1, 40], dtype)?;
            let max = numbers(&ops::max(&lowest, Axes::Last, false)?)?;
            assert_eq!(max, [f64::NEG_INFINITY]);
            let opposed = data(&[INF, 1.0, -INF], &[3], dtype)?;
            assert!(numbers(&ops::sum(&opposed, Axes::All, false)?)?[0].is_nan());
        }
        // Only the result has to fit into sixteen bits.
        let mut x = vec![60_000.0f32; 100];
        x.extend(vec![-60_000.0; 99]);
        let x = data(&x, &[199], Dtype::Float16)?;
        assert_eq!(numbers(&ops::sum(&x, Axes::All, false)?)?, [60_000.0]);
        assert_eq!(numbers(&ops::norm(&x, Axes::All, false)?)?, [f64::INFINITY]);
        let x = data(&[300.0; 100], &[100], Dtype::Float16)?;
        assert_eq!(numbers(&ops::norm(&x, Axes::All, false)?)?, [3000.0]);
        Ok(())
    })
}

#[test]
fn nothing_to_reduce() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (shape, axes) in [
                (&[0][..], Axes::Last),
                (&[3, 0], Axes::Last),
                (&[0, 3], Axes::Last),
                (&[2, 0, 3], Axes::Last),
                (&[0], Axes::All),
                (&[3, 0], Axes::All),
            ] {
                let x = Array::zeros::<f32>(shape)?.astype(dtype)?;
                for (name, op) in OPS {
                    let what = format!("{name} {dtype} {shape:?} {axes:?}");
                    let empty = axes == Axes::All || shape[shape.len() - 1] == 0;
                    if name == "max" && empty {
                        let text = message(op(&x, axes, false));
                        assert!(text.starts_with("[max] expected at least one element"), "{text}");
                        continue;
                    }
                    let y = op(&x, axes, true)?;
                    let theirs = builtin::composition(&y)?.swap_remove(0);
                    assert_same(&y, &theirs, &what)?;
                    let numbers = numbers(&y)?;
                    let expected = |v: &f64| if name == "mean" { v.is_nan() } else { *v == 0.0 };
                    assert!(numbers.iter().all(expected), "{what}: {numbers:?}");
                }
            }
        }
        Ok(())
    })
}

#[test]
fn derivatives() -> Checked {
    each_device(|_| {
        let (x, t) = (random32(&[3, 7], 1)?, random32(&[3, 7], 2)?);
        let (nx, nt) = (numbers(&x)?, numbers(&t)?);
        for (name, op) in OPS {
            for axes in AXES {
                let rows = if axes == Axes::Last { 3 } else { 1 };
                let f = |p: &[Array]| Ok(vec![op(&p[0], axes, false)?]);
                let g = if axes == Axes::Last { random32(&[3], 3)? } else { random32(&[], 3)? };
                let ng = numbers(&g)?;
                let loss = |x: &[f64]| {
                    let rows = x.chunks_exact(21 / rows).map(|row| exact(name, row).0);
                    rows.zip(&ng).map(|(y, g)| y * g).sum::<f64>()
                };
                let what = format!("{name} {axes:?}");
                let ours = vjp(f, &[&x], &[&g])?.1;
                let want = reference::gradient(&nx, 1e-6, loss);
                // A few roundings of products of two numbers up to three; differences of 1e-9.
                assert_close(&numbers(&ours[0])?, &want, 2e-6, &what);
                let forward = jvp(f, &[&x], &[&t])?.1;
                let forward = reference::dot(&numbers(&forward[0])?, &ng);
                let backward = reference::dot(&numbers(&ours[0])?, &nt);
                assert!((forward - backward).abs() <= 1e-4, "{what}: {forward} {backward}");
            }
        }
        Ok(())
    })
}

/// vmap against the op of each slice, bit for bit, by our kernel.
#[test]
fn vmap_over_each_axis() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            let x = random(&[2, 4, 6], dtype, 1)?;
            for (name, op) in OPS {
                for (axes, keepdims) in
                    [(Axes::Last, false), (Axes::Last, true), (Axes::All, false), (Axes::All, true)]
                {
                    for axis in 0..3 {
                        let f = |p: &[Array]| Ok(vec![op(&p[0], axes, keepdims)?]);
                        let y = vmap(f, &[&x], &[Some(axis)], &[])?.swap_remove(0);
                        assert_eq!(y.primitive().as_deref(), Some("Reduction"), "{name}");
                        let mut slices = Vec::new();
                        for i in 0..x.dim(axis)? {
                            let slice = x.slice_axis(axis, i..i + 1)?.squeeze(&[axis])?;
                            slices.push(op(&slice, axes, keepdims)?);
                        }
                        let what = format!("{name} {dtype} {axes:?} {keepdims} {axis}");
                        assert_same(&y, &stack(&refs(&slices), 0)?, &what)?;
                    }
                }
                let column = random(&[5], dtype, 2)?;
                for keepdims in [false, true] {
                    let f = |p: &[Array]| Ok(vec![op(&p[0], Axes::All, keepdims)?]);
                    let y = vmap(f, &[&column], &[Some(0)], &[])?.swap_remove(0);
                    assert_eq!(y.shape(), [5], "{name} of scalars");
                }
            }
        }
        Ok(())
    })
}

#[test]
fn compiled_for_any_shape() -> Checked {
    each_device(|_| {
        for (name, op) in OPS {
            let compiled = compile(move |p| Ok(vec![op(&p[0], Axes::Last, true)?]), true)?;
            for shape in [[2, 8], [5, 8], [3, 40]] {
                let x = random32(&shape, 1)?;
                assert_same(&compiled.call(&[&x])?[0], &op(&x, Axes::Last, true)?, name)?;
            }
        }
        Ok(())
    })
}

#[test]
fn costs_count_a_second_dispatch_for_what_is_split() -> Checked {
    let x = random32(&[2, 20_000], 1)?;
    let cost = graph::total(&graph::nodes([&ops::sum(&x, Axes::Last, false)?])?);
    // Three pieces of each row are floats between the two.
    assert_eq!((cost.dispatches, cost.device_bytes), (2, 4 * (40_000 + 2 + 2 * 6)));
    let cost = graph::total(&graph::nodes([&ops::sum(&x.t()?.contiguous()?, Axes::Last, false)?])?);
    assert_eq!((cost.dispatches, cost.device_bytes), (1, 4 * (40_000 + 20_000)));
    Ok(())
}

#[test]
fn bad_input_is_refused() -> Checked {
    // What is summed would have to be copied first, to four terabytes.
    let large = Array::ones::<f32>(&[1, 1])?.broadcast_to(&[1 << 20, 1 << 20])?;
    for (name, op) in OPS {
        assert!(message(op(&large, Axes::All, false)).starts_with("[reduce] expected"), "{name}");
        let refused = |result: Result<Array>, mentions: &str| {
            let text = message(result);
            assert!(text.starts_with(&format!("[{name}] expected ")), "{text}");
            assert!(text.contains("got ") && text.contains(mentions), "{text} lacks {mentions}");
        };
        refused(op(&Array::scalar(1.0f32)?, Axes::Last, false), "scalar");
        for dtype in [Dtype::Int32, Dtype::Bool, Dtype::Complex64, Dtype::Float64] {
            refused(op(&random32(&[2, 3], 1)?.astype(dtype)?, Axes::All, true), dtype.name());
        }
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_each_byte_once() -> Checked {
    for dtype in FLOATS {
        let size = dtype.size() as u64;
        for (shape, axes) in [
            (&[20, 300][..], Axes::Last),
            (&[4, 1024], Axes::Last),
            (&[3, 16384], Axes::Last),
            (&[200, 517], Axes::All),
        ] {
            let x = random(shape, dtype, 1)?;
            x.eval()?;
            for (name, op) in OPS {
                let moved = support::moved(|| op(&x, axes, false))?;
                let results = if axes == Axes::Last { shape[0] as u64 } else { 1 };
                let (all, out) = (size * x.size() as u64, size * results);
                let what = format!("{name} {dtype} {shape:?}");
                assert_eq!(moved[0].arrays[0], [all, 0, all], "{what}");
                if axes == Axes::Last {
                    assert_eq!(moved.len(), 1, "{what}");
                    assert_eq!(moved[0].arrays[1], [0, out, 0], "{what}");
                    continue;
                }
                // 103,400 elements in pieces of 8,192: thirteen floats between two dispatches.
                assert_eq!(moved.len(), 2, "{what}");
                assert_eq!(moved[0].arrays[1], [0, 4 * 13, 0], "{what}");
                assert_eq!(moved[1].arrays, [[4 * 13, 0, 4 * 13], [0, out, 0]], "{what}");
                if dtype == Dtype::Float32 {
                    support::report_traffic(name, &moved, (all + out) as usize)?;
                }
            }
        }
    }
    Ok(())
}
