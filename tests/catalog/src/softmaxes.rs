//! Rows of the catalog for `cross_entropy` and `masked_softmax`.

use mlx_primitives_check::{Bound, Check, Compared, Conformance, Input, Tensor};
use mlx_primitives::ops::{self, CrossEntropy, MaskedSoftmax};
use mlx_primitives::{Array, Dtype, Result};

use super::inputs::{Checked, ulp};
use super::{axis, broadcast, composed, derivatives, derivatives_of_ops, exact, exponential, only, reference, Hold};

const PLAIN: CrossEntropy = CrossEntropy { label_smoothing: 0.0, ignore_index: None };

fn losses(x: &[Tensor], options: CrossEntropy) -> Tensor {
    let (classes, smoothing) = (axis(x), f64::from(options.label_smoothing));
    let of = |(row, target): (&[f64], &f64)| {
        let target = *target as usize % classes;
        if options.ignore_index == Some(target as i32) {
            return 0.0;
        }
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log = row.iter().map(|v| (v - max).exp()).sum::<f64>().ln();
        let mean = row.iter().sum::<f64>() / classes as f64 - max;
        log - (1.0 - smoothing) * (row[target] - max) - smoothing * mean
    };
    let rows = x[0].values.chunks_exact(classes).zip(&x[1].values);
    Tensor::new(x[1].shape.clone(), rows.map(of).collect::<Vec<_>>())
}

/// The f32 result has the error of logsumexp, and of the differences of a few numbers up to 12. It
/// is then rounded once. MLX's composition of ops rounds every step: the shifted logits, which are
/// at most 6, the logarithm, which is at most 10, the scores and their combinations. MLX also adds
/// up a mean in 16 bits.
///
/// A gradient uses probabilities with errors of about 30 ulps, and is then rounded once. The
/// forward-mode derivative is a composition of ops, which rounds every step.
pub(super) fn cross_entropy(hold: &Hold<'_>) -> Checked {
    for options in [
        PLAIN,
        CrossEntropy { label_smoothing: 0.1, ..PLAIN },
        CrossEntropy { label_smoothing: 0.3, ignore_index: Some(1) },
    ] {
        let op = move |x: &[Array]| {
            let classes = x[0].dim(-1)?;
            let whole = x[1].astype(Dtype::Float32)?.divide(classes as f32)?;
            let targets = x[1].subtract(whole.astype(Dtype::Int32)?.multiply(classes)?)?;
            Ok(vec![ops::cross_entropy(&x[0], &targets, options)?])
        };
        let bound = |compared: &Compared<'_>| {
            let walk = (axis(compared.inputs) as f64).sqrt();
            (exponential(compared) + 24.0 + walk) * f64::from(f32::EPSILON)
        };
        let mut row =
            Conformance::new(format!("{options:?}"), op, move |x| vec![losses(x, options)])
                .inputs(&[Input::Float(-3.0, 3.0), Input::Integer(0, 1 << 20)])
                .bounds(move |compared| Bound { absolute: bound(compared), ..Bound::ulps(0.51) })
                .peer(composed(op), move |compared| {
                    let steps = if options.label_smoothing > 0.0 { 12.0 } else { 4.0 };
                    let absolute = 2.0 * bound(compared) + steps * ulp(10.0, compared.dtype);
                    Bound { absolute, ..Bound::default() }
                })
                .extremes_as_peer()
                .vmap_bounds(exact)
                .derivative_bounds(|compared| match compared.check {
                    Check::Jvp => derivatives_of_ops(1e-5, 3.0)(compared),
                    _ => derivatives(1e-5)(compared),
                });
        for classes in [1, 3, 31, 33, 100, 129, 1000, 4096, 4097, 16385] {
            for rows in [0, 1, 3, 67] {
                if rows * classes <= 50_000 {
                    row = row.sizes(&[&[rows, classes], &[rows]]);
                }
            }
        }
        for shape in [&[3, 33][..], &[2, 5, 31], &[7, 1], &[2, 3, 1, 200], &[257], &[9, 3]] {
            row = row.shapes(&[shape, &shape[..shape.len() - 1]]);
        }
        if options != PLAIN {
            let why =
                "MLX adds up the mean of the largest numbers to infinity, ours is relative to one";
            row = row.without(Check::Extremes, why);
        }
        hold(row.shapes(&[&[2, 1500], &[2]]).shapes(&[&[1, 9000], &[1]]))?;
    }
    Ok(())
}

/// The options of a call of `masked_softmax`. Its inputs are the scores and, if present, a mask
/// with a number or a bool for each score.
#[derive(Clone, Copy, Debug)]
struct Hiding {
    scale: f32,
    causal: bool,
    window: Option<i32>,
    bools: bool,
}

impl Hiding {
    fn op(self) -> impl Fn(&[Array]) -> Result<Vec<Array>> + Copy {
        let Self { scale, causal, window, .. } = self;
        move |x| {
            let options = MaskedSoftmax { scale, causal, window, mask: x.get(1) };
            Ok(vec![ops::masked_softmax(&x[0], options)?])
        }
    }

    /// Returns the value of the mask for each score.
    fn mask(x: &[Tensor]) -> Option<Vec<f64>> {
        let (mask, shape) = (x.get(1)?, &x[0].shape);
        let own = [vec![1; shape.len() - mask.shape.len()], mask.shape.clone()].concat();
        Some(
            (0..x[0].values.len())
                .map(|index| mask.values[broadcast(shape, &own, index)])
                .collect(),
        )
    }

