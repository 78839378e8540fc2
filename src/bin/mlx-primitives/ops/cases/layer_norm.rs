use mlx_primitives::{builtin, ops};

use super::{EPS, Inputs, ROUNDINGS, Size, Workload, ready};

pub fn workloads() -> Vec<Workload> {
    [
        (&[1, 1, 4096][..], Size::Decode),
        (&[8, 128, 768], Size::Prefill),
        (&[1, 512, 2048], Size::Prefill),
        (&[4, 2048, 4096], Size::Large),
    ]
    .map(|(shape, size)| workload(shape, size))
    .into()
}

fn workload(shape: &'static [i32], size: Size) -> Workload {
    let inputs = move |dtype| {
        let x = ready(shape, dtype, -4.0..4.0)?;
        let weight = ready(&shape[shape.len() - 1..], dtype, 0.8..1.2)?;
        let bias = ready(&shape[shape.len() - 1..], dtype, -0.2..0.2)?;
        let (w, b) = (weight.clone(), bias.clone());
        Ok(Inputs {
            read: x.nbytes() + 2 * weight.nbytes(),
            written: x.nbytes(),
            products: None,
            x,
            ours: Box::new(move |x| ops::layer_norm(x, Some(&w), Some(&b), EPS)),
            builtin: Some(Box::new(move |x| {
                builtin::layer_norm(x, Some(&weight), Some(&bias), EPS)
            })),
        })
    };
    Workload::new("layer_norm", shape, "", size, inputs).because(ROUNDINGS)
}
