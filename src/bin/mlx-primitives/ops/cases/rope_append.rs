use std::cell::RefCell;

use mlx_primitives::ops::{self, Rotation, StateLayout};
use mlx_primitives::{Array, builtin};

use super::{Inputs, ROUNDINGS, Size, Workload, ready};

/// The query area is as long as a head's keys, so that MLX's ops can take the state as one array
/// of heads.
const LAYOUT: StateLayout = StateLayout { heads: 32, kv_heads: 8, head_dim: 64, capacity: 256 };
const POSITION: i32 = 100;

/// The shape is that of the step, `x` is the state.
pub fn workloads() -> Vec<Workload> {
    let mut all: Vec<_> =
        [(1, Size::Decode), (128, Size::Prefill)].map(|(time, size)| workload(time, size)).into();
    all.push(batched());
    all
}

fn workload(time: i32, size: Size) -> Workload {
    let StateLayout { heads, kv_heads, head_dim, capacity } = LAYOUT;
    let shape = vec![1, time, (heads + 2 * kv_heads) * head_dim];
    let step = shape.clone();
    let inputs = move |dtype| {
        let x = ready(&[1, LAYOUT.rows(), head_dim], dtype, -4.0..4.0)?;
        let qkv = ready(&step, dtype, -4.0..4.0)?;
        let theirs = qkv.clone();
        Ok(Inputs {
            read: qkv.nbytes(),
            written: qkv.nbytes(),
            products: None,
            x,
            ours: Box::new(move |state| {
                ops::rope_append(state, &qkv, &LAYOUT, &Rotation::default(), POSITION, None)
            }),
            // Queries and keys in one rope, then two writes: fewer ops than a rope for each.
            builtin: Some(Box::new(move |state: &Array| {
                let vectors = theirs
                    .reshape(&[1, time, heads + 2 * kv_heads, head_dim])?
                    .transpose(&[0, 2, 1, 3])?;
                let turned = vectors.slice_axis(1, ..heads + kv_heads)?;
                let turned =
                    builtin::rope(&turned, head_dim, false, Some(10_000.0), 1.0, POSITION, None)?;
                let keys = turned.slice_axis(1, heads..)?;
                let values = vectors.slice_axis(1, heads + kv_heads..)?;
                let at = POSITION..POSITION + time;
                let stored = 1..1 + kv_heads;
                state
                    .reshape(&[1, 1 + 2 * kv_heads, capacity, head_dim])?
                    .slice_update(&[&.., &stored, &at], &keys)?
                    .slice_update(&[&.., &(1 + kv_heads..1 + 2 * kv_heads), &at], &values)?
                    .reshape(&[1, LAYOUT.rows(), head_dim])
            })),
        })
    };
    Workload::new("rope_append", &shape, "", size, inputs)
}

/// Many sequences, each with its own few positions. `x` is the step: the state is handed on from call to
/// call, as a decoder does, so that it is written in place.
fn batched() -> Workload {
    const BATCH: i32 = 1024;
    let layout = StateLayout { capacity: 16, ..LAYOUT };
    let time = StateLayout::QUERY_POSITIONS;
    let shape = [BATCH, time, (layout.heads + 2 * layout.kv_heads) * layout.head_dim];
    let inputs = move |dtype| {
        let x = ready(&shape, dtype, -4.0..4.0)?;
        let state = RefCell::new(layout.zeros(BATCH, dtype)?);
        Ok(Inputs {
            read: x.nbytes(),
            written: x.nbytes(),
            products: None,
            x,
            ours: Box::new(move |qkv| {
                let rotation = Rotation::default();
                let next = ops::rope_append(&state.borrow(), qkv, &layout, &rotation, 0, None)?;
                state.replace(next.clone());
                Ok(next)
            }),
            builtin: None,
        })
    };
    Workload::new("rope_append", &shape, "a sequence each", Size::Large, inputs).because(ROUNDINGS)
}
