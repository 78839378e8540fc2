//! `rope_append` against `rope` and plain copies, bit for bit: parts, positions, buffers.

mod buffers;
mod derivatives;

use mlx_primitives::device::Device;
use mlx_primitives::ops::{Offset, Rotation, StateLayout};
use mlx_primitives::{Array, Dtype, Result, builtin, concatenate, ops};

use crate::support::compare::{assert_close, assert_same, numbers};
use crate::support::input::{FLOATS, LAYOUTS, random, random32};
use crate::support::{Checked, each_device, message};

const LAYOUT: StateLayout = StateLayout { heads: 6, kv_heads: 2, head_dim: 8, capacity: 24 };

fn width(layout: &StateLayout) -> i32 {
    (layout.heads + 2 * layout.kv_heads) * layout.head_dim
}

fn turning(dims: i32) -> Rotation<'static> {
    Rotation { dims, ..Rotation::default() }
}

fn state(layout: &StateLayout, batch: i32, dtype: Dtype, seed: u64) -> Result<Array> {
    random(&[batch, layout.rows(), layout.head_dim], dtype, seed)
}

fn step(layout: &StateLayout, batch: i32, time: i32, dtype: Dtype, seed: u64) -> Result<Array> {
    random(&[batch, time, width(layout)], dtype, seed)
}

/// Heads `from..to` of a step, rotated by `rope` if so asked: `[batch, heads, time, head_dim]`.
fn part(
    layout: &StateLayout,
    qkv: &Array,
    heads: std::ops::Range<i32>,
    turn: Option<(&Rotation, &Array)>,
) -> Result<Array> {
    let all = layout.heads + 2 * layout.kv_heads;
    let shape = [qkv.dim(0)?, qkv.dim(1)?, all, layout.head_dim];
    let x = qkv.reshape(&shape)?.transpose(&[0, 2, 1, 3])?.slice_axis(1, heads)?;
    let Some((by, offset)) = turn else { return Ok(x) };
    let &Rotation { dims, traditional, base, scale, freqs, multiplier } = by;
    let scaled = concatenate(
        &[&x.slice_axis(-1, ..dims)?.multiply(multiplier)?, &x.slice_axis(-1, dims..)?],
        -1,
    )?;
    ops::rope(&scaled, dims, traditional, base, scale, offset, freqs)
}

/// The keys or values `old` with `new` from position `slots[b]` on, what has no room left out.
fn written(old: &Array, new: &Array, slots: &[i32]) -> anyhow::Result<Array> {
    let (batch, time, capacity) = (old.dim(0)?, new.dim(2)?, old.dim(2)?);
    let mut rows = Vec::new();
    for b in 0..batch {
        let slot = slots[if slots.len() > 1 { b as usize } else { 0 }];
        let mut row = old.slice(&[&(b..b + 1)])?;
        for t in 0..time {
            let at = i64::from(slot) + i64::from(t);
            if (0..i64::from(capacity)).contains(&at) {
                let (at, new) = (at as i32, new.slice(&[&(b..b + 1), &.., &(t..t + 1)])?);
                row = row.slice_update(&[&.., &.., &(at..at + 1)], &new)?;
            }
        }
        rows.push(row);
    }
    Ok(concatenate(&rows.iter().collect::<Vec<_>>(), 0)?)
}

