use crate::testing::*;
use mlx_primitives_kernels::layer_norm::*;

fn run<T: Sample>(x: &[T], (w, b): (&[T], &[T]), axis: usize, eps: f32) -> Vec<T> {
    let rows = x.len().checked_div(axis).unwrap_or(3);
    let affine = Affine { weight: pointer(w), bias: pointer(b) };
    in_place(x, |on, from, to| {
        // SAFETY: the row buffers hold rows * axis elements, and the vectors hold axis elements.
        unsafe { layer_norm_on(on, from, affine, to, rows, axis, eps) };
    })
}

fn reference<T: Sample>(x: &[T], (w, b): (&[T], &[T]), axis: usize) -> Vec<f64> {
    let (w, b) = (wide(w), wide(b));
    let mut out = Vec::with_capacity(x.len());
    for row in wide(x).chunks_exact(axis.max(1)) {
        let mean = row.iter().sum::<f64>() / axis as f64;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / axis as f64;
        let inverse = 1.0 / (variance + 1e-5).sqrt();
        out.extend(row.iter().enumerate().map(|(i, v)| {
            (v - mean) * inverse * w.get(i).unwrap_or(&1.0) + b.get(i).unwrap_or(&0.0)
        }));
    }
    out
}

/// Random values with a mean of 1.
fn shifted<T: Sample>(count: usize, scale: f32) -> Vec<T> {
    values::<f32>(count, scale).into_iter().map(|v| T::from_f32(v + 1.0)).collect()
}

fn shapes<T: Sample>() {
    for (rows, axis) in rows_and_axes(300_000) {
        let x = shifted::<T>(rows * axis, 3.0);
        let (w, b) = (values::<T>(axis, 2.0), values::<T>(axis + 1, 2.0));
        let (w, b) = (&w[..], &b[..axis]);
        for affine in [(&[][..], &[][..]), (w, &[]), (&[], b), (w, b)] {
            let expected = reference(&x, affine, axis);
            // The bounds cover three roundings of values below 4 * 2 + 2. In f32 they also cover
            // the error of the mean, which is divided by a small deviation in short rows.
            let relative = f64::from(T::EPSILON) * 1.01 + 2e-6;
            let absolute = 4.0 * f64::from(T::EPSILON) + 2e-5;
            let got = run(&x, affine, axis, 1e-5);
            assert_close(&got, &expected, relative, absolute, "layer_norm");
        }
    }
}

each_type!(shapes);

#[test]
fn each_step_is_rounded_before_the_next() {
    let x = shifted::<F16>(100, 3.0);
    let (w, b) = (values::<F16>(100, 2.0), values::<F16>(101, 2.0));
    let (w, b) = (&w[..], &b[..100]);
    let (bare, both) = (run(&x, (&[], &[]), 100, 1e-5), run(&x, (w, b), 100, 1e-5));
    for i in 0..100 {
        let product = rounded::<F16>(bare[i].to_f32() * w[i].to_f32());
        assert_eq!(both[i].to_f32(), rounded::<F16>(product + b[i].to_f32()));
    }
}

#[test]
fn extremes() {
    let norm = |x: &[f32]| run(x, (&[], &[]), x.len(), 1e-5);
    assert_eq!(norm(&[7.0]), [0.0]);
    assert!(norm(&[5.0; 40]).iter().all(|&v| v == 0.0));
    assert!(norm(&[f32::NAN, 1.0, 2.0]).iter().all(|v| v.is_nan()));
    assert!(norm(&[f32::INFINITY, 1.0, -2.0]).iter().all(|v| v.is_nan()));
    // The kernel must subtract the mean before it squares anything.
    let offset: Vec<f32> = (0..64).map(|i| 1e6 + (i % 2) as f32).collect();
    assert_close(&norm(&offset), &reference(&offset, (&[], &[]), 64), 1e-5, 0.0, "offset");
    let large = vec![F16::from_f32(65504.0); 33];
    assert!(run(&large, (&[], &[]), 33, 1e-5).iter().all(|v| v.to_f32() == 0.0));
}
