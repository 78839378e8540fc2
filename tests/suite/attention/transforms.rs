//! Derivatives against differences of f64, vmap against a loop, compile against none.

use mlx_primitives::ops::{self, AttentionOptions};
use mlx_primitives::transforms::{compile, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, stack};

use super::reference::Reference;
use super::{Inputs, TOLERANCE, assert_near};
use crate::support::compare::{assert_close, assert_same, numbers};
use crate::support::input::{data, random32, values};
use crate::support::{Checked, each_device, refs};

/// The step in f64: its square and 1e-16 over it are both far below the tolerance.
const STEP: f64 = 1e-5;

fn options(sinks: Option<&Array>, every: bool) -> AttentionOptions<'_> {
    let soft_cap = every.then_some(4.0);
    let window = every.then_some(4);
    AttentionOptions { causal: true, window, soft_cap, sinks, ..Default::default() }
}

#[test]
fn gradients_in_queries_keys_values_and_sinks() -> Checked {
    each_device(|_| {
        for (queries, every) in [(2, false), (2, true), (5, true)] {
            let Inputs { q, k, v } = Inputs::new([1, 4, 2], [queries, 6, 3], Dtype::Float32)?;
            let sinks = data(&values(4, 4, 2.0), &[4], Dtype::Float32)?;
            let g = random32(q.shape(), 5)?;
            let f = |p: &[Array]| -> Result<Vec<Array>> {
                Ok(vec![ops::attention(&p[0], &p[1], &p[2], &options(p.get(3), every))?])
            };
            // MLX's own attention has no gradient in sinks on a GPU.
            let inputs = if every { vec![&q, &k, &v, &sinks] } else { vec![&q, &k, &v] };
            let (y, gradients) = vjp(f, &inputs, &[&g])?;
            let reference = Reference::new(&q, &k, &v, &options(every.then_some(&sinks), every))?;
            assert_near(&y[0], &reference.apply(), TOLERANCE, "value")?;

            let g = numbers(&g)?;
            for (i, name) in ["queries", "keys", "values", "sinks"].iter().enumerate() {
                let Some(gradient) = gradients.get(i) else { continue };
                let at = numbers(inputs[i])?;
                let loss = |x: &[f64]| -> f64 {
                    let mut moved =
                        Reference::new(&q, &k, &v, &options(every.then_some(&sinks), every))
                            .expect("a reference");
                    match i {
                        0 => moved.q = x.to_vec(),
                        1 => moved.k = x.to_vec(),
                        2 => moved.v = x.to_vec(),
                        _ => moved.sinks = Some(x.to_vec()),
                    }
                    crate::support::reference::dot(&g, &moved.apply())
                };
                let want = crate::support::reference::gradient(&at, STEP, loss);
                // Sums of some tens of products of up to 27 in f32.
                assert_close(&numbers(gradient)?, &want, 3e-5, name);
            }

            // The derivative along t is the gradient's product with it.
            let tangents: Vec<Array> = inputs
                .iter()
                .enumerate()
                .map(|(i, x)| random32(x.shape(), 10 + i as u64))
                .collect::<Result<_>>()?;
            let along = jvp(f, &inputs, &refs(&tangents))?.1;
            let mut forward = crate::support::reference::dot(&g, &numbers(&along[0])?);
            for (gradient, tangent) in gradients.iter().zip(&tangents) {
                let (gradient, tangent) = (numbers(gradient)?, numbers(tangent)?);
                forward -= crate::support::reference::dot(&gradient, &tangent);
            }
            assert!(forward.abs() < 2e-3, "jvp and vjp differ by {forward}");
        }
        Ok(())
    })
}

#[test]
fn vmap_over_each_axis() -> Checked {
    each_device(|_| {
        for queries in [2, 5] {
            let [n, batch, heads, kv_heads, keys, dim] = [3, 2, 4, 2, 7, 8];
            let q = random32(&[n, batch, heads, queries, dim], 1)?;
            let k = random32(&[n, batch, kv_heads, keys, dim], 2)?;
            let v = random32(&[n, batch, kv_heads, keys, dim], 3)?;
            let mask = random32(&[n, queries, keys], 4)?;
            let sinks = random32(&[n, heads], 5)?;
            // Which of them are mapped; the others are their first entry.
            for mapped in 1..32u32 {
                let is = |i: usize| mapped >> i & 1 == 1;
                for axis in 0..5 {
                    let all = [&q, &k, &v, &mask, &sinks];
                    let mut inputs = Vec::new();
                    let mut axes = Vec::new();
                    for (i, x) in all.into_iter().enumerate() {
                        // Masks and sinks have fewer axes.
                        let axis = axis.min(x.shape().len() as i32 - 1);
                        let order: Vec<i32> =
                            (1..=axis).chain([0]).chain(axis + 1..x.shape().len() as i32).collect();
                        inputs.push(if is(i) {
                            x.transpose(&order)?
                        } else {
                            x.slice_axis(0, 0..1)?.squeeze(&[0])?
                        });
                        axes.push(is(i).then_some(axis));
                    }
                    let f = |p: &[Array]| -> Result<Vec<Array>> {
                        let options = AttentionOptions {
                            mask: Some(&p[3]),
                            sinks: Some(&p[4]),
                            ..Default::default()
                        };
                        Ok(vec![ops::attention(&p[0], &p[1], &p[2], &options)?])
                    };
                    let mapped_output = vmap(f, &refs(&inputs), &axes, &[0])?.swap_remove(0);
                    let mut one_by_one = Vec::new();
                    for entry in 0..n {
                        let entry: Vec<Array> = all
                            .iter()
                            .enumerate()
                            .map(|(i, x)| {
                                let at = if is(i) { entry } else { 0 };
                                x.slice_axis(0, at..at + 1)?.squeeze(&[0])
                            })
                            .collect::<Result<_>>()?;
                        one_by_one.push(f(&entry)?.swap_remove(0));
                    }
                    let want = numbers(&stack(&refs(&one_by_one), 0)?)?;
                    let what = format!("{queries} queries, mapped {mapped:b}, axis {axis}");
                    assert_near(&mapped_output, &want, TOLERANCE, &what)?;
                    if !(mapped == 31 || mapped.is_power_of_two()) {
                        break; // every axis for some, the first for all
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn compiled_functions_give_the_same() -> Checked {
    each_device(|_| {
        let Inputs { q, k, v } = Inputs::new([2, 4, 2], [3, 9, 16], Dtype::Float32)?;
        let f = |p: &[Array]| -> Result<Vec<Array>> {
            let keys = p[1].slice_axis(2, 1..8)?;
            let values = p[2].slice_axis(2, 1..8)?;
            let y = ops::attention(&p[0], &keys, &values, &options(None, true))?;
            Ok(vec![y.multiply(2.0)?])
        };
        let inputs = [q, k, v];
        let plain = f(&inputs)?.swap_remove(0);
        for _ in 0..2 {
            let compiled = compile(f, false)?.call(&refs(&inputs))?;
            assert_same(&compiled[0], &plain, "compiled")?;
        }
        Ok(())
    })
}
