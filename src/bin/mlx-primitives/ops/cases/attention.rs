use mlx_primitives::ops::{self, AttentionOptions};
use mlx_primitives::{Array, builtin};

use super::{Inputs, Size, Workload, ready};

/// A cache as a decoder has it: eight key-value heads, some room behind the keys.
const KV_HEADS: i32 = 8;
const ROOM: i32 = 64;

pub fn workloads() -> Vec<Workload> {
    // [batch, heads, queries, dim], keys.
    [
        (&[1, 32, 1, 64][..], 512, "512 keys", Size::Decode),
        (&[1, 32, 1, 64], 4096, "4096 keys", Size::Decode),
        (&[1, 32, 1, 128], 4096, "4096 keys", Size::Decode),
        (&[1, 32, 512, 64], 512, "causal", Size::Wide),
    ]
    .map(|(shape, keys, variant, size)| workload(shape, keys, variant, size))
    .into()
}

fn workload(shape: &'static [i32], keys: i32, variant: &'static str, size: Size) -> Workload {
    let inputs = move |dtype| {
        let x = ready(shape, dtype, -2.0..2.0)?;
        let dim = shape[3];
        let part = |range| -> mlx_primitives::Result<Array> {
            let cache = ready(&[shape[0], KV_HEADS, keys + ROOM, dim], dtype, range)?;
            let part = cache.slice_axis(2, 0..keys)?;
            part.eval()?;
            Ok(part)
        };
        let (k, v) = (part(-2.0..2.0)?, part(-1.0..1.0)?);
        let options = AttentionOptions { causal: shape[2] > 1, ..Default::default() };
        let ours = move |x: &Array| ops::attention(x, &k, &v, &options);
        let theirs = ours.clone();
        let itemsize = x.nbytes() / x.size();
        // Two products; the causal rule halves them.
        let scores = f64::from(shape[1]) * f64::from(shape[2]) * f64::from(keys);
        let flops = if shape[2] > 1 { 2.0 * scores * f64::from(dim) } else { 0.0 };
        Ok(Inputs {
            ideal_bytes: 2 * x.nbytes() + 2 * (KV_HEADS * keys * dim) as usize * itemsize,
            flops,
            x,
            ours: Box::new(ours),
            builtin: Box::new(move |x| Ok(builtin::composition(&theirs(x)?)?.swap_remove(0))),
        })
    };
    Workload { op: "attention", shape: shape.to_vec(), variant, size, inputs: Box::new(inputs) }
}
