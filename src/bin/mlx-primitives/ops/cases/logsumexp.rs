use mlx_primitives::ops;

use super::{EXPONENTIALS, Inputs, Size, Workload, ready};

pub fn workloads() -> Vec<Workload> {
    let shapes = [
        (&[1, 1, 4096][..], Size::Decode),
        (&[1, 1, 128_256], Size::Wide),
        (&[1, 512, 2048], Size::Wide),
        (&[1, 256, 128_256], Size::Large),
    ];
    let logs = shapes.map(|(shape, size)| {
        // A result is no input for the next.
        logsumexp(shape, if size == Size::Decode { Size::Wide } else { size })
    });
    logs.into_iter().chain(shapes.map(|(shape, size)| log_softmax(shape, size))).collect()
}

fn logsumexp(shape: &'static [i32], size: Size) -> Workload {
    let inputs = move |dtype| {
        let x = ready(shape, dtype, -4.0..4.0)?;
        Ok(Inputs {
            read: x.nbytes(),
            written: x.nbytes() / shape[shape.len() - 1] as usize,
            products: None,
            x,
            ours: Box::new(|x| ops::logsumexp(x, true)),
            builtin: Some(Box::new(|x| x.logsumexp(-1, true))),
        })
    };
    Workload::new("logsumexp", shape, "", size, inputs).because(EXPONENTIALS)
}

fn log_softmax(shape: &'static [i32], size: Size) -> Workload {
    let inputs = move |dtype| {
        let x = ready(shape, dtype, -4.0..4.0)?;
        Ok(Inputs {
            read: x.nbytes(),
            written: x.nbytes(),
            products: None,
            x,
            ours: Box::new(ops::log_softmax),
            builtin: Some(Box::new(|x| x.subtract(x.logsumexp(-1, true)?))),
        })
    };
    Workload::new("log_softmax", shape, "", size, inputs).because(EXPONENTIALS)
}