/// Compares every part of a state with what `rope` and copies make of it.
#[allow(clippy::too_many_arguments)]
fn check(
    layout: &StateLayout,
    old: &Array,
    qkv: &Array,
    by: &Rotation,
    offset: &Array,
    slots: Option<&Array>,
    at: &[i32],
    what: &str,
) -> Checked {
    let new = ops::rope_append(old, qkv, layout, by, offset, slots.map(Offset::Each))?;
    assert_eq!((new.shape(), new.dtype()), (old.shape(), old.dtype()), "{what}");
    let (heads, kv, time) = (layout.heads, layout.kv_heads, qkv.dim(1)?);
    let turn = Some((by, offset));
    if time <= StateLayout::QUERY_POSITIONS {
        let want = part(layout, qkv, 0..heads, turn)?;
        assert_same(&layout.queries(&new, time)?, &want, &format!("{what}: queries"))?;
    }
    // The rest of the query area stays.
    let rest = if time > StateLayout::QUERY_POSITIONS { 0 } else { heads * time };
    let rest = rest..heads * StateLayout::QUERY_POSITIONS;
    assert_same(&new.slice_axis(1, rest.clone())?, &old.slice_axis(1, rest)?, what)?;
    let keys = part(layout, qkv, heads..heads + kv, turn)?;
    let want = written(&layout.keys(old, layout.capacity)?, &keys, at)?;
    assert_same(&layout.keys(&new, layout.capacity)?, &want, &format!("{what}: keys"))?;
    let values = part(layout, qkv, heads + kv..heads + 2 * kv, None)?;
    let want = written(&layout.values(old, layout.capacity)?, &values, at)?;
    assert_same(&layout.values(&new, layout.capacity)?, &want, &format!("{what}: values"))?;
    Ok(())
}

