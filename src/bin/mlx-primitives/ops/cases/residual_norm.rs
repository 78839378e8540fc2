use mlx_primitives::{builtin, ops};

use super::{EPS, Function, Inputs, Size, Workload, ready};

pub fn workloads() -> Vec<Workload> {
    let shapes = [
        (&[1, 1, 4096][..], Size::Decode),
        (&[8, 128, 768], Size::Prefill),
        (&[1, 512, 2048], Size::Prefill),
        (&[4, 2048, 4096], Size::Large),
    ];
    let of = |op: &'static str| shapes.map(|(shape, size)| workload(op, shape, size));
    [of("rms_norm_residual"), of("layer_norm_residual")].into_iter().flatten().collect()
}

/// The sum is made by both, though the built-ins may overwrite it with the norm.
fn workload(op: &'static str, shape: &'static [i32], size: Size) -> Workload {
    let inputs = move |dtype| {
        let x = ready(shape, dtype, -4.0..4.0)?;
        let residual = ready(shape, dtype, -4.0..4.0)?;
        let weight = ready(&shape[shape.len() - 1..], dtype, 0.8..1.2)?;
        let bias = ready(&shape[shape.len() - 1..], dtype, -0.2..0.2)?;
        let vectors = if op == "rms_norm_residual" { 1 } else { 2 };
        let (r, w, b) = (residual.clone(), weight.clone(), bias.clone());
        let (ours, builtin): (Function, Function) = if op == "rms_norm_residual" {
            (
                Box::new(move |x| Ok(ops::rms_norm_residual(x, &r, Some(&w), EPS)?.1)),
                Box::new(move |x| builtin::rms_norm(&x.add(&residual)?, Some(&weight), EPS)),
            )
        } else {
            (
                Box::new(move |x| Ok(ops::layer_norm_residual(x, &r, Some(&w), Some(&b), EPS)?.1)),
                Box::new(move |x| {
                    builtin::layer_norm(&x.add(&residual)?, Some(&weight), Some(&bias), EPS)
                }),
            )
        };
        let row = x.nbytes() / x.size() * shape[shape.len() - 1] as usize;
        Ok(Inputs {
            read: 2 * x.nbytes() + vectors * row,
            written: 2 * x.nbytes(),
            products: None,
            x,
            ours,
            builtin: Some(builtin),
        })
    };
    Workload::new(op, shape, "", size, inputs)
}
