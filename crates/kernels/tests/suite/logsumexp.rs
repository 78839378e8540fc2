//! Compares `logsumexp` with f64, on every instruction set and with several numbers of threads.

use crate::testing::*;
use mlx_primitives_kernels::logsumexp::*;

const LONG: [usize; 3] = [40_000, 65_536, 128_257];

fn run<T: Sample, const SUBTRACT: bool>(x: &[T], axis: usize) -> Vec<T> {
    let rows = x.len().checked_div(axis).unwrap_or(3);
    let run = |machine, from, to| {
        // SAFETY: the input holds rows * axis elements, and the output has room for the results.
        unsafe { on::<T, SUBTRACT>(machine, from, to, rows, axis) };
    };
    if SUBTRACT {
        return in_place(x, run);
    }
    same(|machine| {
        let mut out = vec![T::default(); rows * axis.min(1)];
        run(machine, x.as_ptr(), out.as_mut_ptr());
        out
    })
}

fn shapes<T: Sample>() {
    let long = LONG.map(|axis| (1, axis)).into_iter().chain([(3, LONG[0])]);
    for (rows, axis) in rows_and_axes(usize::MAX).chain(long) {
        let x = values::<T>(rows * axis, 12.0);
        let of = |row: &[f64]| {
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            row.iter().map(|v| (v - max).exp()).sum::<f64>().ln() + max
        };
        let expected: Vec<f64> = wide(&x).chunks_exact(axis.max(1)).map(of).collect();
        // The logarithm of the sum is near log(axis).
        let relative = f64::from(T::EPSILON) / 2.0 + 4e-6;
        let got = run::<T, false>(&x, axis);
        assert_close(&got, &expected, relative, 4e-6, "logsumexp");
        let log = |i: usize| T::from_f32(got[i / axis].to_f32()).to_f32();
        let shifted: Vec<T> = (0..x.len()).map(|i| T::from_f32(x[i].to_f32() - log(i))).collect();
        assert_same(&run::<T, true>(&x, axis), &shifted, "log_softmax");
    }
}

/// Pairs whose result is much smaller than the largest element, so that a relative error of the sum
/// is a large relative error of the result.
fn results_near_zero<T: Sample>() {
    for i in 0..200 {
        let low = f64::from(T::from_f32(-0.7 - i as f32 / 1000.0).to_f32());
        let high = (-low.exp()).ln_1p();
        let x = [low, high].map(|x| T::from_f32(x as f32));
        let exact = wide(&x).iter().map(|x| x.exp()).sum::<f64>().ln();
        // The exponential of the smaller element has an error of 2^-22. Each of a few other
        // operations rounds a number of at most 1 to float32.
        let absolute = 6.0 * f64::from(f32::EPSILON);
        let relative = f64::from(T::EPSILON) / 2.0;
        assert_close(&run::<T, false>(&x, 2), &[exact], relative, absolute, "near zero");
    }
}

each_type!(shapes results_near_zero);

#[test]
fn extremes() {
    const INF: f32 = f32::INFINITY;
    for axis in [1, 5, 40, 5000, 50_000] {
        let one = |fill: f32, special: f32, at: usize| {
            let mut x = vec![fill; axis];
            x[at] = special;
            run::<_, false>(&x, axis)[0]
        };
        for at in [0, axis / 2, axis - 1] {
            assert!(one(1.0, f32::NAN, at).is_nan());
            assert!(one(-INF, f32::NAN, at).is_nan());
            assert_eq!(one(1.0, INF, at), INF);
            assert_eq!(one(-INF, INF, at), INF);
            assert_eq!(one(-INF, -3.0, at), -3.0);
            assert_eq!(one(-INF, f32::MIN, at), f32::MIN);
            assert_eq!(one(1.0, f32::MAX, at), f32::MAX);
        }
        assert_eq!(one(-INF, -INF, 0), -INF);
        let halves = vec![F16::from_f32(65504.0); axis];
        let log = run::<_, false>(&halves, axis)[0].to_f32();
        assert!(log >= 65504.0, "{log}");
    }
}
