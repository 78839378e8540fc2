//! If an array gets two gradients, the kernel of one gradient adds the other gradient. No
//! separate op adds them.

use mlx_primitives::ops::{self, LinearWeight, QuantizedMode, QuantizedWeight};
use mlx_primitives::transforms::{value_and_grad, vjp};
use mlx_primitives::{Array, Dtype, Result, graph};

use crate::support::compare::{assert_close, assert_same, numbers};
use crate::support::input::{FLOATS, random, random32};
use crate::support::{Checked, EPS, each_device, simulated};

/// Counts the nodes with this name in the graphs of the gradients.
fn count(name: &str, gradients: &[&Array]) -> Result<usize> {
    let nodes = graph::nodes(gradients.iter().copied())?;
    Ok(nodes.iter().filter(|node| node.name == name).count())
}

/// In a residual block, x gets the gradient of the norm and the gradient of the block's sum. One
/// kernel adds them. The test checks the gradient of the weight too.
#[test]
fn of_a_norm_and_its_input() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            let (x, w) = (random(&[5, 130], dtype, 1)?, random(&[130], dtype, 2)?);
            let (g, of_norm) = (random(&[5, 130], dtype, 3)?, random(&[5, 130], dtype, 4)?);
            let both = |(x, w): (Array, Array)| -> Result<(Array, Array)> {
                Ok((ops::rms_norm(&x, Some(&w), EPS)?, x.multiply(1.0)?))
            };
            let (of_x, of_w) = vjp(both, (&x, &w), (&of_norm, &g))?.1;
            assert_eq!(
                (count("Add", &[&of_x, &of_w])?, count("NormGrad", &[&of_x, &of_w])?),
                (0, 1)
            );
            let norm = |(x, w): (Array, Array)| ops::rms_norm(&x, Some(&w), EPS);
            let (alone, of_w_alone) = vjp(norm, (&x, &w), &of_norm)?.1;
            assert_same(&of_w, &of_w_alone, "the weight")?;
            let (sum, want) = (numbers(&of_x)?, numbers(&alone.add(&g)?)?);
            let tolerance = if dtype == Dtype::Float32 { 1e-5 } else { 0.1 };
            assert_close(&sum, &want, tolerance, dtype.name());
        }
        Ok(())
    })
}

/// The kernel rounds its product before it adds the other product. So the result equals the sum of
/// two separate products in every bit.
#[test]
fn of_two_products() -> Checked {
    for dtype in FLOATS {
        let x = random(&[2, 9, 40], dtype, 1)?;
        let (w, v) = (random(&[33, 40], dtype, 2)?, random(&[33, 40], dtype, 3)?);
        let g = random(&[2, 9, 33], dtype, 4)?;
        let linear = |x: &Array, w: &Array| ops::linear(x, w, ops::Linear::default());
        let both = |x: Array| Ok((linear(&x, &w)?, linear(&x, &v)?));
        let of_x = vjp(both, &x, (&g, &g))?.1;
        assert_eq!(count("Add", &[&of_x])?, 0);
        if !simulated() {
            // On a GPU, MLX may compute these products, and need not round them before it adds.
            let [a, b] = [&w, &v].map(|w| vjp(|x: Array| linear(&x, w), &x, &g));
            assert_same(&of_x, &a?.1.add(&b?.1)?, dtype.name())?;
        }
    }
    Ok(())
}

/// A low-rank product already adds the product with the base weight. It can add another gradient
/// too.
#[test]
fn of_products_that_add_already() -> Checked {
    let x = random32(&[2, 9, 64], 1)?;
    let g = random32(&[2, 9, 32], 2)?;
    let [w, v] = [3, 4].map(|seed| random32(&[32, 64], seed));
    let packed = QuantizedWeight::quantize(&w?, 32, 4, QuantizedMode::Affine)?;
    let weights = [LinearWeight::from(packed), LinearWeight::from(v?)];
    let (a, b) = (random32(&[4, 64], 5)?, random32(&[32, 4], 6)?);
    let lora = |x: &Array, weight: &LinearWeight| ops::lora_linear(x, weight, &a, &b, 2.0);
    let alone = weights.each_ref().map(|weight| vjp(|x: Array| lora(&x, weight), &x, &g));
    let all = |x: Array| Ok((lora(&x, &weights[0])?, lora(&x, &weights[1])?));
    let of_x = vjp(all, &x, (&g, &g))?.1;
    assert_eq!(count("Add", &[&of_x])?, 0);
    let [of_packed, of_plain] = alone;
    let want = of_packed?.1.add(&of_plain?.1)?;
    assert_close(&numbers(&of_x)?, &numbers(&want)?, 1e-3, "sum");
    Ok(())
}

