use mlx_primitives::{Array, builtin, ops};

use super::{Inputs, Size, Workload, ready};

const GROUP: i32 = 64;

/// Keys and values of a decoded position, of a prompt, and a matrix of weights.
pub fn workloads() -> Vec<Workload> {
    let shapes = [
        (&[1, 16, 1, 64][..], 8, Size::Wide), // the result cannot be the next input
        (&[1, 16, 512, 64], 8, Size::Wide),
        (&[2048, 2048], 4, Size::Wide),
        (&[16_384, 2048], 8, Size::Large),
        (&[16_384, 2048], 4, Size::Large),
    ];
    let there = shapes.map(|(shape, bits, size)| workload(shape, bits, size, false));
    let back = shapes.map(|(shape, bits, size)| workload(shape, bits, size, true));
    there.into_iter().chain(back).collect()
}

fn workload(shape: &'static [i32], bits: i32, size: Size, back: bool) -> Workload {
    let inputs = move |dtype| {
        let x = ready(shape, dtype, -4.0..4.0)?;
        let (packed, scales, biases) = ops::quantize(&x, GROUP, bits)?;
        mlx_primitives::eval([&packed, &scales, &biases])?;
        let (read, written) = (x.nbytes(), packed.nbytes() + scales.nbytes() + biases.nbytes());
        if !back {
            return Ok(Inputs {
                read,
                written,
                products: None,
                x,
                ours: Box::new(move |x| Ok(ops::quantize(x, GROUP, bits)?.0)),
                builtin: Some(Box::new(move |x| {
                    Ok(builtin::composition(&ops::quantize(x, GROUP, bits)?.0)?.remove(0))
                })),
            });
        }
        let ours = move |x: &Array| ops::dequantize(x, &scales, &biases, GROUP, bits);
        let theirs = ours.clone();
        Ok(Inputs {
            read: written,
            written: read,
            products: None,
            x: packed,
            ours: Box::new(ours),
            builtin: Some(Box::new(move |x| Ok(builtin::composition(&theirs(x)?)?.remove(0)))),
        })
    };
    let variant = match (bits, back) {
        (4, false) => "4 bits",
        (_, false) => "8 bits",
        (4, true) => "4 bits back",
        (_, true) => "8 bits back",
    };
    Workload::new("quantize", shape, variant, size, inputs).because(
        "a group is gone through twice: for its extremes, and for a quotient of each element",
    )
}
