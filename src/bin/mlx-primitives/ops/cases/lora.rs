use mlx_primitives::ops::{self, LinearWeight, QuantizedMode, QuantizedWeight};
use mlx_primitives::{Array, Dtype, builtin};

use super::{Inputs, Size, Workload, ready};

const K: i32 = 2048;
const RANK: i32 = 8;

pub fn workloads() -> Vec<Workload> {
    vec![
        workload(1, true, Size::Decode),
        workload(1, false, Size::Decode),
        workload(128, false, Size::Wide),
    ]
}

fn base(quantized: bool, dtype: Dtype) -> mlx_primitives::Result<(LinearWeight, usize)> {
    let w = ready(&[K, K], dtype, -0.1..0.1)?;
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

fn workload(rows: i32, quantized: bool, size: Size) -> Workload {
    let inputs = move |dtype: Dtype| {
        let x = ready(&[rows, K], dtype, -1.0..1.0)?;
        let (a, b) = (ready(&[RANK, K], dtype, -0.1..0.1)?, ready(&[K, RANK], dtype, -0.1..0.1)?);
        let (w, bytes) = base(quantized, dtype)?;
        let bytes = bytes + 2 * x.nbytes() + a.nbytes() + b.nbytes();
        let run = move |x: &Array| ops::lora_linear(x, &w, &a, &b, 2.0);
        let peer = run.clone();
        let flops = 2.0 * f64::from(rows) * f64::from(K) * f64::from(K + 2 * RANK);
        Ok(Inputs {
            ideal_bytes: bytes,
            flops: if rows > 8 { flops } else { 0.0 },
            x,
            ours: Box::new(run),
            builtin: Box::new(move |x| Ok(builtin::composition(&peer(x)?)?.swap_remove(0))),
        })
    };
    let variant = if quantized { "4-bit" } else { "plain" };
    let (shape, inputs) = (vec![rows, K], Box::new(inputs));
    Workload { op: "lora_linear", shape, variant, size, inputs }
}
