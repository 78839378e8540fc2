//! The kernels of the backward pass of `attention`, compared with the gradients of MLX's ops.

use mlx_primitives::graph::dispatches;
use mlx_primitives::ops::{self, Attention};
use mlx_primitives::transforms::{vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin, stack};

use crate::support::compare::{assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, random};
use crate::support::{Checked, each_device, refs};

/// The options of a call. A `mask` has a value for every score, and this field is its type:
/// boolean, or a float type for an additive mask.
#[derive(Clone, Copy, Debug, Default)]
struct Rules {
    causal: bool,
    window: Option<i32>,
    soft_cap: Option<f32>,
    mask: Option<Dtype>,
    sinks: bool,
}

/// A call and the cotangent of its result.
struct Call {
    rules: Rules,
    /// The queries, keys and values. An additive mask and the sinks follow if the call has them.
    inputs: Vec<Array>,
    /// A boolean mask.
    mask: Option<Array>,
    cotangent: Array,
}

impl Call {
    /// Makes a call with random inputs. `heads` is [batch, heads, kv_heads], and `extents` is
    /// [queries, keys, dim, value_dim].
    fn new(rules: Rules, heads: [i32; 3], extents: [i32; 4], dtype: Dtype) -> Result<Self> {
        let ([batch, heads, kv_heads], [queries, keys, dim, value_dim]) = (heads, extents);
        let mut inputs = vec![
            random(&[batch, heads, queries, dim], dtype, 1)?,
            random(&[batch, kv_heads, keys, dim], dtype, 2)?,
            random(&[batch, kv_heads, keys, value_dim], dtype, 3)?,
        ];
        let shape = [batch, heads, queries, keys];
        let mut mask = None;
        if rules.mask == Some(Dtype::Bool) {
            // Hide all keys from the second query.
            let shown = Array::arange::<i32>(0.0, f64::from(queries), 1.0)?.not_equal(1)?;
            let some = random(&shape, Dtype::Float32, 5)?.greater(-1.5)?;
            mask = Some(some.logical_and(&shown.reshape([queries, 1])?)?);
        } else if rules.mask.is_some() {
            inputs.push(random(&shape, dtype, 5)?);
        }
        if rules.sinks {
            inputs.push(random(&[heads], dtype, 4)?);
        }
        let cotangent = random(&[batch, heads, queries, value_dim], dtype, 6)?;
        Ok(Self { rules, inputs, mask, cotangent })
    }

    fn result(&self, x: &[Array]) -> Result<Array> {
        let Rules { causal, window, soft_cap, sinks, .. } = self.rules;
        let additive = x[3..].iter().find(|x| x.ndim() == 4);
        let mask = self.mask.as_ref().or(additive);
        let sinks = x.last().filter(|_| sinks);
        let options = Attention { scale: None, causal, window, soft_cap, mask, sinks, dropped: 0 };
        ops::attention(&x[0], &x[1], &x[2], options)
    }

    fn gradients_in(&self, x: &[Array]) -> Result<Vec<Array>> {
        Ok(vjp(|p: Vec<Array>| self.result(&p), &refs(x), &[&self.cotangent])?.1)
    }

    fn gradients(&self) -> Result<Vec<Array>> {
        let all = self.gradients_in(&self.inputs)?;
        assert!(all.iter().all(|x| x.primitive().as_deref() == Some("AttentionGrad")));
        Ok(all)
    }

    /// This call with its inputs as float32.
    fn widened(&self) -> Result<Self> {
        let wide = |x: &Array| x.astype(Dtype::Float32);
        Ok(Self {
            rules: self.rules,
            inputs: self.inputs.iter().map(wide).collect::<Result<_>>()?,
            mask: self.mask.clone(),
            cotangent: wide(&self.cotangent)?,
        })
    }

    /// Compares the gradients with the float32 gradients of MLX's ops.
    fn check(&self, what: &str) -> Checked {
        let ours = self.gradients()?;
        let theirs = builtin::composition(&self.widened()?.gradients()?[0])?;
        assert_eq!(ours.len(), theirs.len(), "{what}");
        for (number, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let input = &self.inputs[number];
            assert_eq!((ours.shape(), ours.dtype()), (input.shape(), input.dtype()), "{what}");
            let (got, want) = (numbers(ours)?, numbers(theirs)?);
            let largest = want.iter().fold(1.0f64, |a, b| a.max(b.abs()));
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                // Our kernels and MLX's ops both add up hundreds of products in float32, and their
                // attention weights have the errors of scores up to 12. Our result is then rounded
                // to the type.
                let allowed = 6e-5 * largest + 0.51 * ulp(*want, ours.dtype());
                let near = (got - want).abs() <= allowed;
                assert!(near, "{what}, input {number}: {got:e} at {i}, expected {want:e}");
            }
        }
        Ok(())
    }
}

