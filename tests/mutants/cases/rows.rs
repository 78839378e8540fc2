//! Ops along rows, and elementwise ops.

use harness::table::ops::{OPS, Op, of_elements};
use mlx_primitives::ops::{self, CrossEntropy, MaskedSoftmax};
use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Result};

use super::inputs::{logits, wave};
use super::{Case, Cases};

/// The shapes reach each kind of kernel: a row per SIMD group; a row per threadgroup, with one, two
/// or four groups of four elements per thread; and a loop over a long row. The last group of four
/// is complete, or has one, two or three elements.
const ROWS: [[i32; 2]; 14] = [
    [9, 31],
    [7, 128],
    [3, 126],
    [3, 1],
    [2, 129],
    [7, 387],
    [2, 770],
    [1, 4096],
    [2, 4099],
    [1, 8192],
    [2, 8197],
    [1, 16_384],
    [2, 16_387],
    [1, 20_485],
];

const EPS: f32 = 0.01;

pub fn all() -> Vec<Case> {
    let parts = [softmaxes(), norms(), masked(), losses(), reductions(), taken(), elements()];
    parts.into_iter().flatten().flat_map(|cases| cases.all).collect()
}

fn softmaxes() -> Vec<Cases> {
    let cases = |op: &'static Op| {
        let mut cases = Cases::of(op.stem);
        for shape in ROWS {
            cases.add(format_args!("{} {shape:?}", op.name), move || (op.run)(&[logits(&shape)?]));
            if op.stem == "logsumexp" {
                cases.add(format_args!("gradient of {} {shape:?}", op.name), move || {
                    let x = logits(&shape)?;
                    let g = wave((op.run)(&[&x].map(Array::clone))?[0].shape(), 4)?;
                    Ok(vjp(|x: Vec<Array>| (op.run)(&x), &[&x], &[&g])?.1)
                });
            }
        }
        cases
    };
    OPS.iter().filter(|op| ["softmax", "logsumexp"].contains(&op.stem)).map(cases).collect()
}

fn norms() -> Vec<Cases> {
    let mut rms = Cases::of("rms_norm");
    let mut layer = Cases::of("layer_norm");
    let mut residual = Cases::of("residual_norm");
    for shape in ROWS {
        let of = move || -> Result<[Array; 4]> {
            let vector = |seed| wave(&shape[1..], seed)?.subtract(1.5);
            Ok([wave(&shape, 0)?.add(0.5)?, wave(&shape, 2)?, vector(5)?, vector(6)?])
        };
        rms.add(format_args!("{shape:?}"), move || {
            let [x, _, weight, _] = of()?;
            Ok(vec![ops::rms_norm(&x, None, EPS)?, ops::rms_norm(&x, Some(&weight), EPS)?])
        });
        layer.add(format_args!("{shape:?}"), move || {
            let [x, _, weight, bias] = of()?;
            Ok(vec![
                ops::layer_norm(&x, None, None, EPS)?,
                ops::layer_norm(&x, Some(&weight), Some(&bias), EPS)?,
                ops::layer_norm(&x, None, Some(&bias), EPS)?,
            ])
        });
        residual.add(format_args!("{shape:?}"), move || {
            let [x, y, weight, bias] = of()?;
            let (a, b) = ops::rms_norm_residual(&x, &y, Some(&weight), EPS)?;
            let (c, d) = ops::layer_norm_residual(&x, &y, Some(&weight), Some(&bias), EPS)?;
            let (e, f) = ops::rms_norm_residual(&x, &y, None, EPS)?;
            Ok(vec![a, b, c, d, e, f])
        });
    }
    layer.add("a last quad of three that decides", || {
        let mut x = vec![0.0f32; 16_387];
        x[16_384..].fill(100.0);
        Ok(vec![ops::layer_norm(&Array::from_slice(&x, [1, 16_387])?, None, None, EPS)?])
    });
    vec![rms, layer, residual, norm_gradients()]
}

