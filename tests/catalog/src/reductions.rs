//! Rows of the catalog for reductions.

use mlx_primitives_check::{Bound, Check, Conformance, Tensor};
use mlx_primitives::{Array, Dtype, Result, ops};
use crate::reference_loops::{self, Sums};

use super::inputs::{Checked, simulated};
use super::{composed, derivatives_of_ops, exact, only, Hold};

/// Two functions that reduce the last axis, or all axes for `None`. The first function removes the
/// reduced axes, and the second keeps them with length 1.
type Op = [fn(&Array, Option<i32>) -> Result<Array>; 2];

const OPS: [(&str, Op); 5] = [
    ("sum", [ops::sum, ops::sum_keepdims]),
    ("mean", [ops::mean, ops::mean_keepdims]),
    ("max", [ops::max, ops::max_keepdims]),
    ("sum_of_squares", [ops::sum_of_squares, ops::sum_of_squares_keepdims]),
    ("norm", [ops::norm, ops::norm_keepdims]),
];

/// Returns the exact result, and a number to which its error is proportional: the result if each
/// term is replaced by its magnitude, or 0 for `max`, which is exact.
fn reduced(op: &str, x: &[f64]) -> (f64, f64) {
    let Sums { sum, reach, squares, max } = reference_loops::sums(x);
    let count = x.len() as f64;
    match op {
        "sum" => (sum, reach),
        "mean" => (sum / count, reach / count),
        "max" => (max, 0.0),
        "sum_of_squares" => (squares, squares),
        _ => (squares.sqrt(), squares.sqrt()),
    }
}

/// Reduces each row or all elements. Returns the result twice: without the reduced axes, and with
/// them.
fn each(x: &Tensor, axes: Option<i32>, f: impl Fn(&[f64]) -> f64) -> Vec<Tensor> {
    let rank = x.shape.len();
    let rows = if axes.is_none() { 0 } else { rank - 1 };
    let one = Tensor::new([x.values.len()], x.values.clone());
    let values = if axes.is_none() { one.map_rows(f) } else { x.map_rows(f) }.values;
    let kept = [&x.shape[..rows], &vec![1; rank - rows]].concat();
    vec![Tensor::new(&x.shape[..rows], values.clone()), Tensor::new(kept, values)]
}

/// Our op adds in chains of up to about 64 additions, whose rounding errors average out, and then
/// rounds once to the type. MLX adds in one chain, so its error grows with the length of the chain.
/// MLX also adds 16-bit numbers in 16 bits, so 16-bit results are compared with the rounded result
/// of MLX's f32 op.
fn row(name: &'static str, op: Op, axes: Option<i32>) -> Conformance {
    let both = move |x: &[Array]| Ok(vec![op[0](&x[0], axes)?, op[1](&x[0], axes)?]);
    Conformance::new(format!("{name} {}", axes.map_or("All", |_| "Last")), both, move |x| {
        each(&x[0], axes, |row| reduced(name, row).0)
    })
    .range(-2.5, 3.5)
    .bounds(|_| Bound::ulps(0.51))
    .errors(move |compared| {
        let chain = (compared.inputs[0].values.len() as f64 / 5_000.0).max(1.0);
        let times = if compared.peer { 1e-5 * chain } else { 8.0 * 2f64.powi(-24) };
        each(&compared.inputs[0], axes, |row| times * reduced(name, row).1)
    })
    .peer(
        move |x| {
            let theirs = composed(both)(x)?;
            let wide = composed(both)(&[x[0].astype(Dtype::Float32)?])?;
            let as_theirs = |(wide, theirs): (&Array, &Array)| {
                let wide = wide.astype(theirs.dtype())?;
                wide.reshape(theirs.shape())
            };
            wide.iter().zip(&theirs).map(as_theirs).collect()
        },
        move |_| if name == "max" { Bound::default() } else { Bound::ulps(1.0) },
    )
    .extremes_as_peer()
    .vmap_bounds(exact)
    .derivative_bounds(derivatives_of_ops(2e-6, 1.0))
}

pub(super) fn reductions(hold: &Hold<'_>) -> Checked {
    for (name, op) in OPS {
        for axes in [Some(-1), None] {
            let mut row = row(name, op, axes);

            for [rows, axis] in [
                [1, 1],
                [7, 1],
                [67, 3],
                [1, 31],
                [9, 33],
                [3, 100],
                [2, 512],
                [2, 513],
                [3, 1000],
                [2, 4097],
                [1, 16384],
                [2, 16385],
                [1, 50_021],
            ] {
                row = row.sizes(&[&[rows, axis]]);
            }
            // In 16 bits, random numbers are often equal. If several numbers are the largest, `max`
            // has no derivative, so it gets only small shapes here.
            let short = name == "max";
            let many: &[&[i32]] = if short { &[] } else { &[&[2, 5, 31], &[2, 3, 1, 100], &[600]] };
            for shape in [&[3, 3][..], &[7, 1], &[6]].iter().chain(many) {
                row = row.shapes(&[shape]);
            }
            if axes.is_none() {
                row = row.shapes(&[&[]]);
            }
            // The sum of no numbers is 0, and their mean is NaN. `max` refuses axes without
            // elements.
            let nothing = [&[0][..], &[3, 0], &[2, 0, 3], &[0, 3]];
            let from = if name == "max" { 3 } else { 0 };
            for shape in &nothing[from..if name == "max" && axes.is_none() { 3 } else { 4 }] {
                row = row.sizes(&[shape]);
            }
            hold(row)?;
        }
    }
    Ok(())
}

/// Tests 256 rows, which the kernel does not split, and one row that would need more than the
/// maximum number of pieces, so the pieces become longer.
pub(super) fn many_rows_and_many_pieces(hold: &Hold<'_>) -> Checked {
    if simulated() {
        return Ok(()); // ten million elements would take minutes
    }
    for (name, op) in OPS {
        for axes in [Some(-1), None] {
            let row = row(name, op, axes).dtypes(&[Dtype::Float32]);
            hold(only(Check::Values, row.sizes(&[&[256, 20_000]])))?;
        }
    }
    Ok(())
}