#[test]
fn parameters_in_every_type() -> Checked {
    each_device(|device| {
        for dtype in FLOATS {
            for (head_dim, dims) in [(8, 8), (16, 6), (7, 2), (80, 64)] {
                let layout = StateLayout { head_dim, ..LAYOUT };
                let periods: Vec<f32> = (0..dims / 2).map(|i| 1.0 + (i * i) as f32).collect();
                let freqs = Array::from_slice(&periods, &[dims / 2])?;
                for traditional in [false, true] {
                    for (base, freqs) in [(Some(1e4), None), (None, Some(&freqs))] {
                        for (scale, multiplier, time) in
                            [(1.0, 1.0, 1), (0.25, 1.19, 1), (1.0, 1.19, 3), (-1.5, 1.0, 9)]
                        {
                            let by = Rotation { dims, traditional, base, scale, freqs, multiplier };
                            let old = state(&layout, 2, dtype, 1)?;
                            let qkv = step(&layout, 2, time, dtype, 2)?;
                            let offset = Array::scalar(5)?;
                            let what = format!("{device:?} {by:?} {dtype} {head_dim} {time}");
                            check(&layout, &old, &qkv, &by, &offset, None, &[5], &what)?;
                        }
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn head_counts_and_lengths() -> Checked {
    each_device(|_| {
        for (heads, kv_heads) in [(1, 1), (4, 4), (8, 1), (5, 3)] {
            for time in [1, 2, 7, 8, 9, 24] {
                let layout = StateLayout { heads, kv_heads, ..LAYOUT };
                let what = format!("{layout:?} {time}");
                let old = state(&layout, 3, Dtype::Bfloat16, 1)?;
                let qkv = step(&layout, 3, time, Dtype::Bfloat16, 2)?;
                let none = Array::scalar(0)?;
                check(&layout, &old, &qkv, &turning(8), &none, None, &[0], &what)?;
            }
        }
        for shape in [[0, 1], [2, 0]] {
            let old = state(&LAYOUT, shape[0], Dtype::Float32, 1)?;
            let qkv = step(&LAYOUT, shape[0], shape[1], Dtype::Float32, 2)?;
            let new = ops::rope_append(&old, &qkv, &LAYOUT, &turning(8), 3, None)?;
            assert_same(&new, &old, "nothing to write")?;
        }
        Ok(())
    })
}

#[test]
fn positions_and_slots_of_every_kind() -> Checked {
    each_device(|_| {
        for dtype in [Dtype::Float32, Dtype::Float16] {
            for time in [1, 4, 11] {
                let (old, qkv) = (state(&LAYOUT, 3, dtype, 1)?, step(&LAYOUT, 3, time, dtype, 2)?);
                let check = |offset: &Array, slots: Option<&Array>, at: &[i32], what: &str| {
                    let what = format!("{dtype} {time}: {what}");
                    check(&LAYOUT, &old, &qkv, &turning(8), offset, slots, at, &what)
                };
                let each = Array::from_slice(&[9i32, 0, 13], &[3])?;
                check(&each, None, &[9, 0, 13], "one each")?;
                check(&each.astype(Dtype::Int64)?, None, &[9, 0, 13], "of 64 bits")?;
                check(&each.slice(&[&(.., -1)])?, None, &[13, 0, 9], "backwards")?;
                check(&each.slice(&[&(..1)])?, None, &[9], "one element")?;
                check(&each.add(4)?.subtract(4)?, None, &[9, 0, 13], "computed")?;
                let far = Array::scalar(70_000)?;
                check(&far, Some(&each), &[9, 0, 13], "slots of their own")?;
                check(&far, Some(&Array::scalar(3)?), &[3], "one slot")?;
                check(&each.subtract(40)?, Some(&Array::scalar(3)?), &[3], "before the start")?;
            }
        }
        Ok(())
    })
}

#[test]
fn what_has_no_room_is_left_out() -> Checked {
    each_device(|_| {
        for time in [1, 5, 12] {
            let old = state(&LAYOUT, 3, Dtype::Float32, 1)?;
            let qkv = step(&LAYOUT, 3, time, Dtype::Float32, 2)?;
            for slots in [[22, 24, -3], [i32::MAX, i32::MIN, 1 << 30], [-1, 23, 1000]] {
                // The result of a computation, which nobody knows before it is done.
                let known = Array::from_slice(&slots, &[3])?;
                let computed = known.maximum(i32::MIN)?;
                let offset = Array::scalar(2)?;
                let what = format!("{slots:?} {time}");
                let by = turning(8);
                check(&LAYOUT, &old, &qkv, &by, &offset, Some(&computed), &slots, &what)?;
                let known = Some(Offset::Each(&known));
                let said = message(ops::rope_append(&old, &qkv, &LAYOUT, &by, 2, known));
                assert!(said.contains("positions within a capacity of 24"), "{said}");
            }
        }
        Ok(())
    })
}

#[test]
fn layouts_of_state_and_step() -> Checked {
    each_device(|_| {
        for layout in LAYOUTS {
            let shape = [2, LAYOUT.rows(), LAYOUT.head_dim];
            let old = layout.make(&shape, Dtype::Float32, 1)?;
            let qkv = layout.make(&[2, 3, width(&LAYOUT)], Dtype::Float32, 2)?;
            let offset = &Array::scalar(4)?;
            let what = format!("{layout:?}");
            check(&LAYOUT, &old, &qkv, &turning(8), offset, None, &[4], &what)?;
        }
        Ok(())
    })
}

#[test]
fn the_composition_has_the_same_value() -> Checked {
    let periods = Array::from_slice(&[1.0f32, 3.0, 9.0, 27.0], &[4])?;
    each_device(|device| {
        for dtype in FLOATS {
            for (time, freqs) in [(1, None), (3, Some(&periods)), (12, None)] {
                let base = freqs.is_none().then_some(1e4);
                let by = Rotation { base, freqs, multiplier: 1.25, ..turning(8) };
                let (old, qkv) = (state(&LAYOUT, 2, dtype, 1)?, step(&LAYOUT, 2, time, dtype, 2)?);
                let slots = Array::from_slice(&[22i32, 3], &[2])?.add(0)?;
                let slots = Some(Offset::Each(&slots));
                let new = ops::rope_append(&old, &qkv, &LAYOUT, &by, 700, slots)?;
                let peer = builtin::composition(&new)?.remove(0);
                // MLX's rope rounds each step on the CPU and only the last on the GPU; so does
                // ours, so the two differ where a simulated GPU is compared with the CPU.
                if device == Device::Cpu && cfg!(all(target_os = "linux", target_arch = "x86_64")) {
                    assert_same(&new, &peer, &format!("{dtype} {time}"))?;
                } else {
                    let tolerance = match dtype {
                        Dtype::Float16 => 4e-3,
                        Dtype::Bfloat16 => 3e-2,
                        _ => 2e-4, // five roundings of an angle of 700
                    };
                    assert_close(&numbers(&new)?, &numbers(&peer)?, tolerance, "composition");
                }
            }
        }
        Ok(())
    })
}

#[test]
fn bad_input_is_an_error() -> Checked {
    let (old, qkv) =
        (state(&LAYOUT, 2, Dtype::Float32, 1)?, step(&LAYOUT, 2, 2, Dtype::Float32, 2)?);
    let with = |layout: StateLayout, by: Rotation, offset: &Array| {
        message(ops::rope_append(&old, &qkv, &layout, &by, offset, None))
    };
    let zero = &Array::scalar(0)?;
    for (said, expected) in [
        (with(StateLayout { heads: 0, ..LAYOUT }, turning(8), zero), "got 0"),
        (with(StateLayout { kv_heads: -1, ..LAYOUT }, turning(8), zero), "got -1"),
        (with(StateLayout { capacity: 25, ..LAYOUT }, turning(8), zero), "expected a state"),
        (with(StateLayout { capacity: i32::MAX, ..LAYOUT }, turning(8), zero), "31 bits"),
        (with(StateLayout { capacity: -1, ..LAYOUT }, turning(8), zero), "got -1"),
        (with(StateLayout { heads: 1 << 24, ..LAYOUT }, turning(8), zero), "expected a state"),
        (with(LAYOUT, turning(7), zero), "expected dims to be even"),
        (with(LAYOUT, turning(10), zero), "within 2 to 8"),
        (with(LAYOUT, Rotation { base: None, ..turning(8) }, zero), "got neither"),
        (with(LAYOUT, Rotation { freqs: Some(zero), ..turning(8) }, zero), "got both"),
        (
            with(LAYOUT, Rotation { base: None, freqs: Some(zero), ..turning(8) }, zero),
            "freqs of shape (4)",
        ),
        (with(LAYOUT, turning(8), &Array::scalar(0.0f32)?), "integer dtype"),
        (with(LAYOUT, turning(8), &Array::zeros::<i32>(&[3])?), "one number or 2"),
        (with(LAYOUT, turning(8), &Array::scalar(23)?), "got 23 as the first"),
        (with(LAYOUT, turning(8), &Array::scalar(-1)?), "got -1 as the first"),
    ] {
        assert!(said.starts_with("[rope_append] ") && said.contains(expected), "{said}");
    }
    let half = qkv.astype(Dtype::Float16)?;
    assert!(
        message(ops::rope_append(&old, &half, &LAYOUT, &turning(8), 0, None)).contains("dtype")
    );
    let whole = old.astype(Dtype::Int32)?;
    assert!(
        message(ops::rope_append(&whole, &qkv, &LAYOUT, &turning(8), 0, None)).contains("int32")
    );
    let long = step(&LAYOUT, 2, 25, Dtype::Float32, 2)?;
    assert!(message(ops::rope_append(&old, &long, &LAYOUT, &turning(8), 0, None)).contains("24"));
    for shape in [&[1, 2, width(&LAYOUT)][..], &[2, 2, 8], &[2, width(&LAYOUT)]] {
        let qkv = random32(shape, 1)?;
        let said = message(ops::rope_append(&old, &qkv, &LAYOUT, &turning(8), 0, None));
        assert!(said.contains("expected qkv (2, time, 80)"), "{said}");
    }
    assert!(message(LAYOUT.keys(&old, 25)).contains("at most 24"));
    assert!(message(LAYOUT.values(&qkv, 5)).contains("a state [batch, 144, 8]"));
    assert!(message(LAYOUT.queries(&old, 9)).contains("at most 8"));
    Ok(())
}
