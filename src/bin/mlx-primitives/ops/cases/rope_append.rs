use mlx_primitives::ops::{self, Rotation, StateLayout};
use mlx_primitives::{Array, builtin};

use super::{Inputs, Size, Workload, ready};

/// The query area is as long as a head's keys, so that MLX's ops can take the state as one array
/// of heads.
const LAYOUT: StateLayout = StateLayout { heads: 32, kv_heads: 8, head_dim: 64, capacity: 256 };
const POSITION: i32 = 100;

/// The shape is that of the step, `x` is the state.
pub fn workloads() -> Vec<Workload> {
    [(1, Size::Decode), (128, Size::Prefill)].map(|(time, size)| workload(time, size)).into()
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
            ideal_bytes: 2 * qkv.nbytes(),
            flops: 0.0,
            x,
            ours: Box::new(move |state| {
                ops::rope_append(state, &qkv, &LAYOUT, &Rotation::default(), POSITION, None)
            }),
            // Queries and keys in one rope, then two writes: fewer ops than a rope for each.
            builtin: Box::new(move |state: &Array| {
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
            }),
        })
    };
    Workload { op: "rope_append", shape, variant: "", size, inputs: Box::new(inputs) }
}
