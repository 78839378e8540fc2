use mlx_primitives::ops;

use super::{Inputs, Size, Workload, ready};

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
            ideal_bytes: x.nbytes() + x.nbytes() / shape[shape.len() - 1] as usize,
            flops: 0.0,
            x,
            ours: Box::new(|x| ops::logsumexp(x, true)),
            builtin: Box::new(|x| x.logsumexp(-1, true)),
        })
    };
    Workload { op: "logsumexp", shape: shape.to_vec(), variant: "", size, inputs: Box::new(inputs) }
}

fn log_softmax(shape: &'static [i32], size: Size) -> Workload {
    let inputs = move |dtype| {
        let x = ready(shape, dtype, -4.0..4.0)?;
        Ok(Inputs {
            ideal_bytes: 2 * x.nbytes(),
            flops: 0.0,
            x,
            ours: Box::new(ops::log_softmax),
            builtin: Box::new(|x| x.subtract(x.logsumexp(-1, true)?)),
        })
    };
    Workload {
        op: "log_softmax",
        shape: shape.to_vec(),
        variant: "",
        size,
        inputs: Box::new(inputs),
    }
}
