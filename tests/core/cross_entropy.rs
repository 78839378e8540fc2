//! `cross_entropy`: targets of several types, ignored rows, large logits, traffic. The conformance
//! table (`tests/catalog`) tests its values.

use mlx_primitives::ops::{CrossEntropy, cross_entropy};
use mlx_primitives::transforms::{grad, vjp};
use mlx_primitives::{Array, Dtype, step};

use crate::support::compare::{assert_close, assert_same, numbers};
use crate::support::input::{FLOATS, data, random, random32};
use crate::support::{self, Checked, each_device};

const PLAIN: CrossEntropy = CrossEntropy { label_smoothing: 0.0, ignore_index: None };

fn targets(rows: usize, classes: usize) -> Vec<i32> {
    (0..rows).map(|row| (row * 7919 % classes) as i32).collect()
}

#[test]
fn targets_of_every_integer_type_and_layout() -> Checked {
    each_device(|_| {
        let (x, all) = (random32(&[4, 9], 4)?, Array::from_slice(&[1i32, 8, 0, 3], [4])?);
        let want = cross_entropy(&x, &all, PLAIN)?;
        for dtype in [Dtype::Int8, Dtype::Uint8, Dtype::Uint32, Dtype::Int64, Dtype::Uint64] {
            let got = cross_entropy(&x, &all.astype(dtype)?, PLAIN)?;
            assert_same(&got, &want, dtype.name())?;
        }
        let twice = Array::from_slice(&[3i32, 5, 0, 5, 8, 5, 1, 5], [8])?.i(step(.., -2))?;
        let shifted = Array::from_slice(&[5i32, 5, 5, 5], [4])?;
        assert_same(&cross_entropy(&x, &twice, PLAIN)?, &cross_entropy(&x, &shifted, PLAIN)?, "")?;
        Ok(())
    })
}

#[test]
fn targets_outside_the_classes_give_nan() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for classes in [5i32, 300] {
                let x = random(&[5, classes], dtype, 5)?;
                let wide = [-1i64, i64::from(classes), (1 << 32) + 1, 2, -(1 << 32) + 1];
                let targets = Array::from_slice(&wide, [5])?;
                let y = numbers(&cross_entropy(&x, &targets, PLAIN)?)?;
                let nan: Vec<bool> = y.iter().map(|v| v.is_nan()).collect();
                assert_eq!(nan, [true, true, true, false, true], "{dtype} {classes}: {y:?}");
                let loss = |p: &[Array]| cross_entropy(&p[0], &targets, PLAIN)?.sum(..);
                let g = numbers(&grad(|p| loss(&p), &[&x])?[0])?;
                for (row, nan) in g.chunks_exact(classes as usize).zip(nan) {
                    assert!(row.iter().all(|v| v.is_nan() == nan), "{dtype} {classes}");
                }
                let ignoring = CrossEntropy { ignore_index: Some(-1), ..PLAIN };
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
        let targets = Array::from_slice(&[-100i32, 1], [2])?;
        let ignoring = CrossEntropy { ignore_index: Some(-100), ..PLAIN };
        let loss = |p: &[Array]| cross_entropy(&p[0], &targets, ignoring)?.sum(..);
        assert!((numbers(&loss(std::slice::from_ref(&x))?)?[0] - 3f64.ln()).abs() < 1e-6);
        let g = numbers(&grad(|p| loss(&p), &[&x])?[0])?;
        assert_eq!(g[..3], [0.0; 3]);
        assert_close(&g[3..], &[1.0 / 3.0, -2.0 / 3.0, 1.0 / 3.0], 1e-6, "the other row");
        Ok(())
    })
}

#[test]
fn large_logits_keep_their_gaps() -> Checked {
    each_device(|_| {
        // The loss depends only on differences of logits. Near 1e6, the formula "logsumexp minus
        // the target's logit" would round to 0.
        let x = data(&[1e6, 1e6 - 1.0, 1e6 - 3.0], &[1, 3], Dtype::Float32)?;
        let targets = Array::from_slice(&[1i32], [1])?;
        let got = numbers(&cross_entropy(&x, &targets, PLAIN)?)?;
        assert_close(&got, &[1.0 + (1.0 + (-1f64).exp() + (-3f64).exp()).ln()], 2e-6, "loss");
        let loss = |p: &[Array]| cross_entropy(&p[0], &targets, PLAIN)?.sum(..);
        let e = [1.0, (-1f64).exp(), (-3f64).exp()];
        let sum: f64 = e.iter().sum();
        let want = [e[0] / sum, e[1] / sum - 1.0, e[2] / sum];
        assert_close(&numbers(&grad(|p| loss(&p), &[&x])?[0])?, &want, 2e-6, "gradient");
        Ok(())
    })
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_each_byte_once() -> Checked {
    let (x, all) = (random32(&[8, 5000], 1)?, Array::from_slice(&targets(8, 5000), [8])?);
    x.eval()?;
    all.eval()?;
    let bytes = x.nbytes() as u64;
    let moved = support::moved(|| cross_entropy(&x, &all, PLAIN))?;
    // The kernel reads the logit of each target a second time. It saves two numbers per row for the
    // gradient.
    assert_eq!(moved[0].arrays, [[bytes + 32, 0, bytes], [32, 0, 32], [0, 32, 0], [0, 64, 0]]);
    support::report_traffic("cross_entropy", &moved, x.nbytes() + 64)?;
    let g = random32(&[8], 2)?;
    g.eval()?;
    let f = |p: &[Array]| Ok(vec![cross_entropy(&p[0], &all, PLAIN)?]);
    let moved = support::moved(|| Ok(vjp(|p| f(&p), &[&x], &[&g])?.1.swap_remove(0)))?;
    let gradient = moved.iter().find(|d| d.kernel.contains("_grad_")).expect("the gradient");
    assert_eq!((gradient.arrays[0], gradient.arrays[4]), ([bytes, 0, bytes], [0, bytes, 0]));
    // Each SIMD group handles 512 elements and reads 16 additional bytes. A few groups are idle.
    assert!(gradient.read() < bytes + bytes / 64, "{gradient:?}");
    Ok(())
}
