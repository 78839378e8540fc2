use crate::reference;
use crate::testing::*;
use mlx_primitives_kernels::softmax::*;

fn run<T: Sample>(x: &[T], axis: usize) -> Vec<T> {
    let rows = x.len().checked_div(axis).unwrap_or(3);
    in_place(x, |on, from, to| {
        // SAFETY: both buffers hold rows * axis elements.
        unsafe { softmax_on(on, from, to, rows, axis) };
    })
}

fn shapes<T: Sample>() {
    for (rows, axis) in rows_and_axes(usize::MAX) {
        let x = values::<T>(rows * axis, 12.0);
        let expected = reference::softmax(&wide(&x), axis);
        // The absolute bound is half of f16's smallest number, for values below f16's normal range.
        let relative = f64::from(T::EPSILON) / 2.0 + 4e-6;
        assert_close(&run(&x, axis), &expected, relative, 3.1e-8, "softmax");
    }
}

each_type!(shapes);

#[test]
fn extremes_as_mlx() {
    const INF: f32 = f32::INFINITY;
    for axis in [1, 5, 16, 40, 5000] {
        let row = |special: f32, at: usize| {
            let mut x = vec![1.0f32; axis];
            x[at] = special;
            run(&x, axis)
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
        assert!(run(&vec![-INF; axis], axis).iter().all(|v| v.is_nan()));
        let half = vec![F16::from_f32(-INF); axis];
        assert!(run(&half, axis).iter().all(|v| v.to_f32().is_nan()));
    }
    // Underflow is gradual: e^-100 is subnormal.
    let out = run(&[0.0f32, -100.0], 2);
    assert!((f64::from(out[1]) / (-100f64).exp() - 1.0).abs() < 0.02, "{:e}", out[1]);
}
