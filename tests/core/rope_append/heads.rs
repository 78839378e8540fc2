//! Compares `rope_heads`, which rotates and splits the heads of a projection, with `rope` and MLX's
//! ops. Compares the derivatives too.

use mlx_primitives::ops::{KvLayout, Offset, Rope, RopeAppend};
use mlx_primitives::transforms::{jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin, concatenate, ops, stack};

use super::step;
use crate::support::compare::{assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, random};
use crate::support::{Checked, each_device};

const WIDE: KvLayout = KvLayout { heads: 6, kv_heads: 2, head_dim: 32, capacity: 0 };
const ODD: KvLayout = KvLayout { heads: 3, kv_heads: 1, head_dim: 7, capacity: 0 };

/// Every kind of rotation. If `dims` is less than a head's features, only a part is rotated.
fn rotations<'a>(dims: i32, freqs: &'a Array, places: &'a Array) -> Vec<RopeAppend<'a>> {
    let of = |traditional, explicit: bool| {
        let rope = Rope {
            dims,
            traditional,
            base: (!explicit).then_some(1e4),
            freqs: explicit.then_some(freqs),
            offset: if explicit { Offset::Each(places) } else { 5.into() },
            ..Rope::default()
        };
        let multiplier = if explicit { 1.5 } else { 1.0 };
        RopeAppend { rope, multiplier, slots: None }
    };
    vec![of(false, false), of(true, false), of(false, true), of(true, true)]
}

/// Joins queries, keys and values into one array of the projection's shape.
fn joined(layout: KvLayout, parts: &[Array; 3]) -> Result<Array> {
    let all = concatenate(&parts.each_ref(), 1)?.transpose([0, 2, 1, 3])?;
    let width = (layout.heads + 2 * layout.kv_heads) * layout.head_dim;
    all.reshape([all.dim(0)?, all.dim(1)?, width])
}

#[test]
fn heads_are_those_of_rope() -> Checked {
    let places = Array::from_slice(&[70i32, 3], [2])?;
    each_device(|_| {
        for dtype in FLOATS {
            for (layout, dims, time) in [(WIDE, 32, 1), (WIDE, 16, 9), (ODD, 6, 5), (WIDE, 32, 70)]
            {
                let freqs = random(&[dims / 2], Dtype::Float32, 7)?.square()?.add(1.0)?;
                let qkv = step(&layout, 2, time, dtype, 2)?;
                let KvLayout { heads, kv_heads, head_dim, .. } = layout;
                let all = qkv.reshape([2, time, heads + 2 * kv_heads, head_dim])?;
                let all = all.transpose([0, 2, 1, 3])?;
                for options in rotations(dims, &freqs, &places) {
                    let what = format!("{dtype} {time} {options:?}");
                    let parts = ops::rope_heads(&qkv, layout, options)?;
                    assert_eq!(parts[0].primitive().as_deref(), Some("RopeHeads"), "{what}");
                    let scaled = all.slice_axis(-1, ..dims)?.multiply(options.multiplier)?;
                    let scaled = concatenate(&[&scaled, &all.slice_axis(-1, dims..)?], -1)?;
                    let turned = ops::rope(&scaled.contiguous()?, options.rope)?;
                    let [queries, rest] = turned.split_at(heads, 1)?;
                    assert_same(&parts[0], &queries, &what)?;
                    assert_same(&parts[1], &rest.slice_axis(1, ..kv_heads)?, &what)?;
                    assert_same(&parts[2], &all.slice_axis(1, heads + kv_heads..)?, &what)?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn gradients_of_heads_are_those_of_mlx() -> Checked {
    let places = Array::from_slice(&[70i32, 3], [2])?;
    each_device(|_| {
        for dtype in FLOATS {
            for (layout, dims, time) in [(WIDE, 32, 1), (WIDE, 16, 9), (ODD, 6, 5)] {
                let freqs = random(&[dims / 2], Dtype::Float32, 7)?.square()?.add(1.0)?;
                let qkv = step(&layout, 2, time, dtype, 2)?;
                let of = |heads, seed| random(&[2, heads, time, layout.head_dim], dtype, seed);
                let g = [of(layout.heads, 3)?, of(layout.kv_heads, 4)?, of(layout.kv_heads, 5)?];
                for options in rotations(dims, &freqs, &places) {
                    let gradient = |theirs: bool| {
                        let new = |qkv: Vec<Array>| {
                            let ours = ops::rope_heads(&qkv[0], layout, options)?;
                            Ok(if theirs { builtin::composition(&ours[0])? } else { ours.to_vec() })
                        };
                        Ok(vjp(new, &[&qkv], &g.each_ref())?.1.swap_remove(0))
                    };
                    let what = format!("{dtype} {time} {options:?}");
                    let of_qkv: Result<Array> = gradient(false);
                    let of_qkv = of_qkv?;
                    assert_eq!(of_qkv.primitive().as_deref(), Some("RopeHeads"), "{what}");
                    let near = 8.0 * ulp(4.0, dtype);
                    let theirs: Result<Array> = gradient(true);
                    assert_close(&numbers(&of_qkv)?, &numbers(&theirs?)?, near, &what);
                    // The MLX ops that can replace the gradient's node give MLX's gradient too.
                    let again = builtin::composition(&gradient(false)?)?.swap_remove(0);
                    assert_close(&numbers(&of_qkv)?, &numbers(&again)?, near, &what);
                }
            }
        }
        Ok(())
    })
}

/// The op is linear. So its directional derivative is the op applied to the direction, and
/// differentiating its gradient gives the op.
#[test]
fn heads_transform() -> Checked {
    each_device(|_| {
        let rope = Rope { dims: 16, offset: 3.into(), ..Rope::default() };
        let qkv = step(&WIDE, 2, 5, Dtype::Float32, 1)?;
        let heads = |qkv: &Array| ops::rope_heads(qkv, WIDE, rope.into());
        let all = |p: Vec<Array>| Ok(vec![joined(WIDE, &heads(&p[0])?)?]);
        let along = step(&WIDE, 2, 5, Dtype::Float32, 2)?;
        let want = numbers(&joined(WIDE, &heads(&along)?)?)?;
        let along_it = jvp(all, &[&qkv], &[&along])?.1.swap_remove(0);
        assert_close(&numbers(&along_it)?, &want, 1e-5, "along a direction");
        let gradient = |g: Vec<Array>| Ok(vjp(all, &[&qkv], &[&g[0]])?.1);
        let second = vjp(gradient, &[&qkv], &[&along])?.1.swap_remove(0);
        assert_close(&numbers(&second)?, &want, 1e-5, "second derivatives");
        for function in [0, 1] {
            let run = |p: Vec<Array>| if function == 0 { all(p) } else { gradient(p) };
            let stacked = stack(&[&qkv, &along], 1)?;
            let mapped = vmap(run, &[&stacked], [Some(1)], 0)?.swap_remove(0);
            let mapped = mapped.slice_axis(0, 1..2)?.squeeze(0)?;
            let alone = numbers(&run(vec![along.clone()])?[0])?;
            assert_close(&numbers(&mapped)?, &alone, 1e-5, "mapped");
        }
        Ok(())
    })
}