/// The cases reach the kernel for each number of features, and use each kind of mask. In some
/// cases, a query sees no key because of the window or the mask, or there are more rows and keys
/// than in a tile.
const CALLS: [([i32; 3], [i32; 4], Rules); 8] = {
    let none = Rules { causal: false, window: None, soft_cap: None, mask: None, sinks: false };
    let causal = Rules { causal: true, ..none };
    let (some, window, added) = (Some(Dtype::Bool), Some(5), Some(Dtype::Float32));
    let all = Rules { causal: true, window, soft_cap: Some(3.0), mask: added, sinks: true };
    [
        ([2, 4, 2], [9, 21, 40, 24], Rules { sinks: true, ..causal }),
        ([1, 2, 1], [30, 13, 100, 33], causal),
        ([1, 3, 3], [17, 40, 64, 200], Rules { window, soft_cap: Some(3.0), ..causal }),
        ([1, 2, 2], [6, 70, 8, 8], Rules { mask: some, sinks: true, ..none }),
        ([2, 2, 1], [7, 37, 20, 16], Rules { mask: some, window, ..none }),
        ([1, 2, 1], [60, 50, 16, 16], Rules { mask: added, ..causal }),
        ([2, 4, 2], [9, 21, 8, 24], all),
        ([1, 3, 3], [40, 50, 24, 8], Rules { mask: added, ..none }),
    ]
};

#[test]
fn gradients_are_those_of_mlx() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (heads, extents, rules) in CALLS {
                let what = format!("{dtype:?} {heads:?} {extents:?} {rules:?}");
                Call::new(rules, heads, extents, dtype)?.check(&what)?;
            }
            // A single query that sees all keys or none.
            for keys in [1, 100] {
                let call = Call::new(Rules::default(), [1, 4, 2], [1, keys, 32, 32], dtype)?;
                call.check(&format!("{dtype:?}, one query of {keys} keys"))?;
            }
            for (dim, rules) in [(256, CALLS[1].2), (256, CALLS[5].2), (128, CALLS[5].2)] {
                let wide = Call::new(rules, [1, 1, 1], [9, 20, dim, dim], dtype)?;
                wide.check(&format!("{dtype:?}, {dim} features, {rules:?}"))?;
            }
        }
        Ok(())
    })
}

/// Queries and values are parts of larger arrays, keys are transposed, and the cotangent is
/// broadcast.
#[test]
fn gradients_of_views() -> Checked {
    each_device(|_| {
        let part = |seed| random(&[1, 4, 90, 32], Dtype::Float32, seed)?.slice_axis(2, 7..47);
        let repeated = random(&[1, 1, 40, 32], Dtype::Float32, 9)?.broadcast_to([1, 4, 40, 32])?;
        let turned = random(&[1, 4, 32, 40], Dtype::Float32, 8)?.transpose([0, 1, 3, 2])?;
        let call = Call {
            rules: Rules { causal: true, ..Rules::default() },
            inputs: vec![part(1)?, turned, part(2)?],
            mask: None,
            cotangent: repeated,
        };
        call.check("views")
    })
}

/// The mask has a value for every score, for every query and key, or for every key of a batch
/// entry, or it has a single value.
#[test]
fn gradients_in_a_mask_that_broadcasts() -> Checked {
    each_device(|_| {
        let call = Call::new(Rules::default(), [2, 2, 1], [5, 9, 8, 8], Dtype::Float32)?;
        let [q, k, v] = &call.inputs[..] else { unreachable!("queries, keys and values") };
        let ours = |mask: &Array| {
            ops::attention(q, k, v, Attention { mask: Some(mask), ..Attention::default() })
        };
        let softmax = |mask: &Array| -> Result<Array> {
            let groups = |x: &Array| x.broadcast_to([2, 2, 9, 8]);
            let scores = q.matmul(&groups(k)?.transpose([0, 1, 3, 2])?)?;
            let scores = scores.multiply(8.0f32.powf(-0.5))?.add(mask)?;
            ops::softmax(&scores)?.matmul(&groups(v)?)
        };
        for shape in [&[2, 2, 5, 9][..], &[5, 9], &[2, 1, 1, 9], &[]] {
            let mask = random(shape, Dtype::Float32, 5)?;
            let (_, got) = vjp(|mask| ours(&mask), &mask, &call.cotangent)?;
            let (_, want) = vjp(|mask| softmax(&mask), &mask, &call.cotangent)?;
            assert_eq!(got.shape(), shape);
            assert_close(&numbers(&got)?, &numbers(&want)?, 1e-4, &format!("mask {shape:?}"));
        }
        // A boolean mask has no gradient, so the array that it is computed from gets zeros.
        let limits = random(&[5, 9], Dtype::Float32, 5)?;
        let (_, none) = vjp(|limits| ours(&limits.greater(0.5)?), &limits, &call.cotangent)?;
        assert!(numbers(&none)?.iter().all(|v| *v == 0.0), "a gradient in a boolean mask");
        Ok(())
    })
}

