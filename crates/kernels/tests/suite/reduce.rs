use crate::reference_loops::sums;
use crate::testing::*;
use mlx_primitives_kernels::reduce::*;

const ALL: [Reduction; 5] =
    [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::SumOfSquares, Reduction::Norm];

fn run<T: Sample>(kind: Reduction, x: &[T], rows: usize) -> Vec<T> {
    same(|on| {
        let mut out = vec![T::default(); rows];
        let axis = x.len().checked_div(rows).unwrap_or(7);
        // SAFETY: the buffers hold rows * axis and rows elements.
        unsafe { reduce_on(on, kind, x.as_ptr(), out.as_mut_ptr(), rows, axis) };
        out
    })
}

/// The exact result of a row, and the sum of the magnitudes of its terms, which the error bound
/// uses. The second number is 0 for reductions in which nothing cancels.
fn exact(kind: Reduction, row: &[f64]) -> (f64, f64) {
    let (all, axis) = (sums(row), row.len() as f64);
    match kind {
        Reduction::Sum => (all.sum, all.reach),
        Reduction::Mean => (all.sum / axis, all.reach / axis.max(1.0)),
        Reduction::Max => (all.max, 0.0),
        Reduction::SumOfSquares => (all.squares, 0.0),
        Reduction::Norm => (all.squares.sqrt(), 0.0),
    }
}

fn shapes<T: Sample>() {
    let long = [2 * PIECE + 1, 5 * PIECE + 77];
    let all = long.into_iter().flat_map(|axis| ROWS.map(|rows| (rows, axis)));
    let all = all.filter(|(rows, axis)| rows * axis <= 400_000 || *axis == long[0]);
    for (rows, axis) in rows_and_axes(400_000).chain(all) {
        let x = values::<T>(rows * axis, 3.0);
        let numbers = wide(&x);
        for kind in ALL {
            for (i, got) in run(kind, &x, rows).into_iter().enumerate() {
                let (exact, magnitude) = exact(kind, &numbers[i * axis..][..axis]);
                // The bound covers the rounding of the result, and at least half of f16's
                // smallest number. It also covers a part of the roundings of a lane's additions,
                // most of which cancel.
                let bound = (f64::from(T::EPSILON) / 2.0 * exact.abs()).max(3.1e-8)
                    + 1e-6 * (magnitude + exact.abs());
                let got = f64::from(got.to_f32());
                let overflow = T::from_f32(exact as f32).to_f32().is_infinite();
                let close = (got - exact).abs() <= bound
                    || overflow && got == f64::INFINITY.copysign(exact)
                    || got == exact
                    || got.is_nan() && exact.is_nan();
                assert!(close, "{kind:?} {rows}x{axis}: {got:e}, expected {exact:e}");
            }
        }
    }
}

each_type!(shapes);

fn gradient<T: Sample>(kind: Reduction, x: &[T], y: &[T], g: &[T]) -> Vec<T> {
    same(|on| {
        let mut out = vec![T::from_f32(9.0); x.len()];
        let of = [x.as_ptr(), y.as_ptr(), g.as_ptr()];
        let shape = [g.len(), x.len() / g.len()];
        // SAFETY: the buffers hold rows * axis and rows elements.
        unsafe { reduce_grad_on(on, kind, of, out.as_mut_ptr(), shape) };
        out
    })
}

/// The bounds cover two f32 operations and one rounding.
fn gradients<T: Sample>() {
    go_past_the_caches();
    for (rows, axis) in
        rows_and_axes(200_000).filter(|&(rows, axis)| rows * axis > 0).chain([(2, 40_000)])
    {
        let (x, g) = (values::<T>(rows * axis, 3.0), values::<T>(rows, 2.0));
        let (all, slopes) = (wide(&x), wide(&g));
        for kind in [Reduction::SumOfSquares, Reduction::Norm, Reduction::Max] {
            let result = |row: &[f64]| match kind {
                Reduction::Norm => T::from_f32((sums(row).squares.sqrt() + 0.125) as f32),
                _ => T::from_f32(sums(row).max as f32),
            };
            let y: Vec<T> = all.chunks_exact(axis).map(result).collect();
            let mut exact = Vec::new();
            for ((row, g), y) in all.chunks_exact(axis).zip(&slopes).zip(wide(&y)) {
                let largest = row.iter().filter(|x| **x == y).count() as f64;
                exact.extend(row.iter().map(|x| match kind {
                    Reduction::SumOfSquares => x * 2.0 * g,
                    Reduction::Norm => x * (g / y),
                    _ => f64::from(*x == y) * (g / largest),
                }));
            }
            let relative = f64::from(T::EPSILON) / 2.0 * 1.01 + 2e-7;
            let got = gradient(kind, &x, &y, &g);
            assert_close(&got, &exact, relative, 3.1e-8, &format!("{kind:?}"));
        }
    }
}

