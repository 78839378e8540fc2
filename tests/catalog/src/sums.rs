//! Rows of the catalog for ops that add exponentials: softmax and logsumexp.

use mlx_primitives_check::{Bound, Check, Compared, Conformance, Tensor};
use mlx_primitives::{Dtype, builtin, ops};

use super::inputs::{Checked, ulp};
use super::{axis, exact, exponential, reference, row_sizes, Hold};

/// In f32, x - max is rounded once. The exponential multiplies this error by the range of x, which
/// is 6, and so adds 3 ulps. It also adds its own error. The reciprocal and the product add two
/// ulps. The sum of positive terms in 16 chains adds two ulps, or three if a chain has more than a
/// thousand terms. MLX adds in fewer chains, so its error is a random walk of one-ulp steps over
/// the full axis. In 16 bits, the error is the last rounding. Two results can round differently if
/// their f32 results differ.
pub(super) fn softmax(hold: &Hold<'_>) -> Checked {
    let row = Conformance::new(
        "softmax",
        |x| Ok(vec![ops::softmax(&x[0])?]),
        |x| vec![Tensor::new(x[0].shape.clone(), reference::softmax(&x[0].values, axis(x)))],
    )
    .bounds(|compared| match compared.dtype {
        Dtype::Float32 => {
            let sum = if axis(compared.inputs) > 16_384 { 3.0 } else { 2.0 };
            Bound::ulps(5.0 + exponential(compared) + sum)
        }
        _ => Bound::ulps(0.51),
    })
    .peer(
        |x| Ok(vec![builtin::softmax(&x[0])?]),
        |compared| match compared.dtype {
            Dtype::Float32 => {
                let walk = (axis(compared.inputs) as f64).sqrt();
                Bound::ulps(7.0 + 2.0 * exponential(compared) + walk)
            }
            _ => Bound::ulps(1.0),
        },
    );
    hold(row_sizes(row.vmap_bounds(exact), 100_000, 1, 0))
}

/// The logsumexp of a row. If the maximum is infinite and the row has a NaN, our kernels return
/// infinity, but MLX's op returns NaN.
fn logarithm(row: &[f64]) -> f64 {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::INFINITY || max == f64::NEG_INFINITY && !row.iter().any(|v| v.is_nan()) {
        return max;
    }
    row.iter().map(|v| (v - max).exp()).sum::<f64>().ln() + max
}

/// The error of logsumexp before it is rounded to the type. Each exponential has its own error, and
/// the error of its argument: half an ulp of a number of at most 6. MLX adds in a single chain, so
/// the error of its sum is a random walk. A relative error of the sum is an absolute error of its
/// logarithm. The addition of the maximum rounds once more.
fn unrounded(compared: &Compared<'_>) -> f64 {
    let walk = (axis(compared.inputs) as f64).sqrt();
    (exponential(compared) + 8.0 + walk) * f64::from(f32::EPSILON)
}

pub(super) fn logsumexp(hold: &Hold<'_>) -> Checked {
    let row = Conformance::new(
        "logsumexp",
        |x| Ok(vec![ops::logsumexp_keepdims(&x[0])?, ops::logsumexp(&x[0])?]),
        |x| {
            let logs = x[0].map_rows(logarithm);
            let mut kept = logs.clone();
            kept.shape.push(1);
            vec![kept, logs]
        },
    )
    .bounds(|compared| Bound { absolute: unrounded(compared), ..Bound::ulps(0.51) })
    .peer(
        |x| {
            let kept = builtin::composition(&ops::logsumexp_keepdims(&x[0])?)?.swap_remove(0);
            let dropped = kept.squeeze([-1])?;
            Ok(vec![kept, dropped])
        },
        |compared| Bound { absolute: 2.0 * unrounded(compared), ..Bound::ulps(1.01) },
    )
    .without(
        Check::Extremes,
        "of infinity and NaN in one row MLX's op makes NaN; logsumexp.rs compares all others with it",
    );
    hold(row_sizes(row.vmap_bounds(exact), 50_000, 1, 0))
}

/// Checks `log_softmax`. It rounds the result of logsumexp to the type and then subtracts it from
/// the row, like two separate ops.
pub(super) fn log_softmax(hold: &Hold<'_>) -> Checked {
    let row = Conformance::new(
        "log_softmax",
        |x| Ok(vec![ops::log_softmax(&x[0])?]),
        |x| {
            let rows = x[0].values.chunks(axis(x).max(1));
            let values = rows.flat_map(|row| {
                let log = logarithm(row);
                row.iter().map(move |v| v - log).collect::<Vec<_>>()
            });
            vec![Tensor::new(x[0].shape.clone(), values.collect::<Vec<_>>())]
        },
    )
    .bounds(|compared| Bound { absolute: unrounded(compared), ..Bound::ulps(0.51) })
    .errors(|compared| {
        let x = compared.inputs;
        let times = if compared.peer { 0.0 } else { 0.51 };
        let rounded = |row: &[f64]| vec![times * ulp(logarithm(row), compared.dtype); row.len()];
        let values = x[0].values.chunks(axis(x).max(1)).flat_map(rounded).collect::<Vec<_>>();
        vec![Tensor::new(x[0].shape.clone(), values)]
    })
    .peer(|x| Ok(vec![x[0].subtract(ops::logsumexp_keepdims(&x[0])?)?]), |_| Bound::ulps(0.0));
    hold(row_sizes(row.vmap_bounds(exact), 50_000, 1, 0))
}