/// If only the queries are differentiated, fewer kernels run, and the gradient has the same bits.
#[test]
fn gradients_in_queries_alone() -> Checked {
    each_device(|_| {
        for (heads, extents, rules) in CALLS {
            let call = Call::new(rules, heads, extents, Dtype::Float32)?;
            let frozen = |q: Array| call.result(&[&[q], &call.inputs[1..]].concat());
            let (_, alone) = vjp(frozen, &call.inputs[0], &call.cotangent)?;
            let launched = 2 + usize::from(rules.sinks);
            assert_eq!(dispatches(&alone, 1024)?.len(), launched, "{rules:?}");
            assert_same(&alone, &call.gradients()?[0], &format!("{rules:?}"))?;
        }
        Ok(())
    })
}

/// `grad`, `vmap` and `compile` work on the gradients as they do on MLX's gradients.
#[test]
fn gradients_transform() -> Checked {
    each_device(|_| {
        for (heads, extents, rules) in [CALLS[0], CALLS[2], CALLS[4], CALLS[6], CALLS[7]] {
            let what = format!("{heads:?} {extents:?} {rules:?}");
            let call = Call::new(rules, heads, extents, Dtype::Float32)?;
            let twice = |theirs: bool| -> Result<Vec<Array>> {
                let first = |p: Vec<Array>| -> Result<Vec<Array>> {
                    let ours = call.gradients_in(&p)?;
                    Ok(if theirs { builtin::composition(&ours[0])? } else { ours })
                };
                let inputs = refs(&call.inputs);
                Ok(vjp(first, &inputs, &inputs)?.1)
            };
            for (ours, theirs) in twice(false)?.iter().zip(&twice(true)?) {
                let (got, want) = (numbers(ours)?, numbers(theirs)?);
                assert_close(&got, &want, 1e-3, &format!("{what}, second derivatives"));
            }

            let pair = |x: &Array| stack(&[x, &x.multiply(0.5)?], 0);
            let stacked = call.inputs.iter().map(pair).collect::<Result<Vec<_>>>()?;
            let mut axes = vec![Some(0); stacked.len()];
            axes[1] = None;
            let inputs = [&stacked[0], &call.inputs[1]].into_iter().chain(&stacked[2..]);
            let inputs: Vec<&Array> = inputs.collect();
            let mapped = vmap(|p: Vec<Array>| call.gradients_in(&p), &inputs, axes, 0)?;
            for entry in 0..2 {
                let mut own = stacked
                    .iter()
                    .map(|x| x.slice_axis(0, entry..entry + 1)?.squeeze(0))
                    .collect::<Result<Vec<_>>>()?;
                own[1] = call.inputs[1].clone();
                for (mapped, alone) in mapped.iter().zip(call.gradients_in(&own)?) {
                    let mapped = mapped.slice_axis(0, entry..entry + 1)?.squeeze(0)?;
                    let (got, want) = (numbers(&mapped)?, numbers(&alone)?);
                    assert_close(&got, &want, 1e-4, &format!("{what}, mapped"));
                }
            }
        }
        Ok(())
    })
}

/// In the memory of each gradient, the heads of one position are adjacent. So joining the heads, to
/// differentiate the projection that made queries, keys or values, needs no copy.
#[test]
fn gradients_lie_position_by_position() -> Checked {
    each_device(|_| {
        let call = Call::new(CALLS[0].2, [1, 4, 2], [9, 21, 16, 8], Dtype::Float32)?;
        for x in &call.gradients()?[..3] {
            let joined = x.transpose([0, 2, 1, 3])?;
            joined.eval()?;
            assert!(joined.is_row_contiguous() && !x.is_row_contiguous());
            // Softmax needs contiguous rows, so it gets a copy.
            let rows = ops::softmax(x)?;
            assert_same(&rows, &ops::softmax(&x.contiguous()?)?, "rows")?;
        }
        Ok(())
    })
}

#[test(simulated = never)]
fn gradients_within_limits() -> Checked {
    for dim in [1, 64, 65, 128, 129, 256] {
        for dtype in FLOATS {
            let call = Call::new(CALLS[6].2, [1, 4, 2], [40, 70, dim, dim], dtype)?;
            let gradient = &call.gradients()?[0];
            for max_threads in [32, 64, 96, 448, 1024] {
                let plans = dispatches(gradient, max_threads)?;
                assert_eq!(plans.len(), 6);
                for plan in &plans {
                    let threads: u32 = plan.group.iter().product();
                    let (bytes, what) = (plan.threadgroup_bytes, format!("{plan:?}"));
                    assert!(threads <= max_threads && threads.is_multiple_of(32), "{what}");
                    assert!(bytes <= 32 << 10 && bytes.is_multiple_of(16), "{what}");
                }
            }
            assert!(dispatches(gradient, 31).is_err());
        }
    }
    Ok(())
}
