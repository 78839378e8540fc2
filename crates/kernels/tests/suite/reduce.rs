use crate::testing::*;
use mlx_primitives_kernels::element::{Bf16, F16};
use mlx_primitives_kernels::reduce::*;

const ALL: [Reduction; 5] =
    [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::SumOfSquares, Reduction::Norm];

fn run<T: Sample>(on: Machine, kind: Reduction, x: &[T], rows: usize) -> Vec<T> {
    let mut out = vec![T::default(); rows];
    let axis = x.len().checked_div(rows).unwrap_or(7);
    // SAFETY: the buffers hold rows * axis and rows elements.
    unsafe { reduce_on(on, kind, x.as_ptr(), out.as_mut_ptr(), rows, axis) };
    out
}

/// The exact results and, for their errors, the sums of the terms' magnitudes.
fn reference<T: Sample>(kind: Reduction, x: &[T], rows: usize) -> (Vec<f64>, Vec<f64>) {
    let axis = x.len().checked_div(rows).unwrap_or_default();
    (0..rows)
        .map(|row| {
            let row = x[row * axis..][..axis].iter().map(|v| f64::from(v.to_f32()));
            let magnitude: f64 = row.clone().map(f64::abs).sum();
            match kind {
                Reduction::Sum => (row.sum(), magnitude),
                Reduction::Mean => (row.sum::<f64>() / axis as f64, magnitude / axis.max(1) as f64),
                Reduction::Max => (row.fold(f64::NEG_INFINITY, f64::max), 0.0),
                Reduction::SumOfSquares => (row.map(|v| v * v).sum(), 0.0),
                Reduction::Norm => (row.map(|v| v * v).sum::<f64>().sqrt(), 0.0),
            }
        })
        .unzip()
}

fn shapes<T: Sample>() {
    let long = [2 * PIECE + 1, 5 * PIECE + 77];
    for axis in AXES.into_iter().chain(long) {
        for rows in ROWS {
            if rows * axis > 400_000 && axis != long[0] {
                continue;
            }
            let x = values::<T>(rows * axis, 3.0);
            for kind in ALL {
                let first = run(machines()[0], kind, &x, rows);
                let (exact, magnitudes) = reference(kind, &x, rows);
                for i in 0..rows {
                    // The result's rounding, half a unit of f16's smallest at least, and some
                    // of those of a lane's additions: they average out far below their number.
                    let bound = (f64::from(T::EPSILON) / 2.0 * exact[i].abs()).max(3.1e-8)
                        + 1e-6 * (magnitudes[i] + exact[i].abs());
                    let got = f64::from(first[i].to_f32());
                    let overflow = T::from_f32(exact[i] as f32).to_f32().is_infinite();
                    let close = (got - exact[i]).abs() <= bound
                        || overflow && got == f64::INFINITY.copysign(exact[i])
                        || got == exact[i]
                        || got.is_nan() && exact[i].is_nan();
                    assert!(close, "{kind:?} {rows}x{axis}: {got:e}, expected {:e}", exact[i]);
                }
                for machine in &machines()[1..] {
                    assert_same(&run(*machine, kind, &x, rows), &first, "reduce");
                }
            }
        }
    }
}

#[test]
fn shapes_in_f32() {
    shapes::<f32>();
}

#[test]
fn shapes_in_f16() {
    shapes::<F16>();
}

#[test]
fn shapes_in_bf16() {
    shapes::<Bf16>();
}

#[test]
fn no_elements() {
    for machine in machines() {
        let of = |kind| run::<f32>(machine, kind, &[], 2);
        assert_eq!(of(Reduction::Sum), [0.0; 2]);
        assert!(of(Reduction::Mean).iter().all(|v| v.is_nan()));
        assert_eq!(of(Reduction::Max), [f32::NEG_INFINITY; 2]);
        assert_eq!(of(Reduction::Norm), [0.0; 2]);
    }
}

#[test]
fn one_nan_spoils_its_row_alone() {
    for machine in machines() {
        for kind in ALL {
            for axis in [1, 5, 16, 64, 100, 3 * PIECE] {
                for at in [0, axis / 3, axis - 1] {
                    let mut x = vec![1.0f32; 3 * axis];
                    x[axis + at] = f32::NAN;
                    let out = run(machine, kind, &x, 3);
                    assert!(out[1].is_nan(), "{kind:?} {axis} {at}");
                    assert!(out[0].is_finite() && out[2].is_finite(), "{kind:?} {axis} {at}");
                }
            }
        }
    }
}

#[test]
fn infinities_and_overflow() {
    const INF: f32 = f32::INFINITY;
    for machine in machines() {
        let of = |kind, x: &[f32]| run(machine, kind, x, 1)[0];
        assert_eq!(of(Reduction::Max, &[-INF; 40]), -INF);
        assert_eq!(of(Reduction::Max, &[-5.0; 33]), -5.0);
        assert_eq!(of(Reduction::Max, &[1.0, INF, 2.0]), INF);
        assert!(of(Reduction::Sum, &[INF, 1.0, -INF]).is_nan());
        assert_eq!(of(Reduction::Norm, &[-INF, 1.0]), INF);
        // Only the result has to fit into sixteen bits.
        let mut large = vec![F16::from_f32(60000.0); 40];
        large.extend(vec![F16::from_f32(-60000.0); 39]);
        assert_eq!(run(machine, Reduction::Sum, &large, 1)[0].to_f32(), 60000.0);
        assert_eq!(run(machine, Reduction::Max, &large, 1)[0].to_f32(), 60000.0);
        assert_eq!(run(machine, Reduction::SumOfSquares, &large, 1)[0].to_f32(), INF);
    }
}
