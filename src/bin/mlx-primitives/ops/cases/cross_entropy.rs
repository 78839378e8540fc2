use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Result, ops};

use super::{EXPONENTIALS, Function, Inputs, Size, Workload, ready};

pub fn workloads() -> Vec<Workload> {
    [
        (&[512, 2048][..], "", Size::Wide),
        (&[64, 32_000], "", Size::Wide),
        (&[256, 128_256], "", Size::Large),
        (&[64, 32_000], "gradient", Size::Wide),
        (&[256, 128_256], "gradient", Size::Large),
    ]
    .map(|(shape, variant, size)| workload(shape, variant, size))
    .into()
}

/// As `mlx.nn.losses.cross_entropy` computes it.
fn composed(x: &Array, targets: &Array) -> Result<Array> {
    let x = x.subtract(x.max(-1, true)?.stop_gradient()?)?;
    let score = x.take_along_axis(&targets.expand_dims(&[-1])?, -1)?.squeeze(&[-1])?;
    x.logsumexp(-1, false)?.subtract(score)
}

fn workload(shape: &'static [i32], variant: &'static str, size: Size) -> Workload {
    let inputs = move |dtype| {
        let x = ready(shape, dtype, -4.0..4.0)?;
        let targets: Vec<i32> = (0..shape[0]).map(|row| row * 7919 % shape[1]).collect();
        let targets = Array::from_slice(&targets, &shape[..1])?;
        targets.eval()?;
        let weights = ready(&shape[..1], dtype, 0.5..1.5)?;
        let rows = targets.nbytes() + weights.nbytes();
        let call = move |f: fn(&Array, &Array) -> Result<Array>| -> Function {
            let (targets, weights) = (targets.clone(), weights.clone());
            if variant.is_empty() {
                return Box::new(move |x| f(x, &targets));
            }
            Box::new(move |x| {
                let loss = |p: &[Array]| Ok(vec![f(&p[0], &targets)?]);
                Ok(vjp(loss, &[x], &[&weights])?.1.swap_remove(0))
            })
        };
        Ok(Inputs {
            // A gradient is of losses that have to be computed first.
            read: if variant.is_empty() { x.nbytes() } else { 2 * x.nbytes() } + rows,
            written: if variant.is_empty() { 0 } else { x.nbytes() },
            products: None,
            x,
            ours: call(|x, targets| ops::cross_entropy(x, targets, Default::default())),
            builtin: Some(call(composed)),
        })
    };
    Workload::new("cross_entropy", shape, variant, size, inputs).because(EXPONENTIALS)
}
