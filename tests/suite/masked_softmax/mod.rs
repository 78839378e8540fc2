//! `masked_softmax` against MLX's composition and against f64: sizes, masks, windows, layouts,
//! extremes.

use half::{bf16, f16};
use mlx_primitives::device::Device;
use mlx_primitives::ops::{SoftmaxOptions, masked_softmax};
use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Dtype, Result, builtin};

use crate::support::compare::{array_ulps, numbers, ulp, ulps};
use crate::support::input::{FLOATS, LAYOUTS, data, random, random32};
use crate::support::{self, Checked, each_device, message, reference};

mod transforms;

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
