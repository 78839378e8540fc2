//! The conformance table: a row for an op, with its reference in f64, its shapes, and its bounds with
//! the argument for them. The harness that users have holds each row on the CPU and on a GPU;
//! `simulated` runs the table once more through `eval_gpu`.
//!
//! Special cases stand beside each op, in `<op>.rs`.

use mlx_primitives::conformance::{Backend, Bound, Check, Compared, Conformance, Tensor};
use mlx_primitives::simulator::Schedule;
use mlx_primitives::{Dtype, builtin, ops};

use crate::support::{Checked, reference, simulated};

/// The CPU and the GPU, or what the environment simulates.
fn backends() -> anyhow::Result<Vec<Backend>> {
    if !simulated() {
        let simulated = |backend: &Backend| matches!(backend, Backend::SimulatedMetal(_));
        return Ok(Backend::available().into_iter().filter(|b| !simulated(b)).collect());
    }
    let order = std::env::var("MLX_PRIMITIVES_SIMULATE_METAL")?;
    let schedule = match order.split_once(':') {
        Some((_, seed)) => Schedule::Shuffled(seed.parse()?),
        None if order == "reversed" => Schedule::Reversed,
        None => Schedule::Forward,
    };
    Ok(vec![Backend::SimulatedMetal(schedule)])
}

/// Rows of every form of a kernel along rows, up to this many elements.
fn row_sizes(mut row: Conformance, elements: i32) -> Conformance {
    for axis in [1, 3, 31, 33, 100, 129, 1000, 4096, 4097, 16384, 20001] {
        for rows in [0, 1, 3, 7, 67] {
            if rows * axis <= elements {
                row = row.sizes(&[&[rows, axis]]);
            }
        }
    }
    for shape in [&[3, 33][..], &[2, 5, 31], &[7, 1], &[1, 7], &[2, 3, 1, 100], &[257]] {
        row = row.shapes(&[shape]);
    }
    row
}

fn hold(row: Conformance) -> Checked {
    let backends = backends()?;
    let report = row.backends(&backends).run();
    report.check()?;
    // Every check of every type but those that a row leaves out with a reason.
    let ran = |check: Check| report.outcomes().iter().any(|outcome| outcome.check == check);
    let reasons = report.not_run().join("; ");
    for check in Check::ALL {
        assert!(ran(check) || reasons.contains(&format!("{check}: ")), "{check}: {reasons}");
    }
    Ok(())
}

/// The length of the rows of the first input.
fn axis(inputs: &[Tensor]) -> usize {
    inputs[0].shape.last().copied().unwrap_or(1)
}

/// The error of an exponential in ulps; Metal's fast one has a larger one.
fn exponential(compared: &Compared<'_>) -> f64 {
    if compared.backend.is_metal() { 15.0 } else { 2.0 }
}

/// f32: x - max is rounded once, which its exponential sees times the range, 6: 3 ulps; then those
/// of the exponential, two for the reciprocal and the product, and two for a sum of positive terms
/// in 16 chains, three where a chain has more than a thousand. MLX adds in fewer: a walk of an ulp
/// over the whole axis.
/// 16-bit: the last rounding, and one that a last bit of f32 may tip over.
#[test]
fn softmax() -> Checked {
    let row = Conformance::new(
        "softmax",
        |x| Ok(vec![ops::softmax(&x[0])?]),
        |x| vec![Tensor::new(x[0].shape.clone(), reference::softmax(&x[0].values, axis(x)))],
    )
    .bounds(|compared| match compared.dtype {
        Dtype::Float32 => {
            let sum = if axis(compared.inputs) > 16_384 { 3.0 } else { 2.0 };
            Bound { ulps: 5.0 + exponential(compared) + sum, absolute: 0.0 }
        }
        _ => Bound { ulps: 0.51, absolute: 0.0 },
    })
    .peer(
        |x| Ok(vec![builtin::softmax(&x[0])?]),
        |compared| match compared.dtype {
            Dtype::Float32 => {
                let walk = (axis(compared.inputs) as f64).sqrt();
                Bound { ulps: 7.0 + 2.0 * exponential(compared) + walk, absolute: 0.0 }
            }
            _ => Bound { ulps: 1.0, absolute: 0.0 },
        },
    );
    hold(row_sizes(row, 100_000))
}

/// An infinite maximum outweighs a NaN, as in the kernels. In MLX's op it does not.
fn logarithm(row: &[f64]) -> f64 {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::INFINITY || max == f64::NEG_INFINITY && !row.iter().any(|v| v.is_nan()) {
        return max;
    }
    row.iter().map(|v| (v - max).exp()).sum::<f64>().ln() + max
}

/// The error of a logarithm before it is rounded. Each exponential is off by its ulps and by half an
/// ulp of its argument, at most 6 here; the sum by a walk of an ulp over the chains of MLX, which
/// has one. Relative errors of the sum are absolute ones of its logarithm. Adding the maximum rounds
/// once more.
fn unrounded(compared: &Compared<'_>) -> f64 {
    let walk = (axis(compared.inputs) as f64).sqrt();
    (exponential(compared) + 8.0 + walk) * f64::from(f32::EPSILON)
}

#[test]
fn logsumexp() -> Checked {
    let row = Conformance::new(
        "logsumexp",
        |x| Ok(vec![ops::logsumexp(&x[0], true)?, ops::logsumexp(&x[0], false)?]),
        |x| {
            let logs = x[0].map_rows(logarithm);
            let mut kept = logs.clone();
            kept.shape.push(1);
            vec![kept, logs]
        },
    )
    .bounds(|compared| Bound { ulps: 0.51, absolute: unrounded(compared) })
    .peer(
        |x| {
            let kept = builtin::composition(&ops::logsumexp(&x[0], true)?)?.swap_remove(0);
            let dropped = kept.squeeze(&[-1])?;
            Ok(vec![kept, dropped])
        },
        |compared| Bound { ulps: 1.01, absolute: 2.0 * unrounded(compared) },
    )
    .without(
        Check::Extremes,
        "of infinity and NaN in one row MLX's op makes NaN; logsumexp.rs compares all others with it",
    );
    hold(row_sizes(row, 50_000))
}

/// The logarithm is rounded to the type and then taken off the row: exactly what two ops give. It is
/// below 16 in size, where one of its ulps is 8 epsilons.
#[test]
fn log_softmax() -> Checked {
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
    .bounds(|compared| {
        let epsilon = match compared.dtype {
            Dtype::Float16 => 2f64.powi(-10),
            Dtype::Bfloat16 => 2f64.powi(-7),
            _ => f64::from(f32::EPSILON),
        };
        Bound { ulps: 0.51, absolute: unrounded(compared) + 0.51 * 8.0 * epsilon }
    })
    .peer(
        |x| Ok(vec![x[0].subtract(ops::logsumexp(&x[0], true)?)?]),
        |_| Bound { ulps: 0.0, absolute: 0.0 },
    );
    hold(row_sizes(row, 50_000))
}
