use mlx_primitives::{builtin, ops};

use super::{EXPONENTIALS, Inputs, Size, Workload, ready};

pub fn workloads() -> Vec<Workload> {
    [
        (&[1, 1, 4096][..], Size::Decode),
        (&[1, 32, 1, 512], Size::Decode),
        (&[8, 128, 768], Size::Prefill),
        (&[1, 512, 2048], Size::Wide),
        (&[1, 32, 512, 512], Size::Wide),
        (&[4, 2048, 4096], Size::Large),
    ]
    .map(|(shape, size)| workload(shape, size))
    .into()
}

fn workload(shape: &'static [i32], size: Size) -> Workload {
    let inputs = move |dtype| {
        let x = ready(shape, dtype, -4.0..4.0)?;
        Ok(Inputs {
            read: x.nbytes(),
            written: x.nbytes(),
            products: None,
            x,
            ours: Box::new(ops::softmax),
            builtin: Some(Box::new(builtin::softmax)),
        })
    };
    Workload::new("softmax", shape, "", size, inputs).because(EXPONENTIALS)
}