fn norm_gradients() -> Cases {
    let mut cases = Cases::of("norm_grad");
    for shape in ROWS.into_iter().chain([[70, 5], [130, 33], [65, 8196]]) {
        cases.add(format_args!("{shape:?}"), move || {
            let vector = |seed| wave(&shape[1..], seed)?.subtract(1.5);
            let (x, g, weight, bias) =
                (wave(&shape, 0)?.add(0.5)?, wave(&shape, 2)?, vector(5)?, vector(6)?);
            let mut all = Vec::new();
            let rms = |p: Vec<Array>| Ok(vec![ops::rms_norm(&p[0], Some(&p[1]), EPS)?]);
            all.extend(vjp(rms, &[&x, &weight], &[&g])?.1);
            let layer =
                |p: Vec<Array>| Ok(vec![ops::layer_norm(&p[0], Some(&p[1]), Some(&p[2]), EPS)?]);
            all.extend(vjp(layer, &[&x, &weight, &bias], &[&g])?.1);
            let bare = |p: Vec<Array>| Ok(vec![ops::layer_norm(&p[0], None, None, EPS)?]);
            all.extend(vjp(bare, &[&x], &[&g])?.1);
            let weighted = |p: Vec<Array>| {
                Ok(vec![ops::layer_norm(&p[0], Some(p.get(1).unwrap_or(&weight)), None, EPS)?])
            };
            all.extend(vjp(weighted, &[&x], &[&g])?.1);
            all.extend(vjp(weighted, &[&x, &weight], &[&g])?.1);
            let (residual, of_sum) = (wave(&shape, 3)?, wave(&shape, 7)?);
            let sum = |p: Vec<Array>| {
                let (sum, norm) = ops::rms_norm_residual(&p[0], &residual, Some(&weight), EPS)?;
                Ok(vec![sum, norm])
            };
            all.extend(vjp(sum, &[&x], &[&of_sum, &g])?.1);
            Ok(all)
        });
    }
    cases
}

/// Masked softmaxes and their gradients. One of the four kinds of calls has an additive mask.
fn masked() -> Vec<Cases> {
    let (mut forward, mut grad) = (Cases::of("masked_softmax"), Cases::of("masked_softmax_grad"));
    for (number, [rows, keys]) in ROWS.into_iter().enumerate() {
        let shape = [1, 1 + rows % 2, rows, keys];
        for kind in 0..4 {
            if keys > 5000 && kind != number % 4 {
                continue; // long rows use one kernel for every mask
            }
            let call = move |x: &Array| {
                let mask = match kind {
                    1 => Some(wave(&[rows, keys], 3)?.greater(-1.0)?),
                    2 if keys < 1000 => Some(logits(&[shape[1], 1, keys])?),
                    2 => Some(wave(&[shape[1], 1, keys], 3)?),
                    _ => None,
                };
                let window = (kind == 3).then_some(keys / 3 + 1);
                let options =
                    MaskedSoftmax { scale: 0.7, mask: mask.as_ref(), causal: kind != 1, window };
                ops::masked_softmax(x, options)
            };
            forward
                .add(format_args!("{shape:?} {kind}"), move || Ok(vec![call(&wave(&shape, 1)?)?]));
            grad.add(format_args!("{shape:?} {kind}"), move || {
                let (x, cotangent) = (wave(&shape, 1)?, wave(&shape, 4)?);
                Ok(vjp(|x| Ok(vec![call(&x[0])?]), &[&x], &[&cotangent])?.1)
            });
        }
    }
    vec![forward, grad]
}

fn losses() -> Vec<Cases> {
    let mut cases = Cases::of("cross_entropy");
    for (number, [rows, classes]) in ROWS.into_iter().enumerate() {
        for label_smoothing in [0.0, 0.25] {
            cases.add(format_args!("[{rows}, {classes}] {label_smoothing}"), move || {
                let x = if number % 3 == 2 {
                    wave(&[rows, classes], 1)?
                } else {
                    logits(&[rows, classes])?
                };
                // The target -100 is ignored, and the target `classes` is not a valid class.
                let target = |row: i32| match row {
                    1 if number % 2 == 0 => -100,
                    2 => classes,
                    _ => (row * 7 + classes / 2) % classes,
                };
                let targets: Vec<i32> = (0..rows).map(target).collect();
                let targets = Array::from_slice(&targets, [rows])?;
                let options = CrossEntropy { label_smoothing, ignore_index: Some(-100) };
                let loss = |x: &[Array]| Ok(vec![ops::cross_entropy(&x[0], &targets, options)?]);
                let (mut values, gradients) = vjp(|p| loss(&p), &[&x], &[&wave(&[rows], 6)?])?;
                values.extend(gradients);
                Ok(values)
            });
        }
    }
    vec![cases]
}

