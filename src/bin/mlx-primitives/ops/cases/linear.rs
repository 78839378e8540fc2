use mlx_primitives::ops::{self, Activation, LinearOptions};
use mlx_primitives::{Array, Dtype, Result};

use super::{Function, Inputs, Size, Workload, product_of, ready};

pub fn workloads() -> Vec<Workload> {
    let layers = [
        (1, 2048, "", Size::Decode),
        (1, 2048, "bias, silu, residual", Size::Decode),
        (8, 2048, "8 rows", Size::Decode),
        (512, 2048, "", Size::Wide),
        (1, 8192, "up", Size::Wide),
        (1, 32_768, "to 32768", Size::Large),
        (8, 32_768, "8 rows to 32768", Size::Large),
        (512, 16_384, "to 16384", Size::Large),
    ];
    let products = [
        (1, 2048, "", Size::Decode),
        (512, 2048, "", Size::Wide),
        (1, 32_768, "to 32768", Size::Large),
        (512, 16_384, "to 16384", Size::Large),
    ];
    let layers = layers.map(|(m, n, variant, size)| layer(m, n, variant, size));
    let products = products.map(|(m, n, variant, size)| product(m, n, variant, size));
    layers.into_iter().chain(products).collect()
}

/// Inner extent of all.
const K: i32 = 2048;

/// x, w and what moves and is computed at least.
fn inputs(
    m: i32,
    w: Array,
    n: i32,
    dtype: Dtype,
    size: Size,
    functions: impl FnOnce(Array) -> Result<(Function, Function)>,
) -> anyhow::Result<Inputs> {
    let x = ready(&[1, m, K], dtype, -1.0..1.0)?;
    let flops = 2.0 * f64::from(m) * f64::from(n) * f64::from(K);
    let written = x.nbytes() / K as usize * n as usize;
    let read = x.nbytes() + w.nbytes();
    let (ours, builtin) = functions(w)?;
    // MLX's takes seconds on large ones.
    let builtin = (size != Size::Large).then_some(builtin);
    let products = Some((flops, product_of(dtype)));
    Ok(Inputs { x, ours, builtin, read, written, products })
}

fn layer(m: i32, n: i32, variant: &'static str, size: Size) -> Workload {
    let full = variant.starts_with("bias");
    let inputs = move |dtype| {
        // Of a size that keeps a chain's numbers as they are.
        let w = ready(&[n, K], dtype, -0.035..0.035)?;
        inputs(m, w, n, dtype, size, |w| {
            let bias = ready(&[n], dtype, -0.1..0.1)?;
            let residual = ready(&[1, m, n], dtype, -0.1..0.1)?;
            let columns = w.t()?;
            let (their_bias, their_residual) = (bias.clone(), residual.clone());
            let ours = move |x: &Array| {
                let mut options = LinearOptions::default();
                if full {
                    (options.bias, options.residual) = (Some(&bias), Some(&residual));
                    options.activation = Some(Activation::Silu);
                }
                ops::linear(x, &w, &options)
            };
            let builtin = move |x: &Array| {
                let y = x.matmul(&columns)?;
                if !full {
                    return Ok(y);
                }
                let y = y.add(&their_bias)?;
                y.multiply(&y.sigmoid()?)?.add(&their_residual)
            };
            Ok((Box::new(ours), Box::new(builtin)))
        })
    };
    Workload::new("linear", &[1, m, K], variant, size, inputs)
        .because("eight rows of x are two times four, all that the registers hold sums for")
}

fn product(m: i32, n: i32, variant: &'static str, size: Size) -> Workload {
    let inputs = move |dtype| {
        let w = ready(&[K, n], dtype, -0.035..0.035)?;
        inputs(m, w, n, dtype, size, |w| {
            let theirs = w.clone();
            Ok((
                Box::new(move |x: &Array| ops::matmul(x, &w, false)),
                Box::new(move |x: &Array| x.matmul(&theirs)),
            ))
        })
    };
    Workload::new("matmul", &[1, m, K], variant, size, inputs)
        .because("columns of w are turned into rows first, out of lines that lie far apart")
}
