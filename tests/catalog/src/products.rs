//! Rows of the catalog for matrix products: plain products and linear layers.

use mlx_primitives_check::{Bound, Check, Conformance, Tensor};
use mlx_primitives::ops::{self, Activation, Linear};
use mlx_primitives::{Array, Dtype, Result};

use crate::reference_loops;

use super::inputs::{Checked, ulp};
use super::reference::{gelu, gelu_tanh, silu};
use super::{broadcast, composed, derivatives_of_ops, exact, only, Hold};

/// The error of a sum of k products in f32. In the worst case each addition adds half an ulp of the
/// sum of magnitudes. With random signs the error grows with the square root of k. The bound is 8
/// times this error, for safety.
fn slack(magnitude: f64, k: usize) -> f64 {
    magnitude * 2f64.powi(-24) * 8.0 * (4.0 + (k as f64).sqrt())
}

/// Multiplies `x [..., k]` by each row of `w [..., n, k]`. Returns the sums of the terms, and the
/// sums of the terms' magnitudes. The leading axes of x and w are broadcast to each other.
pub(super) fn products(x: &Tensor, w: &Tensor) -> [Tensor; 2] {
    let (k, n) = (x.shape.last().copied().unwrap_or(0), w.shape[w.shape.len() - 2]);
    let m = if x.shape.len() > 1 { x.shape[x.shape.len() - 2] } else { 1 };
    let batches = |t: &Tensor| t.shape[..t.shape.len().saturating_sub(2)].to_vec();
    let (of_x, of_w) = (batches(x), batches(w));
    let rank = of_x.len().max(of_w.len());
    let long = |shape: &[usize]| [vec![1; rank - shape.len()], shape.to_vec()].concat();
    let (long_x, long_w) = (long(&of_x), long(&of_w));
    let all: Vec<usize> =
        long_x.iter().zip(&long_w).map(|(&a, &b)| if a == 1 { b } else { a }).collect();
    let (mut sums, mut magnitudes) = (Vec::new(), Vec::new());
    for batch in 0..all.iter().product() {
        let (a, b) = (broadcast(&all, &long_x, batch), broadcast(&all, &long_w, batch));
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let row = &x.values[(a * m + i) * k..][..k];
            let (sum, magnitude) = reference_loops::dot(row, &w.values[(b * n + j) * k..][..k]);
            sums.push(sum);
            magnitudes.push(magnitude);
        }
    }
    let rows = &x.shape[x.shape.len().saturating_sub(2)..x.shape.len() - 1];
    let shape = [&all, rows, &[n]].concat();
    [sums, magnitudes].map(|values| Tensor::new(shape.clone(), values))
}

/// The sizes [m, n, k]: few rows, full tiles, incomplete tiles in both directions, and a k that is
/// longer than the chunks and blocks in which kernels process it.
const EXTENTS: [[i32; 3]; 15] = [
    [1, 1, 1],
    [1, 37, 100],
    [2, 16, 31],
    [3, 5, 130],
    [4, 33, 1029],
    [5, 40, 2],
    [8, 70, 600],
    [1, 3, 4100],
    [9, 7, 33],
    [16, 65, 40],
    [33, 31, 17],
    [40, 64, 64],
    [65, 70, 5],
    [0, 5, 3],
    [20, 0, 3],
];

fn plain(x: &[Array]) -> Result<Array> {
    ops::linear(&x[0], &x[1], Linear::default())
}