each_type!(gradients);

#[test]
fn gradients_at_the_ends() {
    let got = gradient(Reduction::Norm, &[0.0f32, 0.0, 3.0, 4.0], &[0.0, 5.0], &[1.0, 10.0]);
    assert!(got[0].is_nan() && got[1].is_nan() && got[2..] == [6.0, 8.0], "{got:?}");
    let infinite = [f32::INFINITY, 1.0, f32::INFINITY, -1.0, 0.0, -0.0];
    let got = gradient(Reduction::Max, &infinite, &[f32::INFINITY, 0.0], &[4.0, 6.0]);
    assert_eq!(got, [2.0, 0.0, 2.0, 0.0, 3.0, 3.0]);
    let got = gradient(Reduction::Max, &[f32::NAN, 1.0], &[f32::NAN], &[1.0]);
    assert!(got[0].is_nan() && got[1].is_nan(), "{got:?}");
}

/// Several threads share one long row, and every thread's piece contains maxima.
#[test]
fn maxima_of_one_long_row() {
    for axis in [2 * PIECE, 2 * PIECE + 1, 5 * PIECE + 77] {
        let mut x: Vec<f32> = (0..axis).map(|i| (i % 1000) as f32).collect();
        let largest = (axis / 1000) as f32;
        for y in [999.0, f32::NAN] {
            let got = gradient(Reduction::Max, &x, &[y], &[4.0]);
            let share = 4.0 / largest;
            let right = got.iter().enumerate().all(|(i, got)| match (y.is_nan(), i % 1000) {
                (true, _) => got.is_nan(),
                (_, 999) => *got == share,
                _ => *got == 0.0,
            });
            assert!(right, "{axis} {y}");
        }
        x[axis - 1] = 2000.0;
        let got = gradient(Reduction::Max, &x, &[2000.0], &[4.0]);
        assert!(got[axis - 1] == 4.0 && got[..axis - 1].iter().all(|got| *got == 0.0), "{axis}");
    }
}

#[test]
fn no_elements() {
    let of = |kind| run::<f32>(kind, &[], 2);
    assert_eq!(of(Reduction::Sum), [0.0; 2]);
    assert!(of(Reduction::Mean).iter().all(|v| v.is_nan()));
    assert_eq!(of(Reduction::Max), [f32::NEG_INFINITY; 2]);
    assert_eq!(of(Reduction::Norm), [0.0; 2]);
}

#[test]
fn one_nan_spoils_its_row_alone() {
    for kind in ALL {
        for axis in [1, 5, 16, 64, 100, 3 * PIECE] {
            for at in [0, axis / 3, axis - 1] {
                let mut x = vec![1.0f32; 3 * axis];
                x[axis + at] = f32::NAN;
                let out = run(kind, &x, 3);
                assert!(out[1].is_nan(), "{kind:?} {axis} {at}");
                assert!(out[0].is_finite() && out[2].is_finite(), "{kind:?} {axis} {at}");
            }
        }
    }
}

#[test]
fn infinities_and_overflow() {
    const INF: f32 = f32::INFINITY;
    let of = |kind, x: &[f32]| run(kind, x, 1)[0];
    assert_eq!(of(Reduction::Max, &[-INF; 40]), -INF);
    assert_eq!(of(Reduction::Max, &[-5.0; 33]), -5.0);
    assert_eq!(of(Reduction::Max, &[1.0, INF, 2.0]), INF);
    assert!(of(Reduction::Sum, &[INF, 1.0, -INF]).is_nan());
    assert_eq!(of(Reduction::Norm, &[-INF, 1.0]), INF);
    // Only the result has to fit in f16.
    let mut large = vec![F16::from_f32(60000.0); 40];
    large.extend(vec![F16::from_f32(-60000.0); 39]);
    assert_eq!(run(Reduction::Sum, &large, 1)[0].to_f32(), 60000.0);
    assert_eq!(run(Reduction::Max, &large, 1)[0].to_f32(), 60000.0);
    assert_eq!(run(Reduction::SumOfSquares, &large, 1)[0].to_f32(), INF);
}
