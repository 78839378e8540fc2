use mlx_primitives::ops::{self, QuantizedMode, QuantizedOptions, QuantizedWeight};
use mlx_primitives::{Array, Dtype, builtin};

use super::{EPS, Function, Inputs, Size, Workload, product_of, ready};

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
    all.push(workload(128, 2048, FORMATS[0], Size::Wide));
    all.extend(FORMATS.map(|format| workload(1, 65_536, format, Size::Large)));
    all.push(workload(8, 65_536, FORMATS[0], Size::Large));
    all.push(workload(512, 16_384, FORMATS[0], Size::Large));
    all.push(workload(512, 16_384, FORMATS[4], Size::Large));
    all.push(workload(512, 16_384, FORMATS[5], Size::Large));
    all.push(swiglu(8192, Size::Wide));
    all.push(swiglu(32_768, Size::Large));
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
        let builtin: Function =
            Box::new(move |x| Ok(builtin::composition(&run(x, &peer)?)?.swap_remove(0)));
        Ok(Inputs {
            read: x.nbytes() + w.nbytes(),
            written: (rows * n) as usize * dtype.size(),
            products: Some((
                2.0 * f64::from(rows) * f64::from(n) * f64::from(K),
                product_of(dtype),
            )),
            x,
            ours: Box::new(move |x| run(x, &w)),
            builtin: (size != Size::Large).then_some(builtin),
        })
    };
    let shape = if n == K { vec![rows, K] } else { vec![rows, K, n] };
    Workload::new("quantized_linear", &shape, format.0, size, inputs)
        .because("eight rows of x are two times four, all that the registers hold sums for")
}

fn swiglu(n: i32, size: Size) -> Workload {
    let k = 2048;
    let inputs = move |dtype| {
        let x = ready(&[1, k], dtype, -1.0..1.0)?;
        let gain = ready(&[k], dtype, 0.8..1.2)?;
        let (gate, up) = (weight(n, k, dtype, FORMATS[0])?, weight(n, k, dtype, FORMATS[0])?);
        let read = x.nbytes() + gate.nbytes() + up.nbytes();
        let run = move |x: &Array| ops::quantized_swiglu(x, &gate, &up, Some((&gain, EPS)));
        let peer = run.clone();
        let builtin: Function =
            Box::new(move |x| Ok(builtin::composition(&peer(x)?)?.swap_remove(0)));
        Ok(Inputs {
            read,
            written: n as usize * dtype.size(),
            products: Some((4.0 * f64::from(n) * f64::from(k), product_of(dtype))),
            x,
            ours: Box::new(run),
            builtin: (size != Size::Large).then_some(builtin),
        })
    };
    Workload::new("quantized_swiglu", &[1, k, n], "4-bit", size, inputs)
}