fn reductions() -> Vec<Cases> {
    let mut cases = Cases::of("reduce");
    let all = [ops::sum, ops::mean, ops::max, ops::sum_of_squares, ops::norm];
    for shape in [[9, 31], [3, 512], [2, 513], [2, 4099], [1, 16_384], [1, 20_485], [2, 24_575]] {
        cases.add(format_args!("{shape:?}"), move || {
            let x = wave(&shape, 1)?;
            all.iter().map(|reduce| reduce(&x, Some(-1))).collect()
        });
        cases.add(format_args!("all of {shape:?}"), move || {
            let x = wave(&shape, 2)?.subtract(3.0)?;
            all.iter().map(|reduce| reduce(&x, None)).collect()
        });
    }
    cases.add("of NaN", || {
        let x = wave(&[3, 600], 1)?;
        let nan = Array::from_slice(&[1.0f32, f32::NAN, 1.0], [3, 1])?;
        Ok(vec![ops::max(&x.multiply(&nan)?, -1)?])
    });
    vec![cases]
}

/// The gradient of taking rows of a matrix. Some rows are taken several times, and others never.
/// Each threadgroup computes sixteen rows.
fn taken() -> Vec<Cases> {
    let mut cases = Cases::of("take_grad");
    let mut add = |rows: i32, axis: i32, ids: Vec<i32>| {
        let count = ids.len() as i32;
        cases.add(format_args!("{count} of [{rows}, {axis}]"), move || {
            let (matrix, g) = (wave(&[rows, axis], 0)?, wave(&[count, axis], 2)?);
            let ids = Array::from_slice(&ids, [count])?;
            Ok(vec![vjp(|x: Array| x.take(&ids, 0), &matrix, &g)?.1])
        });
    };
    add(1, 1, vec![0]);
    add(17, 3, vec![3, 15, 0, 15, 16]);
    for [rows, axis, count] in [[5, 3, 9], [16, 31, 40], [40, 1030, 21], [35, 128, 64]] {
        let row = |i: i32| if i % 3 == 1 { rows / 2 } else { i * 7919 % rows };
        add(rows, axis, (0..count).map(row).collect());
    }
    vec![cases]
}

fn elements() -> Vec<Cases> {
    let mut cases = Cases::of("activation");
    for count in [1, 6, 1023, 1024, 4099] {
        cases.add(format_args!("[{count}]"), move || {
            let (x, y) = (wave(&[count], 0)?, wave(&[count], 3)?);
            let inputs = [x, y];
            let of = |count: usize| {
                let inputs = &inputs[..count];
                of_elements(count).map(move |op| Ok((op.run)(inputs)?.swap_remove(0)))
            };
            of(1).chain(of(2)).collect()
        });
        cases.add(format_args!("gradients of [{count}]"), move || {
            let (x, y, g) = (wave(&[count], 0)?, wave(&[count], 3)?, wave(&[count], 5)?);
            let mut all = Vec::new();
            for (inputs, number) in [(vec![&x], 1), (vec![&x, &y], 2)] {
                for op in of_elements(number) {
                    all.extend(vjp(|p: Vec<Array>| (op.run)(&p), &inputs[..], &[&g])?.1);
                }
            }
            Ok(all)
        });
    }
    for shape in [[1, 1], [9, 31], [13, 128], [3, 1030]] {
        cases.add(format_args!("affine {shape:?}"), move || {
            let x = wave(&shape, 0)?;
            let (scale, shift) = (wave(&shape[1..], 1)?, wave(&shape[1..], 2)?);
            let one = Array::from_slice(&[1.5f32], [])?;
            Ok(vec![
                ops::affine(&x, &scale, &shift)?,
                ops::affine(&x, &one, &shift)?,
                ops::affine(&x, &scale, &one)?,
            ])
        });
    }
    vec![cases]
}
