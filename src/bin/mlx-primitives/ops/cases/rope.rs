use mlx_primitives::{Array, builtin, ops};

use super::{Inputs, ROUNDINGS, Size, Workload, ready};

pub fn workloads() -> Vec<Workload> {
    [
        (&[1, 32, 1, 64][..], "", Size::Decode),
        (&[1, 32, 512, 64], "", Size::Prefill),
        (&[1, 32, 512, 64], "traditional", Size::Prefill),
        (&[4, 32, 2048, 128], "", Size::Large),
        (&[4, 32, 2048, 128], "traditional", Size::Large),
    ]
    .map(|(shape, variant, size)| workload(shape, variant, size))
    .into()
}

const BASE: f32 = 10_000.0;

fn workload(shape: &'static [i32], variant: &'static str, size: Size) -> Workload {
    let traditional = variant == "traditional";
    let dims = shape[shape.len() - 1];
    let inputs = move |dtype| {
        let x = ready(shape, dtype, -4.0..4.0)?;
        let offset = Array::scalar(100i32)?;
        offset.eval()?;
        let (ours, theirs) = (offset.clone(), offset);
        Ok(Inputs {
            read: x.nbytes(),
            written: x.nbytes(),
            products: None,
            x,
            ours: Box::new(move |x| ops::rope(x, dims, traditional, Some(BASE), 1.0, &ours, None)),
            builtin: Some(Box::new(move |x| {
                builtin::rope(x, dims, traditional, Some(BASE), 1.0, &theirs, None)
            })),
        })
    };
    Workload::new("rope", shape, variant, size, inputs).because(ROUNDINGS)
}
