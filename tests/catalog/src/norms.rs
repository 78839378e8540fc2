//! Rows of the catalog for normalizations.

use mlx_primitives_check::{Bound, Compared, Conformance, Tensor};
use mlx_primitives::{Array, Dtype, Result, builtin, ops};

use super::inputs::{Checked, EPS, ulp};
use super::{axis, composed, derivatives, derivatives_of_ops, exact, row_sizes, share, Hold};

/// A normalized element in f64, and the factors to which its errors are proportional.
struct Normed {
    y: f64,
    /// The input, the normalized value before the product with the weight, and the weight.
    x: f64,
    normalized: f64,
    weight: f64,
    /// Numbers of the element's row: the mean of the magnitudes, and the reciprocal of the standard
    /// deviation.
    magnitude: f64,
    inverse: f64,
}

fn normed(
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    centered: bool,
    eps: f32,
) -> Vec<Normed> {
    let axis = x.shape.last().copied().unwrap_or(1);
    let mean = |row: &[f64], of: &dyn Fn(f64) -> f64| {
        row.iter().map(|&v| of(v)).sum::<f64>() / axis as f64
    };
    let of_row = |row: &[f64]| {
        let center = if centered { mean(row, &|v| v) } else { 0.0 };
        let inverse = 1.0 / (mean(row, &|v| (v - center).powi(2)) + f64::from(eps)).sqrt();
        let magnitude = mean(row, &f64::abs);
        let element = |(i, &x): (usize, &f64)| {
            let (normalized, weight) =
                ((x - center) * inverse, weight.map_or(1.0, |w| w.values[i]));
            let y = normalized * weight + bias.map_or(0.0, |b| b.values[i]);
            Normed { y, x, normalized, weight, magnitude, inverse }
        };
        row.iter().enumerate().map(element).collect::<Vec<_>>()
    };
    x.values.chunks_exact(axis.max(1)).flat_map(of_row).collect()
}

fn tensor(like: &Tensor, all: &[Normed], of: impl Fn(&Normed) -> f64) -> Tensor {
    Tensor::new(like.shape.clone(), all.iter().map(of).collect::<Vec<_>>())
}

/// In 16 bits, the normalized value and the product are each rounded once, by half an ulp. If the
/// last bit of the value changes, the product can change by two ulps. In f32, four roundings follow
/// the sum of squares. The square root halves the error of this sum. The sum's error stays below
/// one ulp, because the terms are positive and are added in 64 chains whose errors average out. MLX
/// adds in fewer chains, so its error is a random walk of one-ulp steps over the full axis.
///
/// In 16 bits, our op rounds the same intermediate values as MLX. If a normalized value is rounded
/// in another direction than MLX's, the product may be too.
pub(super) fn rms_norm(hold: &Hold<'_>) -> Checked {
    for eps in [EPS, 0.0] {
        let row = Conformance::new(
            format!("rms_norm, epsilon {eps}"),
            move |x| Ok(vec![ops::rms_norm(&x[0], x.get(1), eps)?]),
            move |x| vec![tensor(&x[0], &normed(&x[0], x.get(1), None, false, eps), |e| e.y)],
        )
        .bounds(|compared| Bound::ulps(if compared.dtype == Dtype::Float32 { 4.0 } else { 2.0 }))
        .peer(
            move |x| Ok(vec![builtin::rms_norm(&x[0], x.get(1), eps)?]),
            |compared| match compared.dtype {
                Dtype::Float32 => Bound::ulps(5.0 + (axis(compared.inputs) as f64).sqrt()),
                _ => Bound { same: share(compared, 0.98), ..Bound::ulps(3.0) },
            },
        )
        .extremes_as_peer()
        .vmap_bounds(exact)
        .derivative_bounds(derivatives(2e-5));
        let elements = if eps == 0.0 { 1000 } else { 100_000 };
        hold(row_sizes(row_sizes(row, elements, 1, 0), elements, 1, 1))?;
    }
    Ok(())
}

/// In f32, the error of the mean is a few half ulps of the elements' magnitude. The difference x -
/// mean adds half an ulp, and the standard deviation and the products add a few more. At most three
/// roundings to the type follow. The row's `bounds` cover the last rounding. MLX adds in one
/// chain, so the error of its sums is a random walk of half-ulp steps over the full axis.
fn errors_of_layer_norm(all: &[Normed], like: &Tensor, compared: &Compared<'_>) -> Tensor {
    let (dtype, chain) = (compared.dtype, 2.0 + (axis(compared.inputs) as f64).sqrt() / 4.0);
    let (times, rounds) = if compared.peer { (chain, 2.0) } else { (1.0, 1.0) };
    tensor(like, all, |e| {
        let weight = e.weight.abs();
        let centered = (6.0 * e.magnitude + e.x.abs()) * e.inverse + 6.0 * e.normalized.abs();
        let rounded = ulp(e.normalized, dtype) * weight + ulp(e.normalized * e.weight, dtype);
        times * 2f64.powi(-24) * centered * weight + rounds * rounded / 2.0
    })
}

