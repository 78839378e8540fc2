//! `logsumexp` on every level and on several threads, against f64.

use crate::testing::*;
use mlx_primitives_kernels::element::{Bf16, F16};
use mlx_primitives_kernels::logsumexp::*;

const LONG: [usize; 3] = [40_000, 65_536, 128_257];

fn run<T: Sample, const SUBTRACT: bool>(on_: Machine, x: &[T], axis: usize) -> Vec<T> {
    let rows = x.len().checked_div(axis).unwrap_or(3);
    let count = if SUBTRACT { x.len() } else { rows * axis.min(1) };
    let mut out = vec![T::default(); count];
    // SAFETY: the buffers hold rows * axis elements, or a result a row.
    unsafe { on::<T, SUBTRACT>(on_, x.as_ptr(), out.as_mut_ptr(), rows, axis) };
    if SUBTRACT {
        let mut place = x.to_vec();
        // SAFETY: as above, in place.
        unsafe { on::<T, SUBTRACT>(on_, place.as_ptr(), place.as_mut_ptr(), rows, axis) };
        assert_same(&place, &out, "in place");
    }
    out
}

fn reference<T: Sample>(x: &[T], axis: usize) -> Vec<f64> {
    let of = |row: &[T]| {
        let row: Vec<f64> = row.iter().map(|v| f64::from(v.to_f32())).collect();
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.iter().map(|v| (v - max).exp()).sum::<f64>().ln() + max
    };
    x.chunks_exact(axis.max(1)).map(of).collect()
}

fn shapes<T: Sample>() {
    let short = AXES.iter().flat_map(|&axis| ROWS.map(|rows| (rows, axis)));
    for (rows, axis) in short.chain(LONG.map(|axis| (1, axis))).chain([(3, LONG[0])]) {
        let x = values::<T>(rows * axis, 12.0);
        let expected = reference(&x, axis);
        // The sum's logarithm is near log(axis), of which the short exponential takes |x| ulps.
        let relative = f64::from(T::EPSILON) / 2.0 + 4e-6;
        let first = run::<T, false>(machines()[0], &x, axis);
        assert_close(&first, &expected, relative, 4e-6, "logsumexp");
        let log = |i: usize| T::from_f32(first[i / axis].to_f32()).to_f32();
        let shifted: Vec<T> = (0..x.len()).map(|i| T::from_f32(x[i].to_f32() - log(i))).collect();
        for machine in machines() {
            assert_same(&run::<T, false>(machine, &x, axis), &first, "logsumexp");
            assert_same(&run::<T, true>(machine, &x, axis), &shifted, "log_softmax");
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
fn extremes() {
    const INF: f32 = f32::INFINITY;
    for machine in machines() {
        for axis in [1, 5, 40, 5000, 50_000] {
            let one = |fill: f32, special: f32, at: usize| {
                let mut x = vec![fill; axis];
                x[at] = special;
                run::<f32, false>(machine, &x, axis)[0]
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
            let log = run::<F16, false>(machine, &halves, axis)[0].to_f32();
            assert!(log >= 65504.0, "{log}");
        }
    }
}