    /// The scores in f64.
    fn scores(self, x: &[Tensor]) -> Vec<f64> {
        let (rank, keys) = (x[0].shape.len(), axis(x));
        let queries = if rank > 1 { x[0].shape[rank - 2] } else { 1 };
        let mask = Self::mask(x);
        let score = |(index, value): (usize, &f64)| {
            let (row, key) = (index / keys, index % keys);
            let position = (row % queries + keys) as i64 - queries as i64;
            let back = position - key as i64;
            let far = self.window.is_some_and(|window| back >= i64::from(window));
            let late = (self.causal || self.window.is_some()) && back < 0;
            let term = mask.as_ref().map_or(0.0, |mask| mask[index]);
            let hidden = self.bools && mask.is_some() && term == 0.0;
            if far || late || hidden {
                return -1e30; // finite, so if all keys are hidden, they have equal weights
            }
            value * f64::from(self.scale) + if self.bools { 0.0 } else { term }
        };
        x[0].values.iter().enumerate().map(score).collect()
    }

    /// The error is as for softmax. Scores differ by up to 6, or by up to 12 with a mask. Our op
    /// and MLX's round the scores. This error counts twice: for the score itself and for the
    /// largest score.
    fn row(self) -> Conformance {
        let mask = if self.bools { Input::Bool } else { Input::Float(-3.0, 3.0) };
        Conformance::new(format!("masked_softmax, {self:?}"), self.op(), move |x| {
            let y = reference::softmax(&self.scores(x), axis(x));
            vec![Tensor::new(x[0].shape.clone(), y)]
        })
        .inputs(&[Input::Float(-3.0, 3.0), mask])
        .bounds(|compared| match compared.dtype {
            Dtype::Float32 => Bound::ulps(10.0 + exponential(compared)),
            _ => Bound::ulps(0.52),
        })
        .errors(move |compared| {
            let x = compared.inputs;
            let one = if self.scale == 1.0 { 0.0 } else { ulp(3.0, compared.dtype) };
            let added =
                if x.len() > 1 && !self.bools { ulp(6.0, compared.dtype) / 2.0 } else { 0.0 };
            let times = if compared.peer { 0.0 } else { 2.0 * (one + added) };
            let y = reference::softmax(&self.scores(x), axis(x));
            vec![Tensor::new(x[0].shape.clone(), y).map(|y| y * times)]
        })
        .extremes(&[1e30, -1e30, f64::from(f32::MIN) / 1.0001, -65504.0 / 1.0001])
        .extremes_as_peer()
        .vmap_bounds(exact)
    }

    fn row_beside_mlx(self) -> Conformance {
        self.row().peer(composed(self.op()), |compared| match compared.dtype {
            Dtype::Float32 => {
                let walk = (axis(compared.inputs) as f64).sqrt();
                Bound::ulps(10.0 + 2.0 * exponential(compared) + walk)
            }
            _ => Bound::ulps(1.0),
        })
    }
}

pub(super) fn masked_softmax(hold: &Hold<'_>) -> Checked {
    for (causal, window) in [(false, None), (true, None), (true, Some(3))] {
        for bools in [true, false] {
            let mut row = Hiding { scale: 1.0, causal, window, bools }.row_beside_mlx();
            for shape in [&[3, 33][..], &[2, 5, 31]] {
                row = row.shapes(&[shape, shape]);
            }
            if bools {
                row = row.shapes(&[&[2, 5, 7]]).shapes(&[&[2, 3, 4, 150]]);
            } else if causal && window.is_none() {
                for mask in [&[][..], &[9], &[5, 1], &[3, 1, 9], &[2, 1, 5, 9]] {
                    row = row.shapes(&[&[2, 3, 5, 9], mask]);
                }
            }
            hold(row)?;
        }
    }
    Ok(())
}

pub(super) fn masked_softmax_of_every_size(hold: &Hold<'_>) -> Checked {
    for (causal, window) in
        [(false, None), (true, None), (true, Some(1)), (false, Some(16)), (true, Some(1000))]
    {
        for bools in [true, false] {
            let hiding = Hiding { scale: 0.37, causal, window, bools };
            let mut row = hiding.row_beside_mlx();
            for shape in [
                [1, 1, 1],
                [2, 0, 5],
                [0, 3, 5],
                [2, 7, 7],
                [3, 5, 31],
                [1, 40, 5],
                [2, 3, 128],
                [1, 9, 129],
                [1, 33, 300],
                [1, 3, 4097],
                [1, 2, 8200],
                [1, 2, 17000],
            ] {
                let mask = [1, shape[1], shape[2]];
                if window.is_none() || shape.iter().product::<i32>() <= 10_000 {
                    row = row.sizes(&[&shape, &mask]);
                }
                if bools {
                    row = row.sizes(&[&shape]);
                }
            }
            for mask in [
                &[1][..],
                &[40],
                &[1, 40],
                &[5, 1],
                &[5, 40],
                &[3, 1, 1],
                &[3, 1, 40],
                &[2, 1, 5, 40],
                &[2, 1, 1, 40],
                &[1, 3, 5, 40],
                &[2, 3, 1, 1],
                &[2, 3, 5, 40],
            ] {
                if window.is_none() {
                    row = row.sizes(&[&[2, 3, 5, 40], mask]);
                }
            }
            let deep = [2, 1, 2, 1, 2, 1, 2, 1, 2, 3, 4];
            row = row.sizes(&[&deep, &[2, 1, 1, 1, 2, 1, 1, 1, 2, 1, 4]]).sizes(&[&deep, &deep]);
            hold(only(Check::Values, row))?;
            // A vector has no axis of queries. MLX's composition needs one, so these shapes are not
            // compared with MLX.
            hold(only(Check::Values, hiding.row().sizes(&[&[100]]).sizes(&[&[100], &[100]])))?;
        }
    }
    Ok(())
}
