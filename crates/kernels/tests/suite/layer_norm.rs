use crate::testing::*;
use mlx_primitives_kernels::element::{Bf16, F16};
use mlx_primitives_kernels::layer_norm::*;

type Optional<'a, T> = Option<&'a [T]>;

fn pointer<T>(values: Optional<T>) -> *const T {
    values.map_or(std::ptr::null(), <[T]>::as_ptr)
}

fn run<T: Sample>(
    on: Machine,
    x: &[T],
    (w, b): (Optional<T>, Optional<T>),
    axis: usize,
    eps: f32,
) -> Vec<T> {
    let rows = x.len().checked_div(axis).unwrap_or(3);
    let mut out = vec![T::default(); x.len()];
    let affine = Affine { weight: pointer(w), bias: pointer(b) };
    // SAFETY: the buffers hold rows * axis and axis elements.
    unsafe { layer_norm_on(on, x.as_ptr(), affine, out.as_mut_ptr(), rows, axis, eps) };
    let mut place = x.to_vec();
    // SAFETY: as above, in place.
    unsafe { layer_norm_on(on, place.as_ptr(), affine, place.as_mut_ptr(), rows, axis, eps) };
    assert_same(&place, &out, "in place");
    out
}

fn wide<T: Sample>(values: &[T]) -> Vec<f64> {
    values.iter().map(|v| f64::from(v.to_f32())).collect()
}

fn reference<T: Sample>(
    x: &[T],
    (w, b): (Optional<T>, Optional<T>),
    axis: usize,
    eps: f64,
) -> Vec<f64> {
    let (w, b) = (w.map(wide), b.map(wide));
    let mut out = Vec::with_capacity(x.len());
    for row in wide(x).chunks_exact(axis.max(1)) {
        let mean = row.iter().sum::<f64>() / axis as f64;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / axis as f64;
        let inverse = 1.0 / (variance + eps).sqrt();
        out.extend(row.iter().enumerate().map(|(i, v)| {
            let scale = w.as_ref().map_or(1.0, |w| w[i]);
            (v - mean) * inverse * scale + b.as_ref().map_or(0.0, |b| b[i])
        }));
    }
    out
}

/// Values about a mean that is not zero.
fn shifted<T: Sample>(count: usize, scale: f32) -> Vec<T> {
    values::<f32>(count, scale).into_iter().map(|v| T::from_f32(v + 1.0)).collect()
}

fn shapes<T: Sample>() {
    for axis in AXES {
        for rows in ROWS {
            if rows * axis > 300_000 {
                continue;
            }
            let x = shifted::<T>(rows * axis, 3.0);
            let (w, b) = (values::<T>(axis, 2.0), values::<T>(axis + 1, 2.0));
            let (w, b) = (Some(&w[..]), Some(&b[..axis]));
            for affine in [(None, None), (w, None), (None, b), (w, b)] {
                let expected = reference(&x, affine, axis, 1e-5);
                let first = run(machines()[0], &x, affine, axis, 1e-5);
                // Up to three roundings of values below 4 * 2 + 2, and as f32's own error
                // that of the mean, which short rows divide by a small deviation.
                let relative = f64::from(T::EPSILON) * 1.01 + 2e-6;
                let absolute = 4.0 * f64::from(T::EPSILON) + 2e-5;
                assert_close(&first, &expected, relative, absolute, "layer_norm");
                for machine in &machines()[1..] {
                    assert_same(&run(*machine, &x, affine, axis, 1e-5), &first, "layer_norm");
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
fn each_step_is_rounded_before_the_next() {
    let x = shifted::<F16>(100, 3.0);
    let (w, b) = (values::<F16>(100, 2.0), values::<F16>(101, 2.0));
    let (w, b) = (Some(&w[..]), Some(&b[..100]));
    let on = Machine::current();
    let bare = run(on, &x, (None, None), 100, 1e-5);
    let both = run(on, &x, (w, b), 100, 1e-5);
    for i in 0..100 {
        let product = rounded::<F16>(bare[i].to_f32() * w.unwrap()[i].to_f32());
        assert_eq!(both[i].to_f32(), rounded::<F16>(product + b.unwrap()[i].to_f32()));
    }
}

#[test]
fn extremes() {
    for machine in machines() {
        let norm = |x: &[f32]| run(machine, x, (None, None), x.len(), 1e-5);
        assert_eq!(norm(&[7.0]), [0.0]);
        assert!(norm(&[5.0; 40]).iter().all(|&v| v == 0.0));
        assert!(norm(&[f32::NAN, 1.0, 2.0]).iter().all(|v| v.is_nan()));
        assert!(norm(&[f32::INFINITY, 1.0, -2.0]).iter().all(|v| v.is_nan()));
        // The mean is subtracted before anything is squared.
        let offset: Vec<f32> = (0..64).map(|i| 1e6 + (i % 2) as f32).collect();
        let expected = reference(&offset, (None, None), 64, 1e-5);
        assert_close(&norm(&offset), &expected, 1e-5, 0.0, "offset");
        let large = vec![F16::from_f32(65504.0); 33];
        let out = run(machine, &large, (None, None), 33, 1e-5);
        assert!(out.iter().all(|v| v.to_f32() == 0.0));
    }
}