/// A gradient that is also a result is computed only once.
#[test]
fn of_a_product_that_is_a_result() -> Checked {
    let (x, y, w) = (random32(&[4, 32], 1)?, random32(&[4, 32], 2)?, random32(&[8, 32], 3)?);
    let g = random32(&[4, 8], 4)?;
    for first in [true, false] {
        let both = |(x, y): (Array, Array)| {
            let (shared, own) = (ops::matmul_nt(&x.add(&y)?, &w)?, ops::matmul_nt(&y, &w)?);
            Ok(if first { (shared, own) } else { (own, shared) })
        };
        let (of_x, of_y) = vjp(both, (&x, &y), (&g, &g))?.1;
        let products = ["Linear", "Matmul", "AddMM"].map(|name| count(name, &[&of_x, &of_y]));
        let products: Result<Vec<usize>> = products.into_iter().collect();
        assert_eq!((products?.iter().sum::<usize>(), count("Add", &[&of_x, &of_y])?), (2, 0));
        let want = numbers(&of_x.add(&of_x)?)?;
        assert_close(&numbers(&of_y)?, &want, 1e-5, "twice");
    }
    Ok(())
}

/// Here x is both the input and the weight of one norm. Its gradient is the sum of two results of
/// the same kernel.
#[test]
fn of_a_norm_by_its_own_row() -> Checked {
    each_device(|_| {
        let x = random32(&[6], 1)?;
        let norm = |x: &Array| -> Result<Array> {
            ops::rms_norm(&x.reshape((1, 6))?, Some(x), EPS)?.square()?.sum(..)
        };
        let (_, gradient) = value_and_grad(|x: Array| norm(&x), &x)?;
        let at = numbers(&x)?;
        for (i, got) in numbers(&gradient)?.into_iter().enumerate() {
            let moved = |by: f32| -> Result<f64> {
                let mut x: Vec<f32> = at.iter().map(|&x| x as f32).collect();
                x[i] += by;
                Ok(f64::from(norm(&Array::from_slice(&x, 6)?)?.item::<f32>()?))
            };
            let want = (moved(1e-2)? - moved(-1e-2)?) / 2e-2;
            assert!((got - want).abs() < 2e-2 * (1.0 + want.abs()), "{i}: {got}, {want}");
        }
        Ok(())
    })
}

/// On a CPU, one node computes the gradients of `affine` with respect to x and both vectors. It can
/// also add another gradient of x.
#[test]
fn of_an_affine_map_and_its_input() -> Checked {
    for dtype in FLOATS {
        let (x, g) = (random(&[5, 70], dtype, 1)?, random(&[5, 70], dtype, 2)?);
        let vectors = (random(&[70], dtype, 3)?, random(&[70], dtype, 4)?);
        let map = |(x, w, c): (Array, Array, Array)| ops::affine(&x, &w, &c);
        let (of_x, of_w, of_c) = vjp(map, (&x, &vectors.0, &vectors.1), &g)?.1;
        let nodes = count("NormGrad", &[&of_x, &of_w, &of_c])?;
        assert_eq!(nodes, usize::from(!simulated()));
        let want = [
            g.multiply(&vectors.0)?,
            g.astype(Dtype::Float32)?.multiply(&x.astype(Dtype::Float32)?)?.sum(0)?,
            g.astype(Dtype::Float32)?.sum(0)?,
        ];
        let near = if dtype == Dtype::Float32 { 1e-5 } else { 0.05 };
        for (of, want) in [of_x, of_w, of_c].iter().zip(&want) {
            assert_close(&numbers(of)?, &numbers(want)?, near, dtype.name());
        }
        let both = |x: Array| -> Result<(Array, Array)> {
            Ok((ops::affine(&x, &vectors.0, &vectors.1)?, x.multiply(1.0)?))
        };
        let sum = vjp(both, &x, (&g, &g))?.1;
        if !simulated() {
            assert_eq!(count("Add", &[&sum])?, 0);
        }
        let want = numbers(&g.multiply(&vectors.0)?.add(&g)?)?;
        assert_close(&numbers(&sum)?, &want, 2.0 * near, "a sum");
    }
    Ok(())
}