/// Returns the weight and the bias, which are the inputs from the index `first` on. If there is one
/// vector, it is the bias if `bias_alone` is true, and otherwise the weight.
fn vectors<T>(x: &[T], first: usize, bias_alone: bool) -> (Option<&T>, Option<&T>) {
    if bias_alone { (None, x.get(first)) } else { (x.get(first), x.get(first + 1)) }
}

pub(super) fn layer_norm(hold: &Hold<'_>) -> Checked {
    for bias_alone in [false, true] {
        let op = move |x: &[Array]| {
            let (weight, bias) = vectors(x, 1, bias_alone);
            Ok(vec![ops::layer_norm(&x[0], weight, bias, EPS)?])
        };
        let of = move |x: &[Tensor]| {
            let (weight, bias) = vectors(x, 1, bias_alone);
            normed(&x[0], weight, bias, true, EPS)
        };
        let row = Conformance::new("layer_norm", op, move |x| vec![tensor(&x[0], &of(x), |e| e.y)])
            .range(-1.5, 4.5)
            .bounds(|_| Bound::ulps(0.51))
            .errors(move |compared| {
                let x = compared.inputs;
                vec![errors_of_layer_norm(&of(x), &x[0], compared)]
            })
            .peer(composed(op), |compared| Bound {
                same: share(compared, 0.96),
                ..Bound::ulps(1.02)
            })
            .extremes_as_peer()
            .vmap_bounds(exact)
            .derivative_bounds(derivatives_of_ops(3e-5, 1.0));
        hold(if bias_alone {
            row_sizes(row, 10_000, 1, 1)
        } else {
            row_sizes(row_sizes(row_sizes(row, 70_000, 1, 0), 10_000, 1, 1), 70_000, 1, 2)
        })?;
    }
    Ok(())
}

/// Tests that the result has the same bits as the two separate ops. The sum is rounded once. This
/// rounding adds half an ulp of each element, and half an ulp of their mean, to the error of the
/// norm.
pub(super) fn residual_norm(hold: &Hold<'_>) -> Checked {
    for (centered, bias_alone) in [(false, false), (true, false), (true, true)] {
        let op = move |x: &[Array]| -> Result<Vec<Array>> {
            let (weight, bias) = vectors(x, 2, bias_alone);
            let (sum, norm) = if centered {
                ops::layer_norm_residual(&x[0], &x[1], weight, bias, EPS)?
            } else {
                ops::rms_norm_residual(&x[0], &x[1], weight, EPS)?
            };
            Ok(vec![sum, norm])
        };
        let two = move |x: &[Array]| -> Result<Vec<Array>> {
            let (weight, bias) = vectors(x, 2, bias_alone);
            let sum = x[0].add(&x[1])?;
            let norm = if centered {
                ops::layer_norm(&sum, weight, bias, EPS)?
            } else {
                ops::rms_norm(&sum, weight, EPS)?
            };
            Ok(vec![sum, norm])
        };
        let of = move |x: &[Tensor]| {
            let values: Vec<f64> =
                x[0].values.iter().zip(&x[1].values).map(|(a, b)| a + b).collect();
            let sum = Tensor::new(x[0].shape.clone(), values);
            let (weight, bias) = vectors(x, 2, bias_alone);
            let norm = normed(&sum, weight, bias, centered, EPS);
            (sum, norm)
        };
        let row = Conformance::new("residual_norm", op, move |x| {
            let (sum, norm) = of(x);
            let norm = tensor(&sum, &norm, |e| e.y);
            vec![sum, norm]
        })
        .bounds(|_| Bound::ulps(0.51))
        .errors(move |compared| {
            let (sum, norm) = of(compared.inputs);
            let zeros = sum.map(|_| 0.0);
            if compared.peer {
                return vec![zeros.clone(), zeros];
            }
            let of_norm = errors_of_layer_norm(&norm, &sum, compared);
            let half = ulp(1.0, compared.dtype) / 2.0;
            let of_sum = tensor(&sum, &norm, |e| {
                let of_row = e.magnitude * e.inverse * (1.0 + e.normalized.abs());
                half * (e.x.abs() * e.inverse + of_row) * e.weight.abs()
            });
            let both = of_norm.values.iter().zip(&of_sum.values).map(|(a, b)| a + b);
            vec![zeros, Tensor::new(sum.shape.clone(), both.collect::<Vec<_>>())]
        })
        .peer(two, exact)
        .extremes_as_peer()
        .vmap_bounds(exact)
        .derivative_bounds(derivatives_of_ops(3e-5, 1.0));
        hold(match (centered, bias_alone) {
            (false, _) => row_sizes(row_sizes(row, 10_000, 2, 0), 60_000, 2, 1),
            (true, true) => row_sizes(row, 10_000, 2, 1),
            (true, false) => {
                row_sizes(row_sizes(row_sizes(row, 10_000, 2, 0), 10_000, 2, 1), 60_000, 2, 2)
            }
        })?;
    }
    Ok(())
}