/// MLX's ops and our ops each round once, after the sum.
fn product_row() -> Conformance {
    let op = |x: &[Array]| {
        let columns = x[1].t()?;
        let held = columns.contiguous()?;
        Ok(vec![
            plain(x)?,
            ops::matmul_nt(&x[0], &x[1])?,
            ops::matmul(&x[0], &columns)?,
            ops::matmul(&x[0], &held)?,
        ])
    };
    let mut row = Conformance::new("products", op, |x| {
        let [sums, _] = products(&x[0], &x[1]);
        vec![sums; 4]
    })
    .bounds(|_| Bound::ulps(0.51))
    .errors(|compared| {
        let x = compared.inputs;
        let [_, magnitudes] = products(&x[0], &x[1]);
        let times = if compared.peer { 2.0 } else { 1.0 };
        let k = x[0].shape.last().copied().unwrap_or(0);
        vec![magnitudes.map(|magnitude| times * slack(magnitude, k)); 4]
    })
    .peer(composed(op), |_| Bound::ulps(1.0))
    .extremes_as_peer()
    .derivative_bounds(derivatives_of_ops(3e-5, 9.0));
    for [m, n, k] in EXTENTS {
        row = row.sizes(&[&[m, k], &[n, k]]);
    }
    for shape in [&[1, 10][..], &[2, 1, 3, 10], &[2, 0, 10]] {
        row = row.sizes(&[shape, &[6, 10]]);
    }
    row.shapes(&[&[3, 12], &[9, 12]]).shapes(&[&[12, 5], &[7, 5]])
}

pub(super) fn products_of_matrices(hold: &Hold<'_>) -> Checked {
    hold(product_row().without(Check::Extremes, "sums overflow as their order has it"))?;
    // The row excludes bfloat16, because its products may overflow the float32 sum. Our result is
    // then NaN, but MLX's is not.
    let row = product_row().dtypes(&[Dtype::Float32, Dtype::Float16]);
    hold(only(Check::Extremes, row.range(0.5, 3.0)))
}

/// Tests batches that are broadcast to each other. A result is the sum of ten products, each at
/// most 9.
pub(super) fn products_of_batches(hold: &Hold<'_>) -> Checked {
    let op = |x: &[Array]| {
        Ok(vec![ops::matmul_nt(&x[0], &x[1])?, ops::matmul(&x[0], &x[1].t()?)?])
    };
    let mut row = Conformance::new("batches", op, |x| {
        let [sums, _] = products(&x[0], &x[1]);
        vec![sums; 2]
    })
    .bounds(|_| Bound { absolute: slack(90.0, 10), ..Bound::ulps(0.51) })
    .peer(composed(op), |_| Bound { absolute: 2.0 * slack(90.0, 10), ..Bound::ulps(1.0) })
    // Kernels for few rows and kernels for many rows add in different orders, and each result is
    // rounded.
    .vmap_bounds(|_| Bound { absolute: 2.0 * slack(90.0, 10), ..Bound::ulps(1.0) })
    .derivative_bounds(derivatives_of_ops(3e-5, 9.0))
    .without(Check::Extremes, "the products of matrices have them");
    for (a, b) in [
        (&[3, 4, 10][..], &[3, 5, 10][..]),
        (&[2, 3, 20, 10], &[3, 5, 10]),
        (&[4, 10], &[2, 5, 10]),
        (&[2, 1, 4, 10], &[1, 3, 5, 10]),
        (&[2, 3, 4, 10], &[5, 10]),
    ] {
        row = row.shapes(&[a, b]);
    }
    hold(row)
}

type Function = fn(f64) -> f64;

const ACTIVATIONS: [(Option<Activation>, Function); 5] = [
    (None, |z| z),
    (Some(Activation::Relu), |z| z.max(0.0)),
    (Some(Activation::Gelu), gelu),
    (Some(Activation::GeluTanh), gelu_tanh),
    (Some(Activation::Silu), silu),
];

