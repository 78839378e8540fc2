//! `rope_append_attention` joins two ops: `rope_append` and `attention`. These tests compare it
//! with the two ops. The conformance table (`tests/catalog`) tests the values of both.

use mlx_primitives::ops::{Attention, KvLayout, Offset, Rope, RopeAppend};
use mlx_primitives::transforms::{grad, vmap};
use mlx_primitives::{Array, Dtype, Result, async_eval, eval, ops};

use super::{LAYOUT, state, step, turning};
use crate::support::compare::assert_same;
use crate::support::input::{FLOATS, random, random32};
use crate::support::{Checked, each_device, message, on_cpu};

/// Runs the two ops separately, with views of the state between them.
fn apart(
    state: &Array,
    qkv: &Array,
    layout: KvLayout,
    options: RopeAppend<'_>,
    len: i32,
    rules: Attention<'_>,
) -> Result<[Array; 2]> {
    let time = qkv.dim(1)?;
    let state = ops::rope_append(state, qkv, layout, options)?;
    let (keys, values) = (layout.keys(&state, len)?, layout.values(&state, len)?);
    let attended = ops::attention(&layout.queries(&state, time)?, &keys, &values, rules)?;
    let joined = [qkv.dim(0)?, time, layout.heads * layout.head_dim];
    let attended = attended.transpose([0, 2, 1, 3])?.reshape(joined)?;
    Ok([state, attended])
}

fn assert_equal(
    state: &Array,
    qkv: &Array,
    layout: KvLayout,
    options: RopeAppend<'_>,
    len: i32,
    rules: Attention<'_>,
) -> Checked {
    let (new, attended) = ops::rope_append_attention(state, qkv, layout, options, len, rules)?;
    let [want_state, want] = apart(state, qkv, layout, options, len, rules)?;
    assert_eq!(attended.shape(), want.shape());
    assert_same(&attended, &want, "the attention")?;
    assert_same(&new, &want_state, "the state").map_err(Into::into)
}

