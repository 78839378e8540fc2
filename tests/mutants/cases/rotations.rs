//! Rotary embeddings.

use mlx_primitives::ops::{self, KvLayout, Offset, Rope, RopeAppend};
use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Result};

use super::inputs::wave;
use super::{Case, Cases};

const SCALE: f32 = 0.75;

/// [batch, heads, length, features], and the number of rotated features.
const SHAPES: [([i32; 4], i32); 10] = [
    ([2, 5, 3, 7], 4),
    ([2, 5, 3, 8], 8),
    ([5, 4, 3, 40], 40),
    ([1, 2, 13, 40], 38),
    ([1, 2, 3, 514], 514),
    ([2, 3, 1, 7], 4),
    ([2, 1, 3, 8], 8),
    ([1, 13, 1, 40], 40),
    ([1, 1, 13, 40], 38),
    ([1, 1, 2, 514], 514),
];

/// The query heads, the key/value heads, the features, the rotated features, the batch and the
/// length. In the last three cases the grid has more threads than there are features, heads or
/// positions.
const APPENDED: [(i32, i32, i32, i32, i32, i32); 9] = [
    (2, 1, 7, 4, 2, 3),
    (2, 1, 64, 64, 1, 2),
    (5, 2, 8, 8, 2, 3),
    (2, 1, 12, 6, 1, 1),
    (3, 3, 40, 40, 2, 9),
    (9, 2, 6, 4, 1, 5),
    (2, 1, 514, 514, 1, 1),
    (23, 2, 6, 6, 3, 5),
    (2, 1, 40, 38, 1, 13),
];

pub fn all() -> Vec<Case> {
    [ropes(), appends()].into_iter().flat_map(|cases| cases.all).collect()
}

fn frequencies(dims: i32) -> Result<Array> {
    let values: Vec<f32> = (0..dims / 2).map(|i| 1.25f32.powi(i)).collect();
    Array::from_slice(&values, [dims / 2])
}

fn ropes() -> Cases {
    let mut cases = Cases::of("rope");
    for kind in 0..4 {
        let (traditional, explicit) = (kind % 2 == 1, kind / 2 == 1);
        for (number, (shape, dims)) in SHAPES.into_iter().enumerate() {
            cases.add(format_args!("{shape:?} {dims} {kind}"), move || {
                let x = wave(&shape, 1)?;
                let freqs = explicit.then(|| frequencies(dims)).transpose()?;
                let base = (!explicit).then_some(10_000.0);
                let offsets: Vec<i32> = [5, 2, -9, 3, 7][..shape[0] as usize].to_vec();
                let offsets = Array::from_slice(&offsets, &shape[..1])?;
                let offset = match number % 2 {
                    0 => Offset::Each(&offsets),
                    _ => Offset::Position(5),
                };
                let y = ops::rope(
                    &x,
                    Rope { dims, traditional, base, scale: SCALE, offset, freqs: freqs.as_ref() },
                )?;
                // If x is also a result, the kernel cannot overwrite it, and must copy the features
                // that it does not rotate.
                Ok(if number % 2 == kind / 2 { vec![y] } else { vec![y, x] })
            });
        }
    }
    cases
}

fn appends() -> Cases {
    let mut cases = Cases::of("rope_append");
    for kind in 0..4 {
        let (traditional, explicit) = (kind % 2 == 1, kind / 2 == 1);
        for (heads, kv_heads, head_dim, dims, batch, time) in APPENDED {
            cases.add(format_args!("{heads} {kv_heads} {head_dim} {kind}"), move || {
                let layout = KvLayout { heads, kv_heads, head_dim, capacity: 16 };
                let state = wave(&[batch, layout.rows(), head_dim], 1)?;
                let qkv = wave(&[batch, time, (heads + 2 * kv_heads) * head_dim], 2)?;
                let freqs = explicit.then(|| frequencies(dims)).transpose()?;
                let offsets = Array::from_slice(&[5, 9, 2][..batch as usize], [batch])?;
                // One kind has a slot outside the state. The op accepts this only because the slots
                // are lazy.
                let slots = if kind == 2 { [-1, 15, 7] } else { [4, 1, 3] };
                let slots = Array::from_slice(&slots[..batch as usize], [batch])?;
                let slots = slots.maximum(i32::MIN)?;
                let offset = Offset::Each(&offsets);
                let slots = (kind != 1).then_some(Offset::Each(&slots));
                let offset = if kind == 1 { Offset::Position(3) } else { offset };
                let base = (!explicit).then_some(10_000.0);
                let freqs = freqs.as_ref();
                let rope = Rope { dims, traditional, base, scale: SCALE, offset, freqs };
                let options = RopeAppend { rope, multiplier: 1.5, slots };
                let append =
                    |p: Vec<Array>| Ok(vec![ops::rope_append(&p[0], &p[1], layout, options)?]);
                let g = wave(&[batch, layout.rows(), head_dim], 3)?;
                let (mut all, gradients) = vjp(append, &[&state, &qkv], &[&g])?;
                all.extend(gradients);
                let divided = |p: Vec<Array>| Ok(ops::rope_heads(&p[0], layout, options)?.to_vec());
                let of = |heads, seed| wave(&[batch, heads, time, head_dim], seed);
                let parts = [of(heads, 4)?, of(kv_heads, 5)?, of(kv_heads, 6)?];
                let (parts, gradients) = vjp(divided, &[&qkv], &parts.each_ref())?;
                all.extend(parts.into_iter().chain(gradients));
                // If the state is also a result, the op must copy it. Otherwise the op overwrites
                // it.
                all.extend((kind % 2 == 0).then_some([state, g]).into_iter().flatten());
                Ok(all)
            });
        }
    }
    cases
}
