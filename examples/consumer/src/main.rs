//! Uses mlx-primitives from another crate: a norm, its gradient, and an attention-like softmax.

use mlx_primitives::{Array, Result, ops, transforms};

fn main() -> Result<()> {
    let x = Array::arange::<f32>(0.0, 12.0, 1.0)?.reshape([3, 4])?;
    let weight = Array::ones::<f32>(4)?;

    let y = ops::rms_norm(&x, Some(&weight), 1e-5)?;
    println!("rms_norm: {y}");

    let loss = |w: Array| ops::rms_norm(&x, Some(&w), 1e-5)?.square()?.sum(..);
    let (value, gradient) = transforms::value_and_grad(loss, &weight)?;
    println!("loss: {value}\ngradient: {gradient}");

    let scores = y.matmul(&y.t()?)?;
    println!("softmax: {}", ops::softmax(&scores)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependent_crate_links_and_runs() {
        let x = Array::from_slice(&[3.0f32, 4.0], &[1, 2]).unwrap();
        let y = ops::rms_norm(&x, None, 0.0).unwrap().to_vec::<f32>().unwrap();
        assert!((y[0] - 0.848_528).abs() < 1e-5, "{y:?}");
    }
}