#[test]
fn every_bit_is_that_of_the_two_ops() -> Checked {
    each_device(|_| {
        let layouts = [
            LAYOUT,
            KvLayout { heads: 1, kv_heads: 1, head_dim: 64, capacity: 9 },
            KvLayout { heads: 4, kv_heads: 2, head_dim: 80, capacity: 33 },
        ];
        for (number, layout) in (0..).zip(layouts) {
            for (batch, time) in [(1, 1), (2, 1), (3, 4), (1, 8), (2, 0), (0, 1)] {
                for dtype in FLOATS {
                    let old = state(&layout, batch, dtype, 1 + number)?;
                    let qkv = step(&layout, batch, time, dtype, 2)?;
                    let rules = Attention { causal: time > 1, ..Default::default() };
                    let len = layout.capacity.min(time + 1).max(1);
                    let rotation = turning(8, len - time);
                    assert_equal(&old, &qkv, layout, rotation, len, rules)?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn rules_positions_and_slots() -> Checked {
    each_device(|_| {
        let (batch, time, len) = (2, 3, 17);
        let old = state(&LAYOUT, batch, Dtype::Float32, 1)?;
        let qkv = step(&LAYOUT, batch, time, Dtype::Float32, 2)?;
        let additive = random32(&[batch, 1, time, len], 3)?;
        let bools = additive.greater(0.0)?;
        let narrow = bools.i((.., .., 1..2))?;
        let sinks = random32(&[LAYOUT.heads], 4)?;
        let of = |mask| Attention { mask, ..Default::default() };
        let every = Attention {
            scale: Some(0.3),
            causal: true,
            window: Some(5),
            soft_cap: Some(2.0),
            sinks: Some(&sinks),
            mask: Some(&bools),
            dropped: 0,
        };
        let (places, slots) =
            (Array::from_slice(&[70i32, 3], [2])?, Array::from_slice(&[0i32, 14], [2])?);
        let freqs = Array::from_slice(&[1.0f32, 2.5, 7.0], [3])?;
        let rope =
            Rope { dims: 6, base: None, freqs: Some(&freqs), traditional: true, ..Rope::default() };
        let rope = Rope { offset: Offset::Each(&places), ..rope };
        let apart = RopeAppend { rope, multiplier: 1.2, slots: Some(Offset::Each(&slots)) };
        let causal = Attention { causal: true, ..Default::default() };
        let rules =
            [of(None), causal, of(Some(&additive)), of(Some(&bools)), of(Some(&narrow)), every];
        for rules in rules {
            for options in [turning(8, 14), turning(6, &places.subtract(3)?.minimum(14)?), apart] {
                assert_equal(&old, &qkv, LAYOUT, options, len, rules)?;
            }
        }
        Ok(())
    })
}

/// If a graph contains a large array, this crate lets MLX evaluate the graph.
#[test]
fn mlx_also_updates_the_state_in_place_unless_held() -> Checked {
    on_cpu(|| {
        for held in [false, true] {
            let now = state(&LAYOUT, 1, Dtype::Float32, 1)?;
            let (place, before) = (now.address()?, now.to_vec::<f32>()?);
            let qkv = step(&LAYOUT, 1, 1, Dtype::Float32, 5)?;
            let (options, len, rules) = (turning(8, 3), 4, Attention::default());
            let alike = state(&LAYOUT, 1, Dtype::Float32, 1)?;
            let want = apart(&alike, &qkv, LAYOUT, options, len, rules)?;
            let (new, attended) =
                ops::rope_append_attention(&now, &qkv, LAYOUT, options, len, rules)?;
            let kept = held.then_some(now);
            let large = Array::zeros::<f32>(5 << 20)?;
            eval([&new, &attended, &large])?;
            assert_eq!(new.address()? == place, !held);
            assert_same(&new, &want[0], "the state")?;
            assert_same(&attended, &want[1], "attention")?;
            if let Some(kept) = kept {
                assert_eq!(kept.to_vec::<f32>()?, before, "a held state is not written to");
            }
        }
        Ok(())
    })
}

#[test]
fn the_state_is_updated_in_place_unless_held() -> Checked {
    on_cpu(|| {
        let mut now = state(&LAYOUT, 1, Dtype::Float32, 1)?;
        let mut want = state(&LAYOUT, 1, Dtype::Float32, 1)?;
        let place = now.address()?;
        let (mut queued, mut alone) = (Vec::new(), Vec::new());
        for position in 0..20 {
            let qkv = step(&LAYOUT, 1, 1, Dtype::Float32, 5 + position as u64)?;
            let (options, len) = (turning(8, position), position + 1);
            let rules = Attention::default();
            let (new, attended) =
                ops::rope_append_attention(&now, &qkv, LAYOUT, options, len, rules)?;
            now = new;
            async_eval([&attended])?;
            queued.push(attended);
            let [new, attended] = apart(&want, &qkv, LAYOUT, options, len, rules)?;
            want = new;
            alone.push(attended);
        }
        assert_eq!(now.address()?, place);
        for (got, want) in queued.iter().zip(&alone) {
            assert_same(got, want, "a step")?;
        }
        let (held, before) = (now.clone(), now.to_vec::<f32>()?);
        let qkv = step(&LAYOUT, 1, 1, Dtype::Float32, 99)?;
        let rules = Attention::default();
        let (new, _) = ops::rope_append_attention(&now, &qkv, LAYOUT, turning(8, 20), 21, rules)?;
        assert_ne!(new.address()?, place);
        assert_eq!(held.to_vec::<f32>()?, before, "a held state is not written to");
        drop(held);
        let rules = Attention::default();
        let (new, _) = ops::rope_append_attention(&now, &qkv, LAYOUT, turning(8, 20), 21, rules)?;
        assert_ne!(new.address()?, place);
        assert_eq!(now.to_vec::<f32>()?, before, "a state that is held once is not written to");
        Ok(())
    })
}

#[test]
fn derivatives_and_vmap_are_those_of_the_two_ops() -> Checked {
    let (old, qkv) =
        (state(&LAYOUT, 1, Dtype::Float32, 1)?, step(&LAYOUT, 1, 2, Dtype::Float32, 2)?);
    let weight = random32(&[1, 2, LAYOUT.heads * LAYOUT.head_dim], 3)?;
    let rules = Attention { causal: true, ..Default::default() };
    let (options, len) = (turning(8, 7), 9);
    let joined = |state: &Array, qkv: &Array| -> Result<[Array; 2]> {
        let (state, y) = ops::rope_append_attention(state, qkv, LAYOUT, options, len, rules)?;
        Ok([state, y])
    };
    let two = |state: &Array, qkv: &Array| apart(state, qkv, LAYOUT, options, len, rules);
    let loss = |[state, y]: [Array; 2]| -> Result<Array> {
        y.multiply(&weight)?.sum(..)?.add(state.square()?.sum(..)?)
    };
    for by_state in [true, false] {
        let of = |f: &dyn Fn(&Array, &Array) -> Result<[Array; 2]>| -> Result<Array> {
            match by_state {
                true => grad(|x: Array| loss(f(&x, &qkv)?), &old),
                false => grad(|x: Array| loss(f(&old, &x)?), &qkv),
            }
        };
        let (got, want) = (of(&joined)?, of(&two)?);
        assert!(want.abs()?.max(..)?.item::<f32>()? > 0.1);
        // MLX adds up the products of this gradient in another order.
        let apart = got.subtract(&want)?.abs()?.max(..)?.item::<f32>()?;
        assert!(apart < 1e-4, "{apart}");
    }
    let many = random(&[3, 1, 2, super::width(&LAYOUT)], Dtype::Float32, 5)?;
    let mapped = vmap(|x: Array| Ok(joined(&old, &x)?[1].clone()), &many, 0, 0)?;
    for i in 0..3 {
        let want = two(&old, &many.i(i)?)?[1].clone();
        // `vmap` runs MLX's ops, which round at other steps.
        let apart = mapped.i(i)?.subtract(&want)?.abs()?.max(..)?.item::<f32>()?;
        assert!(apart < 1e-5, "{apart}");
    }
    Ok(())
}

#[test]
fn bad_steps_are_errors() -> Checked {
    let old = state(&LAYOUT, 1, Dtype::Float32, 1)?;
    let qkv = step(&LAYOUT, 1, 1, Dtype::Float32, 2)?;
    let said = |qkv: &Array, len: i32, rules: Attention<'_>| {
        message(ops::rope_append_attention(&old, qkv, LAYOUT, turning(8, 0), len, rules))
    };
    let rules = Attention::default();
    let long = step(&LAYOUT, 1, 9, Dtype::Float32, 2)?;
    assert!(said(&long, 9, rules).contains("at most 8 positions, got 9"));
    for len in [0, -1, 25] {
        assert!(
            said(&qkv, len, rules).contains(&format!("got {len}")),
            "{}",
            said(&qkv, len, rules)
        );
    }
    let mask = random32(&[2, 7], 1)?;
    let masked = Attention { mask: Some(&mask), ..Default::default() };
    assert!(said(&qkv, 3, masked).contains("a mask that broadcasts"));
    assert!(said(&qkv.astype(Dtype::Float16)?, 3, rules).contains("dtype"));
    let window = Attention { window: Some(0), ..Default::default() };
    assert!(said(&qkv, 3, window).contains("window"));
    Ok(())
}
