//! The buffers that `rope_append` writes, and how many of their bytes.

use mlx_primitives::ops::KvLayout;
use mlx_primitives::transforms::compile;
use mlx_primitives::{Array, Dtype, Result, eval, ops};

use super::{LAYOUT, state, step, turning};
use crate::support::compare::{assert_same, is_nvidia, numbers};
use crate::support::input::FLOATS;
use crate::support::{self, Checked, each_device};

#[test]
fn views_take_no_copy() -> Checked {
    let layout = KvLayout { heads: 4, kv_heads: 2, head_dim: 16, capacity: 40 };
    let new = ops::rope_append(
        &layout.zeros(3, Dtype::Float32)?,
        &step(&layout, 3, 2, Dtype::Float32, 1)?,
        layout,
        turning(16, 5),
    )?;
    let (queries, keys) = (layout.queries(&new, 2)?, layout.keys(&new, 7)?);
    let values = layout.values(&new, 40)?;
    eval([&new, &queries, &keys, &values])?;
    let entry = i64::from(layout.rows()) * 16;
    assert_eq!(queries.strides(), [entry, 2 * 16, 16, 1]);
    assert_eq!(keys.strides(), [entry, 40 * 16, 16, 1]);
    assert_eq!(values.strides(), [entry, 40 * 16, 16, 1]);
    assert_eq!(keys.shape(), [3, 2, 7, 16]);
    // With a batch of one, the queries are contiguous and lie at the start of the state.
    let one = step(&layout, 1, 2, Dtype::Float32, 1)?;
    let new = ops::rope_append(&layout.zeros(1, Dtype::Float32)?, &one, layout, turning(16, 5))?;
    assert_eq!(layout.queries(&new, 2)?.address()?, new.address()?);
    Ok(())
}

#[test]
fn buffers_are_reused_unless_held() -> Checked {
    each_device(|device| {
        let mut now = state(&LAYOUT, 2, Dtype::Float32, 1)?;
        let (mut first, mut copies) = (now.address()?, 0);
        for position in 0..24 {
            let qkv = step(&LAYOUT, 2, 1, Dtype::Float32, u64::from(position as u32))?;
            now = ops::rope_append(&now, &qkv, LAYOUT, turning(8, position))?;
            if is_nvidia(device) {
                // MLX may still hold the state for an op that has already read it. In this
                // case `rope_append` copies the state.
                copies += i32::from(now.address()? != first);
                first = now.address()?;
            }
            assert_eq!(now.address()?, first, "step {position}");
            // Read the state between two steps, as attention does.
            layout_sum(&now, position + 1)?.eval()?;
        }
        eprintln!("{device:?}: the state was copied in {copies} of 24 steps");
        let (held, before) = (now.clone(), numbers(&now)?);
        let qkv = step(&LAYOUT, 2, 1, Dtype::Float32, 99)?;
        let new = ops::rope_append(&now, &qkv, LAYOUT, turning(8, 3))?;
        assert_ne!(new.address()?, first);
        assert_eq!(numbers(&held)?, before, "a held buffer is not written to");
        let copy = held.add(0.0)?;
        let want = ops::rope_append(&copy, &qkv, LAYOUT, turning(8, 3))?;
        assert_same(&new, &want, "the rest is copied")?;
        Ok(())
    })
}

fn layout_sum(state: &Array, len: i32) -> Result<Array> {
    LAYOUT.keys(state, len)?.sum(..)?.add(LAYOUT.values(state, len)?.sum(..)?)
}

#[test]
fn steps_add_up_to_a_prompt() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            let qkv = step(&LAYOUT, 2, 20, dtype, 3)?;
            let mut now = LAYOUT.zeros(2, dtype)?;
            let mut at = 0;
            for time in [1, 1, 5, 8, 1, 4] {
                let part = qkv.i((.., at..at + time))?;
                now = ops::rope_append(&now, &part, LAYOUT, turning(8, at))?;
                at += time;
            }
            let zeros = LAYOUT.zeros(2, dtype)?;
            let whole = ops::rope_append(&zeros, &qkv, LAYOUT, turning(8, 0))?;
            assert_same(&LAYOUT.keys(&now, 24)?, &LAYOUT.keys(&whole, 24)?, "keys")?;
            assert_same(&LAYOUT.values(&now, 24)?, &LAYOUT.values(&whole, 24)?, "values")?;
        }
        Ok(())
    })
}

#[test]
fn inside_a_compiled_function() -> Checked {
    let by_position =
        |p: &[Array]| Ok(vec![ops::rope_append(&p[0], &p[1], LAYOUT, turning(8, &p[2]))?]);
    let compiled = compile(by_position, false)?;
    let mut now = LAYOUT.zeros(1, Dtype::Float32)?;
    let mut want = LAYOUT.zeros(1, Dtype::Float32)?;
    for position in 0..6 {
        let qkv = step(&LAYOUT, 1, 1, Dtype::Float32, 7)?;
        now = compiled.call(&[&now, &qkv, &Array::scalar(position)?])?.remove(0);
        want = ops::rope_append(&want, &qkv, LAYOUT, turning(8, position))?;
        assert_same(&now, &want, "compiled")?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_only_the_new_positions() -> Checked {
    let layout = KvLayout { heads: 32, kv_heads: 8, head_dim: 64, capacity: 1024 };
    let mut now = layout.zeros(1, Dtype::Float16)?;
    now.eval()?;
    for (position, time) in [(0, 1), (1, 1), (500, 4)] {
        let qkv = step(&layout, 1, time, Dtype::Float16, 1)?;
        let moved = support::moved(|| {
            now = ops::rope_append(&now, &qkv, layout, turning(64, position))?;
            Ok(now.clone())
        })?;
        let bytes = qkv.nbytes() as u64;
        assert_eq!(moved.len(), 1, "one dispatch");
        // The kernel's arrays are the old state, the step, its position twice (as offset and as
        // slot), a placeholder for the frequencies, and the new state. Positions are passed by
        // value.
        let [before, step, offset, slots, none, after] = moved[0].arrays[..] else {
            panic!("{moved:?}")
        };
        assert_eq!((before, none, step), ([0; 3], [0; 3], [bytes, 0, bytes]));
        assert_eq!((after, slots), ([0, bytes, 0], [0; 3]), "the slots are the offsets");
        assert_eq!(offset, [0; 3], "the host knows the position");
        if position == 0 {
            support::report_traffic("rope_append", &moved, 2 * qkv.nbytes())?;
        }
    }
    Ok(())
}