/// Tests that the fused steps have the same bits as our separate ops. The difference from the f64
/// reference is bounded by four roundings: of the product, of the sum with the bias, of the
/// activation, whose slope is at most 1.13, and of the result.
pub(super) fn linear(hold: &Hold<'_>) -> Checked {
    for (activation, of) in ACTIVATIONS {
        for residual_alone in [false, true] {
            let parts = move |x: &[Array]| {
                let [bias, residual] =
                    if residual_alone { [None, x.get(2)] } else { [x.get(2), x.get(3)] };
                [bias.cloned(), residual.cloned()]
            };
            let op = move |x: &[Array]| {
                let [bias, residual] = parts(x);
                let options =
                    Linear { bias: bias.as_ref(), activation, residual: residual.as_ref() };
                Ok(vec![ops::linear(&x[0], &x[1], options)?])
            };
            let steps = move |x: &[Array]| {
                let [bias, residual] = parts(x);
                let mut y = plain(x)?;
                if let Some(bias) = bias {
                    y = y.add(bias)?;
                }
                y = match activation {
                    None => y,
                    Some(Activation::Relu) => ops::relu(&y)?,
                    Some(Activation::Gelu) => ops::gelu(&y)?,
                    Some(Activation::GeluTanh) => ops::gelu_tanh(&y)?,
                    Some(Activation::Silu) => ops::silu(&y)?,
                };
                Ok(vec![match residual {
                    Some(residual) => y.add(residual)?,
                    None => y,
                }])
            };
            let exactly = move |x: &[Tensor]| {
                let [mut y, _] = products(&x[0], &x[1]);
                let n = x[1].shape[0];
                let [bias, residual] =
                    if residual_alone { [None, x.get(2)] } else { [x.get(2), x.get(3)] };
                for (i, y) in y.values.iter_mut().enumerate() {
                    let z = *y + bias.map_or(0.0, |bias| bias.values[i % n]);
                    *y = of(z) + residual.map_or(0.0, |residual| residual.values[i]);
                }
                vec![y]
            };
            let mut row = Conformance::new(format!("linear, {activation:?}"), op, exactly)
                .range(-1.2, 1.2)
                .bounds(|_| Bound::ulps(0.51))
                .errors(|compared| {
                    let x = compared.inputs;
                    let [y, magnitudes] = products(&x[0], &x[1]);
                    let k = x[0].shape.last().copied().unwrap_or(0);
                    let one = ulp(1.0, compared.dtype);
                    let error = |(y, magnitude): (&f64, &f64)| {
                        let sums = slack(*magnitude, k) + 1.5 * one * (y.abs() + 1.2);
                        if compared.peer { 0.0 } else { 1.13 * sums + 6.0 * one * (y.abs() + 1.2) }
                    };
                    let errors = y.values.iter().zip(&magnitudes.values).map(error);
                    vec![Tensor::new(y.shape.clone(), errors.collect::<Vec<_>>())]
                })
                .peer(steps, exact)
                .extremes_as_peer()
                .derivative_bounds(derivatives_of_ops(3e-5, 9.0));
            // For the other activations, only the values are checked.
            let whole = matches!(activation, None | Some(Activation::Silu | Activation::Gelu));
            let inputs: &[usize] = if residual_alone { &[3] } else { &[2, 3, 4] };
            for &inputs in inputs {
                let add = |row: Conformance, lead: &[i32], n: i32, k: i32, whole: bool| {
                    let (x, y, w) = ([lead, &[k]].concat(), [lead, &[n]].concat(), [n, k]);
                    let third: &[i32] = if residual_alone { &y } else { &[n] };
                    let all = [&x[..], &w, third, &y];
                    let all = &all[..inputs];
                    if whole { row.shapes(all) } else { row.sizes(all) }
                };
                for (m, n, k) in [(1, 19, 40), (6, 33, 24), (35, 41, 16)] {
                    row = add(row, &[1, m], n, k, false);
                }
                for (m, n) in [(1, 5), (20, 40), (3, 0), (0, 3)] {
                    row = add(row, &[m], n, 0, false);
                }
                row = add(row, &[], 4, 10, false);
                row = add(row, &[2, 5], 9, 12, activation == Some(Activation::Silu));
                row = add(row, &[3], 4, 5, whole);
            }
            if whole { hold(row)? } else { hold(only(Check::Values, row))? }
        }
    }
    Ok(())
}
