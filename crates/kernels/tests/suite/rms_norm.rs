use crate::reference;
use crate::testing::*;
use mlx_primitives_kernels::rms_norm::*;

fn run<T: Sample>(x: &[T], w: &[T], axis: usize, eps: f32) -> Vec<T> {
    let rows = x.len().checked_div(axis).unwrap_or(3);
    in_place(x, |on, from, to| {
        // SAFETY: the row buffers hold rows * axis elements, and the weight holds axis elements or
        // is null.
        unsafe { rms_norm_on(on, from, pointer(w), to, rows, axis, eps) };
    })
}

fn shapes<T: Sample>() {
    for (rows, axis) in rows_and_axes(usize::MAX) {
        let (x, w) = (values::<T>(rows * axis, 3.0), values::<T>(axis, 2.0));
        for w in [&[], &w[..]] {
            let weight = wide(w);
            let weight = (!w.is_empty()).then_some(&weight[..]);
            let expected = reference::rms_norm(&wide(&x), weight, axis, 1e-5);
            let relative = f64::from(T::EPSILON) * 1.01 + 2e-6;
            assert_close(&run(&x, w, axis, 1e-5), &expected, relative, 1e-7, "rms_norm");
        }
    }
}

each_type!(shapes);

#[test]
fn the_normalized_value_is_rounded_before_the_weight() {
    let (x, w) = (values::<F16>(100, 3.0), values::<F16>(100, 2.0));
    let (bare, weighted) = (run(&x, &[], 100, 1e-5), run(&x, &w, 100, 1e-5));
    for i in 0..100 {
        let expected = rounded::<F16>(bare[i].to_f32() * w[i].to_f32());
        assert_eq!(weighted[i].to_f32(), expected);
    }
}

#[test]
fn extremes() {
    let norm = |x: &[f32]| run(x, &[], x.len(), 0.0);
    assert!(norm(&[1e30, 1.0, -2.0]).iter().all(|&v| v == 0.0));
    assert!(norm(&[f32::NAN, 1.0, 2.0]).iter().all(|v| v.is_nan()));
    let infinite = norm(&[f32::INFINITY, 1.0, -2.0]);
    assert!(infinite[0].is_nan() && infinite[1] == 0.0 && infinite[2] == 0.0);
    let large = vec![F16::from_f32(65504.0); 33];
    assert!(run(&large, &[], 33, 1e-5).iter().all(|v| v.to_f32() == 1.0));
    assert!(run(&large, &large, 33, 0.0).iter().all(|v| v.to_f32() >= 65504.0));
    let tiny = vec![F16::from_f32(6e-8); 33];
    assert!(run(&tiny, &[], 33, 0.0).iter().all(|v| v.to_f32() == 1.0));
}
