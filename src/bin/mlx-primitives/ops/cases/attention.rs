use mlx_primitives::ops::{self, AttentionOptions, QuantizedRows};
use mlx_primitives::yardstick::Product;
use mlx_primitives::{Array, Dtype, builtin};

use super::{Function, Inputs, Size, Workload, ready};

/// A cache as a decoder has it: eight key-value heads, some room behind the keys.
const KV_HEADS: i32 = 8;
const ROOM: i32 = 64;
const GROUP: i32 = 64;

pub fn workloads() -> Vec<Workload> {
    // [batch, heads, queries, dim], keys, bits of quantized keys and values.
    [
        (&[1, 32, 1, 64][..], 512, None, "512 keys", Size::Decode),
        (&[1, 32, 1, 64], 4096, None, "4096 keys", Size::Decode),
        (&[1, 32, 1, 128], 4096, None, "4096 keys", Size::Decode),
        (&[1, 32, 1, 64], 4096, Some(8), "4096 keys, 8 bits", Size::Decode),
        (&[1, 32, 512, 64], 512, None, "causal", Size::Wide),
        (&[1, 32, 1, 64], 65_536, None, "65536 keys", Size::Large),
        (&[1, 32, 1, 64], 131_072, Some(8), "131072 keys, 8 bits", Size::Large),
        (&[1, 32, 1, 64], 131_072, Some(4), "131072 keys, 4 bits", Size::Large),
        (&[1, 32, 2048, 64], 2048, None, "causal", Size::Large),
        (&[1, 32, 2048, 64], 2048, Some(8), "causal, 8 bits", Size::Large),
    ]
    .map(|(shape, keys, bits, variant, size)| workload(shape, keys, bits, variant, size))
    .into()
}

/// The first keys of a cache, and the bytes of what is kept of them.
fn part(all: &Array, keys: i32) -> mlx_primitives::Result<(Array, usize)> {
    let part = all.slice_axis(2, 0..keys)?;
    part.eval()?;
    let bytes = part.nbytes();
    Ok((part, bytes))
}

fn workload(
    shape: &'static [i32],
    keys: i32,
    bits: Option<i32>,
    variant: &'static str,
    size: Size,
) -> Workload {
    let inputs = move |dtype: Dtype| {
        let x = ready(shape, dtype, -2.0..2.0)?;
        let options = AttentionOptions { causal: shape[2] > 1, ..Default::default() };
        let cache = [shape[0], KV_HEADS, keys + ROOM, shape[3]];
        let (k, v) = (ready(&cache, dtype, -2.0..2.0)?, ready(&cache, dtype, -1.0..1.0)?);
        let (ours, theirs, read): (Function, Function, usize) = if let Some(bits) = bits {
            let mut parts = Vec::new();
            let mut read = 0;
            for cache in [k, v] {
                let (packed, scales, biases) = ops::quantize(&cache, GROUP, bits)?;
                for all in [packed, scales, biases] {
                    let (part, bytes) = part(&all, keys)?;
                    read += bytes;
                    parts.push(part);
                }
            }
            let run = move |x: &Array| {
                let [kp, ks, kb, vp, vs, vb] = &parts[..] else { unreachable!("six parts") };
                let k = QuantizedRows { packed: kp, scales: ks, biases: kb };
                let v = QuantizedRows { packed: vp, scales: vs, biases: vb };
                ops::attention_quantized(x, k, v, bits, GROUP, &options)
            };
            (Box::new(run.clone()), Box::new(run), read)
        } else {
            let ((k, key_bytes), (v, value_bytes)) = (part(&k, keys)?, part(&v, keys)?);
            let run = move |x: &Array| ops::attention(x, &k, &v, &options);
            (Box::new(run.clone()), Box::new(run), key_bytes + value_bytes)
        };
        // Two products; the causal rule halves them.
        let scores = f64::from(shape[1]) * f64::from(shape[2]) * f64::from(keys);
        let products = if shape[2] > 1 { 1.0 } else { 2.0 };
        let builtin: Function =
            Box::new(move |x| Ok(builtin::composition(&theirs(x)?)?.swap_remove(0)));
        Ok(Inputs {
            read: x.nbytes() + read,
            written: x.nbytes(),
            // The weights are float32, and so is what quantized keys and values stand for.
            products: Some((2.0 * products * scores * f64::from(shape[3]), Product::Float32)),
            x,
            ours,
            builtin: (size != Size::Large).then_some(builtin),
        })
    };
    Workload::new("attention", shape, variant, size, inputs).because(match (bits, shape[2]) {
        (Some(_), 1) => "codes become floats for no more than four rows of queries",
        _ => "a softmax stands between the products, of weights that stay float32",
    })
}
