use crate::testing::*;
use mlx_primitives_kernels::element::{Bf16, F16};
use mlx_primitives_kernels::softmax::*;

fn run<T: Sample>(on: Machine, x: &[T], axis: usize) -> Vec<T> {
    let rows = x.len().checked_div(axis).unwrap_or(3);
    let mut out = vec![T::default(); x.len()];
    // SAFETY: both buffers hold rows * axis elements.
    unsafe { softmax_on(on, x.as_ptr(), out.as_mut_ptr(), rows, axis) };
    let mut place = x.to_vec();
    // SAFETY: as above, in place.
    unsafe { softmax_on(on, place.as_ptr(), place.as_mut_ptr(), rows, axis) };
    assert_same(&place, &out, "in place");
    out
}

fn reference<T: Sample>(x: &[T], axis: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(axis.max(1)) {
        let row: Vec<f64> = row.iter().map(|v| f64::from(v.to_f32())).collect();
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
        out.extend(row.iter().map(|v| (v - max).exp() / sum));
    }
    out
}

fn shapes<T: Sample>() {
    for axis in AXES {
        for rows in ROWS {
            let x = values::<T>(rows * axis, 12.0);
            let expected = reference(&x, axis);
            let first = run(machines()[0], &x, axis);
            // Half a unit of f16's smallest, for values below its normal range.
            let relative = f64::from(T::EPSILON) / 2.0 + 4e-6;
            assert_close(&first, &expected, relative, 3.1e-8, "softmax");
            for machine in &machines()[1..] {
                assert_same(&run(*machine, &x, axis), &first, "softmax");
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
fn extremes_as_mlx() {
    const INF: f32 = f32::INFINITY;
    for machine in machines() {
        for axis in [1, 5, 16, 40, 5000] {
            let row = |special: f32, at: usize| {
                let mut x = vec![1.0f32; axis];
                x[at] = special;
                run(machine, &x, axis)
            };
            for at in [0, axis / 2, axis - 1] {
                assert!(row(f32::NAN, at).iter().all(|v| v.is_nan()));
                assert!(row(INF, at).iter().all(|v| v.is_nan()));
                if axis > 1 {
                    let masked = row(-INF, at);
                    assert_eq!(masked[at], 0.0);
                    let share = 1.0 / (axis - 1) as f32;
                    assert!(masked.iter().all(|&v| v == 0.0 || (v / share - 1.0).abs() < 1e-6));
                    assert_eq!(row(f32::MIN, at)[at], 0.0);
                    assert_eq!(row(f32::MAX, at)[at], 1.0);
                }
            }
            assert!(run(machine, &vec![-INF; axis], axis).iter().all(|v| v.is_nan()));
            let half = vec![F16::from_f32(-INF); axis];
            assert!(run(machine, &half, axis).iter().all(|v| v.to_f32().is_nan()));
        }
        // Gradual underflow, as e^-100 is subnormal.
        let out = run(machine, &[0.0f32, -100.0], 2);
        assert!((f64::from(out[1]) / (-100f64).exp() - 1.0).abs() < 0.02, "{:e}", out[1]);
    }
}
