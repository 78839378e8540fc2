//! Derivatives of linear layers and products of matrices, and vmap over them.

use mlx_primitives::ops::{self, Activation, LinearOptions};
use mlx_primitives::transforms::{jvp, vjp, vmap};
use mlx_primitives::{Array, Result, builtin, stack};

use super::products;
use crate::support::compare::{assert_close, numbers};
use crate::support::input::random32;
use crate::support::{Checked, each_device, reference, refs};

#[test]
fn vjp_and_jvp() -> Checked {
    const TOLERANCE: f64 = 3e-5; // products and sums of some 20 numbers up to 9, twice in a row
    each_device(|_| {
        let (m, n, k) = (3usize, 4usize, 5usize);
        let shapes = [&[3, 5][..], &[4, 5], &[4], &[3, 4]];
        let inputs: Vec<Array> = (0..4)
            .map(|i| random32(shapes[i], 20 + i as u64)?.multiply(0.4f32))
            .collect::<Result<_>>()?;
        let along: Vec<Array> =
            (0..4).map(|i| random32(shapes[i], 30 + i as u64)).collect::<Result<_>>()?;
        let g = random32(&[3, 4], 40)?;
        let g64 = numbers(&g)?;
        let values: Vec<Vec<f64>> = inputs.iter().map(numbers).collect::<Result<_>>()?;
        let directions: Vec<Vec<f64>> = along.iter().map(numbers).collect::<Result<_>>()?;
        let f = |p: &[Array]| {
            let (bias, residual) = (Some(&p[2]), Some(&p[3]));
            let activation = Some(Activation::Silu);
            Ok(vec![ops::linear(&p[0], &p[1], &LinearOptions { bias, activation, residual })?])
        };
        let exact = |p: &[Vec<f64>]| -> Vec<f64> {
            let (mut y, _) = products(&p[0], &p[1], n, k);
            for (i, y) in y.iter_mut().enumerate() {
                let z = *y + p[2][i % n];
                *y = z / (1.0 + (-z).exp()) + p[3][i];
            }
            assert_eq!(y.len(), m * n);
            y
        };
        let gradients = vjp(f, &refs(&inputs), &[&g])?.1;
        for (i, gradient) in gradients.iter().enumerate() {
            let loss = |x: &[f64]| {
                let mut p = values.clone();
                p[i] = x.to_vec();
                reference::dot(&g64, &exact(&p))
            };
            let want = reference::gradient(&values[i], 1e-6, loss);
            assert_close(&numbers(gradient)?, &want, TOLERANCE, &format!("input {i}"));
        }
        let tangent = jvp(f, &refs(&inputs), &refs(&along))?.1;
        let moved = |h: f64| {
            let step = |(x, t): (&Vec<f64>, &Vec<f64>)| -> Vec<f64> {
                x.iter().zip(t).map(|(x, t)| x + h * t).collect()
            };
            exact(&values.iter().zip(&directions).map(step).collect::<Vec<_>>())
        };
        let (after, before) = (moved(1e-6), moved(-1e-6));
        let want: Vec<f64> = after.iter().zip(before).map(|(a, b)| (a - b) / 2e-6).collect();
        assert_close(&numbers(&tangent[0])?, &want, TOLERANCE, "jvp");
        // The cotangent along a tangent is the tangent along the cotangent.
        let one = reference::dot(&g64, &numbers(&tangent[0])?);
        let mut other = 0.0;
        for (gradient, t) in gradients.iter().zip(&directions) {
            other += reference::dot(&numbers(gradient)?, t);
        }
        assert!((one - other).abs() <= 1e-4 * (1.0 + one.abs()), "{one} {other}");

        for transposed in [false, true] {
            let (a, b) = (random32(&[2, 3, 5], 41)?, random32(&[2, 5, 5], 42)?);
            let g = random32(&[2, 3, 5], 43)?;
            let f = |p: &[Array]| Ok(vec![ops::matmul(&p[0], &p[1], transposed)?]);
            let theirs =
                |p: &[Array]| builtin::composition(&ops::matmul(&p[0], &p[1], transposed)?);
            let ours = vjp(f, &[&a, &b], &[&g])?.1;
            let want = vjp(theirs, &[&a, &b], &[&g])?.1;
            for (ours, want) in ours.iter().zip(&want) {
                assert_close(&numbers(ours)?, &numbers(want)?, TOLERANCE, "matmul");
            }
        }
        Ok(())
    })
}

#[test]
fn vmap_over_each_input() -> Checked {
    each_device(|_| {
        let (x, w) = (random32(&[3, 2, 5], 50)?, random32(&[3, 4, 5], 51)?);
        let (bias, residual) = (random32(&[3, 4], 52)?, random32(&[3, 2, 4], 53)?);
        let all = [&x, &w, &bias, &residual];
        let f = |p: &[Array]| {
            let (bias, residual) = (Some(&p[2]), Some(&p[3]));
            let activation = Some(Activation::Gelu);
            Ok(vec![ops::linear(&p[0], &p[1], &LinearOptions { bias, activation, residual })?])
        };
        for mapped in 1u32..16 {
            let axes: Vec<Option<i32>> =
                (0..4).map(|i| (mapped >> i & 1 == 1).then_some(0)).collect();
            let entry = |e: i32| -> Result<Vec<Array>> {
                all.iter().map(|a| a.slice_axis(0, e..e + 1)?.squeeze(&[0])).collect()
            };
            let first = entry(0)?;
            let inputs: Vec<Array> = (0..4)
                .map(|i| if axes[i].is_some() { all[i].clone() } else { first[i].clone() })
                .collect();
            let mut each = Vec::new();
            for e in 0..3 {
                let here = entry(e)?;
                let p: Vec<Array> = (0..4)
                    .map(|i| if axes[i].is_some() { here[i].clone() } else { first[i].clone() })
                    .collect();
                each.push(f(&p)?.swap_remove(0));
            }
            let got = vmap(f, &refs(&inputs), &axes, &[0])?;
            let want = stack(&refs(&each), 0)?;
            assert_eq!(got[0].shape(), want.shape(), "{axes:?}");
            // Five products of up to 9; other numbers of rows are summed in another order.
            assert_close(&numbers(&got[0])?, &numbers(&want)?, 1e-5, &format!("{axes:?}"));
        }
        // Another axis, and products of matrices.
        let g = |p: &[Array]| Ok(vec![ops::matmul(&p[0], &p[1], true)?]);
        let got = vmap(g, &[&x, &w], &[Some(1), None], &[1])?;
        let each: Vec<Array> = (0..2)
            .map(|i| ops::matmul(&x.slice_axis(1, i..i + 1)?.squeeze(&[1])?, &w, true))
            .collect::<Result<_>>()?;
        let want = stack(&refs(&each), 1)?;
        assert_eq!(got[0].shape(), want.shape());
        assert_close(&numbers(&got[0])?, &numbers(&want)?, 1e-5, "matmul");
        Ok(())
    })
}
