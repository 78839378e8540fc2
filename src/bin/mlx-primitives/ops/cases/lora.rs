use mlx_primitives::ops::{
    self, LinearOptions, LinearWeight, QuantizedMode, QuantizedOptions, QuantizedWeight,
};
use mlx_primitives::{Array, Dtype, builtin};

use super::{Function, Inputs, Size, Workload, product_of, ready};

const RANK: i32 = 8;

pub fn workloads() -> Vec<Workload> {
    let mut all = Vec::new();
    for peer in [Peer::Builtins, Peer::OwnOps] {
        for quantized in [true, false] {
            all.push(workload([1, 2048], quantized, Size::Decode, peer));
            all.push(workload([1024, 768], quantized, Size::Wide, peer));
            if peer == Peer::Builtins {
                all.push(workload([1, 12_288], quantized, Size::Large, peer));
                all.push(workload([512, 4096], quantized, Size::Large, peer));
            }
        }
    }
    all
}

#[derive(Clone, Copy, PartialEq)]
enum Peer {
    Builtins,
    /// The same of our separate ops, to see what fusing alone gains.
    OwnOps,
}

/// `x W^T + 2 (x A^T) B^T`, an op of ours for each product, two of MLX's for the rest.
fn separate(x: &Array, w: &LinearWeight, a: &Array, b: &Array) -> mlx_primitives::Result<Array> {
    let base = match w {
        LinearWeight::Plain(w) => ops::linear(x, w, &LinearOptions::default())?,
        LinearWeight::Quantized(w) => ops::quantized_linear(x, w, &QuantizedOptions::default())?,
    };
    let low = ops::linear(x, a, &LinearOptions::default())?;
    base.add(ops::linear(&low, b, &LinearOptions::default())?.multiply(2.0)?)
}

fn base(k: i32, quantized: bool, dtype: Dtype) -> mlx_primitives::Result<(LinearWeight, usize)> {
    let w = ready(&[k, k], dtype, -0.1..0.1)?;
    if !quantized {
        let bytes = w.nbytes();
        return Ok((w.into(), bytes));
    }
    let w = QuantizedWeight::quantize(&w, 64, 4, QuantizedMode::Affine)?;
    for array in [Some(w.packed()), Some(w.scales()), w.biases()].into_iter().flatten() {
        array.eval()?;
    }
    let bytes = w.nbytes();
    Ok((w.into(), bytes))
}

fn workload([rows, k]: [i32; 2], quantized: bool, size: Size, peer: Peer) -> Workload {
    let inputs = move |dtype: Dtype| {
        let x = ready(&[rows, k], dtype, -1.0..1.0)?;
        let (a, b) = (ready(&[RANK, k], dtype, -0.1..0.1)?, ready(&[k, RANK], dtype, -0.1..0.1)?);
        let (w, bytes) = base(k, quantized, dtype)?;
        let read = bytes + x.nbytes() + a.nbytes() + b.nbytes();
        let theirs = (w.clone(), a.clone(), b.clone());
        let run = move |x: &Array| ops::lora_linear(x, &w, &a, &b, 2.0);
        let composed = run.clone();
        let builtin: Function = match peer {
            Peer::Builtins => {
                Box::new(move |x| Ok(builtin::composition(&composed(x)?)?.swap_remove(0)))
            }
            Peer::OwnOps => Box::new(move |x| separate(x, &theirs.0, &theirs.1, &theirs.2)),
        };
        let flops = 2.0 * f64::from(rows) * f64::from(k) * f64::from(k + 2 * RANK);
        Ok(Inputs {
            read,
            written: x.nbytes(),
            products: Some((flops, product_of(dtype))),
            x,
            ours: Box::new(run),
            builtin: (size != Size::Large).then_some(builtin),
        })
    };
    let variant = match (quantized, peer) {
        (true, Peer::Builtins) => "4-bit",
        (false, Peer::Builtins) => "plain",
        (true, Peer::OwnOps) => "4-bit, by our separate ops",
        (false, Peer::OwnOps) => "plain, by our separate ops",
    };
    Workload::new("lora_linear", &[rows, k], variant, size, inputs)
}
