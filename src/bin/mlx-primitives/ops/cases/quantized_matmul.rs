use mlx_primitives::ops::{self, QuantizedMode, QuantizedOptions, QuantizedWeight};
use mlx_primitives::{Array, Dtype, builtin};

use super::{EPS, Inputs, Size, Workload, ready};

const FORMATS: [(&str, i32, i32, QuantizedMode); 6] = [
    ("4-bit", 64, 4, QuantizedMode::Affine),
    ("2-bit", 64, 2, QuantizedMode::Affine),
    ("3-bit", 64, 3, QuantizedMode::Affine),
    ("6-bit", 64, 6, QuantizedMode::Affine),
    ("8-bit", 64, 8, QuantizedMode::Affine),
    ("mxfp4", 32, 4, QuantizedMode::Mxfp4),
];

pub fn workloads() -> Vec<Workload> {
    let mut all: Vec<Workload> =
        FORMATS.iter().map(|&format| workload(1, 2048, format, Size::Decode)).collect();
    all.push(workload(8, 2048, FORMATS[0], Size::Wide));
    all.push(workload(1, 16384, FORMATS[0], Size::Large));
    all.push(workload(128, 2048, FORMATS[0], Size::Wide));
    all.push(swiglu());
    all
}

fn weight(
    n: i32,
    k: i32,
    dtype: Dtype,
    (_, group, bits, mode): (&str, i32, i32, QuantizedMode),
) -> mlx_primitives::Result<QuantizedWeight> {
    let w = QuantizedWeight::quantize(&ready(&[n, k], dtype, -0.1..0.1)?, group, bits, mode)?;
    for array in [Some(w.packed()), Some(w.scales()), w.biases()].into_iter().flatten() {
        array.eval()?;
    }
    Ok(w)
}

/// `[rows, 2048]` with `[n, 2048]`.
fn workload(
    rows: i32,
    n: i32,
    format: (&'static str, i32, i32, QuantizedMode),
    size: Size,
) -> Workload {
    const K: i32 = 2048;
    let inputs = move |dtype| {
        let x = ready(&[rows, K], dtype, -1.0..1.0)?;
        let w = weight(n, K, dtype, format)?;
        let peer = w.clone();
        let run = |x: &Array, w: &QuantizedWeight| {
            ops::quantized_linear(x, w, &QuantizedOptions::default())
        };
        Ok(Inputs {
            ideal_bytes: x.nbytes() + w.nbytes() + (rows * n) as usize * dtype.size(),
            flops: if rows > 8 { 2.0 * f64::from(rows) * f64::from(n) * f64::from(K) } else { 0.0 },
            x,
            ours: Box::new(move |x| run(x, &w)),
            builtin: Box::new(move |x| Ok(builtin::composition(&run(x, &peer)?)?.swap_remove(0))),
        })
    };
    let shape = if n == K { vec![rows, K] } else { vec![rows, K, n] };
    Workload { op: "quantized_linear", shape, variant: format.0, size, inputs: Box::new(inputs) }
}

fn swiglu() -> Workload {
    let (k, n) = (2048, 8192);
    let inputs = move |dtype| {
        let x = ready(&[1, k], dtype, -1.0..1.0)?;
        let gain = ready(&[k], dtype, 0.8..1.2)?;
        let (gate, up) = (weight(n, k, dtype, FORMATS[0])?, weight(n, k, dtype, FORMATS[0])?);
        let bytes = x.nbytes() + gate.nbytes() + up.nbytes() + n as usize * dtype.size();
        let run = move |x: &Array| ops::quantized_swiglu(x, &gate, &up, Some((&gain, EPS)));
        let peer = run.clone();
        Ok(Inputs {
            ideal_bytes: bytes,
            flops: 0.0,
            x,
            ours: Box::new(run),
            builtin: Box::new(move |x| Ok(builtin::composition(&peer(x)?)?.swap_remove(0))),
        })
    };
    let (shape, inputs) = (vec![1, k, n], Box::new(inputs));
    Workload { op: "quantized_swiglu", shape, variant: "4-bit", size: Size::Wide, inputs }
}
