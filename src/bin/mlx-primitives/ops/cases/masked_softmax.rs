use mlx_primitives::{Array, Dtype, Result, builtin, ops};

use super::{EXPONENTIALS, Inputs, Size, Workload, ready};

pub fn workloads() -> Vec<Workload> {
    [
        (&[1, 32, 1, 512][..], "scaled", Size::Decode),
        (&[1, 32, 1, 512], "bool", Size::Decode),
        (&[1, 32, 1, 4096], "sliding", Size::Decode),
        (&[1, 8, 512, 512], "causal", Size::Wide),
        (&[1, 8, 512, 512], "bool", Size::Wide),
        (&[1, 8, 512, 512], "additive", Size::Wide),
        (&[1, 32, 1024, 1024], "causal", Size::Large),
        (&[1, 32, 1024, 1024], "bool", Size::Large),
        (&[1, 32, 1024, 1024], "additive", Size::Large),
    ]
    .map(|(shape, variant, size)| workload(shape, variant, size))
    .into()
}

const WINDOW: i32 = 512;

fn mask(variant: &str, shape: &[i32], dtype: Dtype) -> Result<Option<Array>> {
    let numbers = || ready(&shape[2..], dtype, -4.0..4.0);
    let mask = match variant {
        "bool" => numbers()?.greater(-3.0)?,
        "additive" => numbers()?,
        _ => return Ok(None),
    };
    mask.eval()?;
    Ok(Some(mask))
}

fn workload(shape: &'static [i32], variant: &'static str, size: Size) -> Workload {
    let inputs = move |dtype| {
        let x = ready(shape, dtype, -4.0..4.0)?;
        let mask = mask(variant, shape, dtype)?;
        let sliding = variant == "sliding";
        let mask_bytes = mask.as_ref().map_or(0, Array::nbytes);
        let call = move |x: &Array| {
            ops::masked_softmax(
                x,
                ops::SoftmaxOptions {
                    scale: 0.125,
                    mask: mask.as_ref(),
                    causal: variant == "causal",
                    window: sliding.then_some(WINDOW),
                },
            )
        };
        let (queries, keys) = (shape[2] as usize, shape[3] as usize);
        let seen = match variant {
            "causal" => x.nbytes() / (queries * keys) * (queries * (queries + 1) / 2),
            "sliding" => x.nbytes() / keys * WINDOW as usize,
            _ => x.nbytes(),
        };
        let theirs = call.clone();
        Ok(Inputs {
            read: seen + mask_bytes,
            written: x.nbytes(),
            products: None,
            x,
            ours: Box::new(call),
            builtin: Some(Box::new(move |x| Ok(builtin::composition(&theirs(x)?)?.swap_remove(0)))),
        })
    };
    Workload::new("masked_softmax", shape, variant, size, inputs).because(EXPONENTIALS)
}
