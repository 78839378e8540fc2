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
        let (ours, theirs) = (weight.clone(), weight.clone());
        Ok(Inputs {
            read: x.nbytes() + weight.nbytes(),
            written: x.nbytes(),
            products: None,
            x,
            ours: Box::new(move |x| ops::rms_norm(x, Some(&ours), EPS)),
            builtin: Some(Box::new(move |x| builtin::rms_norm(x, Some(&theirs), EPS))),
        })
    };
    Workload::new("rms_norm", shape, "", size, inputs).because(ROUNDINGS)
}
