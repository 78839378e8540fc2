//! `rope_append`, which rotates a step and writes it into a key/value cache: kinds of positions,
//! buffers, refused inputs. The conformance table (`tests/catalog`) tests its values.

mod attended;
mod buffers;
mod gradients;
mod heads;

use mlx_primitives::ops::{KvLayout, Offset, Rope, RopeAppend};
use mlx_primitives::{Array, Dtype, Result, ops};

use crate::support::compare::assert_same;
use crate::support::input::{random, random32};
use crate::support::{Checked, each_device, message};

const LAYOUT: KvLayout = KvLayout { heads: 6, kv_heads: 2, head_dim: 8, capacity: 24 };

fn width(layout: &KvLayout) -> i32 {
    (layout.heads + 2 * layout.kv_heads) * layout.head_dim
}

fn turning<'a>(dims: i32, offset: impl Into<Offset<'a>>) -> RopeAppend<'a> {
    Rope { dims, offset: offset.into(), ..Default::default() }.into()
}

fn state(layout: &KvLayout, batch: i32, dtype: Dtype, seed: u64) -> Result<Array> {
    random(&[batch, layout.rows(), layout.head_dim], dtype, seed)
}

fn step(layout: &KvLayout, batch: i32, time: i32, dtype: Dtype, seed: u64) -> Result<Array> {
    random(&[batch, time, width(layout)], dtype, seed)
}

#[test]
fn positions_of_every_kind() -> Checked {
    each_device(|_| {
        let (old, qkv) =
            (state(&LAYOUT, 3, Dtype::Float32, 1)?, step(&LAYOUT, 3, 4, Dtype::Float32, 2)?);
        let of = |offset: &Array| ops::rope_append(&old, &qkv, LAYOUT, turning(8, offset));
        let each = Array::from_slice(&[9i32, 0, 13], [3])?;
        let want = of(&each)?;
        assert_same(&of(&each.astype(Dtype::Int64)?)?, &want, "of 64 bits")?;
        assert_same(&of(&each.add(4)?.subtract(4)?)?, &want, "computed")?;
        // All entries of the batch have the same position. If the host knows it, a GPU gets it by
        // value. The other positions of this loop reuse the launch plan of the first.
        for position in [0, 9, 20, 7] {
            let want = of(&Array::from_slice(&[position; 3], [3])?)?;
            let known = Array::scalar(position)?;
            assert_same(&of(&known)?, &want, "known")?;
            assert_same(&of(&known.add(4)?.subtract(4)?)?, &want, "one, computed")?;
            let slots = RopeAppend { slots: Some(Offset::Each(&known)), ..turning(8, &known) };
            assert_same(&ops::rope_append(&old, &qkv, LAYOUT, slots)?, &want, "slots")?;
        }
        Ok(())
    })
}

#[test]
fn bad_input_is_an_error() -> Checked {
    let (old, qkv) =
        (state(&LAYOUT, 2, Dtype::Float32, 1)?, step(&LAYOUT, 2, 2, Dtype::Float32, 2)?);
    let with = |layout: KvLayout, dims: i32, offset: &Array| {
        message(ops::rope_append(&old, &qkv, layout, turning(dims, offset)))
    };
    let by = |base: Option<f32>, freqs: Option<&Array>| {
        let rope = Rope { dims: 8, base, freqs, ..Default::default() };
        message(ops::rope_append(&old, &qkv, LAYOUT, rope.into()))
    };
    let zero = &Array::scalar(0)?;
    for (said, expected) in [
        (with(KvLayout { heads: 0, ..LAYOUT }, 8, zero), "got 0"),
        (with(KvLayout { kv_heads: -1, ..LAYOUT }, 8, zero), "got -1"),
        (with(KvLayout { capacity: 25, ..LAYOUT }, 8, zero), "expected a state"),
        (with(KvLayout { capacity: i32::MAX, ..LAYOUT }, 8, zero), "31 bits"),
        (with(KvLayout { capacity: -1, ..LAYOUT }, 8, zero), "got -1"),
        (with(KvLayout { heads: 1 << 24, ..LAYOUT }, 8, zero), "expected a state"),
        (with(LAYOUT, 7, zero), "expected dims to be even"),
        (with(LAYOUT, 10, zero), "within 2 to 8"),
        (by(None, None), "got neither"),
        (by(Some(1e4), Some(zero)), "got both"),
        (by(None, Some(zero)), "freqs of shape (4)"),
        (with(LAYOUT, 8, &Array::scalar(0.0f32)?), "integer dtype"),
        (with(LAYOUT, 8, &Array::zeros::<i32>(&[3])?), "one number or 2"),
        (with(LAYOUT, 8, &Array::scalar(23)?), "got 23 as the first"),
        (with(LAYOUT, 8, &Array::scalar(-1)?), "got -1 as the first"),
    ] {
        assert!(said.starts_with("[rope_append] ") && said.contains(expected), "{said}");
    }
    let half = qkv.astype(Dtype::Float16)?;
    assert!(message(ops::rope_append(&old, &half, LAYOUT, turning(8, 0))).contains("dtype"));
    let whole = old.astype(Dtype::Int32)?;
    assert!(message(ops::rope_append(&whole, &qkv, LAYOUT, turning(8, 0))).contains("int32"));
    let long = step(&LAYOUT, 2, 25, Dtype::Float32, 2)?;
    assert!(message(ops::rope_append(&old, &long, LAYOUT, turning(8, 0))).contains("24"));
    for shape in [&[1, 2, width(&LAYOUT)][..], &[2, 2, 8], &[2, width(&LAYOUT)]] {
        let qkv = random32(shape, 1)?;
        let said = message(ops::rope_append(&old, &qkv, LAYOUT, turning(8, 0)));
        assert!(said.contains("expected qkv (2, time, 80)"), "{said}");
    }
    // The values of these slots are known, so invalid ones are refused.
    for slots in [[22, 24], [i32::MAX, i32::MIN], [-1, 23]] {
        let slots = Array::from_slice(&slots, [2])?;
        let options = RopeAppend { slots: Some(Offset::Each(&slots)), ..turning(8, 2) };
        let said = message(ops::rope_append(&old, &qkv, LAYOUT, options));
        assert!(said.contains("positions within a capacity of 24"), "{said}");
    }
    assert!(message(LAYOUT.keys(&old, 25)).contains("at most 24"));
    assert!(message(LAYOUT.values(&qkv, 5)).contains("a state [batch, 144, 8]"));
    assert!(message(LAYOUT.queries(&old, 9)).contains("at most 8"));
    Ok(())
}
