use crate::testing::*;
use mlx_primitives_kernels::element::{Bf16, F16};
use mlx_primitives_kernels::rms_norm::*;

fn run<T: Sample>(on: Machine, x: &[T], w: Option<&[T]>, axis: usize, eps: f32) -> Vec<T> {
    let rows = x.len().checked_div(axis).unwrap_or(3);
    let mut out = vec![T::default(); x.len()];
    let w = w.map_or(std::ptr::null(), <[T]>::as_ptr);
    // SAFETY: the buffers hold rows * axis and axis elements.
    unsafe { rms_norm_on(on, x.as_ptr(), w, out.as_mut_ptr(), rows, axis, eps) };
    let mut place = x.to_vec();
    // SAFETY: as above, in place.
    unsafe { rms_norm_on(on, place.as_ptr(), w, place.as_mut_ptr(), rows, axis, eps) };
    assert_same(&place, &out, "in place");
    out
}

fn reference<T: Sample>(x: &[T], w: Option<&[T]>, axis: usize, eps: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(axis.max(1)) {
        let sum: f64 = row.iter().map(|v| f64::from(v.to_f32()).powi(2)).sum();
        let inverse = 1.0 / (sum / axis as f64 + eps).sqrt();
        out.extend(row.iter().enumerate().map(|(i, v)| {
            f64::from(v.to_f32()) * inverse * w.map_or(1.0, |w| f64::from(w[i].to_f32()))
        }));
    }
    out
}

fn shapes<T: Sample>() {
    for axis in AXES {
        for rows in ROWS {
            let (x, w) = (values::<T>(rows * axis, 3.0), values::<T>(axis, 2.0));
            for w in [None, Some(&w[..])] {
                let expected = reference(&x, w, axis, 1e-5);
                let first = run(machines()[0], &x, w, axis, 1e-5);
                let relative = f64::from(T::EPSILON) * 1.01 + 2e-6;
                assert_close(&first, &expected, relative, 1e-7, "rms_norm");
                for machine in &machines()[1..] {
                    assert_same(&run(*machine, &x, w, axis, 1e-5), &first, "rms_norm");
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
fn the_normalized_value_is_rounded_before_the_weight() {
    let (x, w) = (values::<F16>(100, 3.0), values::<F16>(100, 2.0));
    let bare = run(Machine::current(), &x, None, 100, 1e-5);
    let weighted = run(Machine::current(), &x, Some(&w), 100, 1e-5);
    for i in 0..100 {
        let expected = rounded::<F16>(bare[i].to_f32() * w[i].to_f32());
        assert_eq!(weighted[i].to_f32(), expected);
    }
}

#[test]
fn extremes() {
    for machine in machines() {
        let norm = |x: &[f32]| run(machine, x, None, x.len(), 0.0);
        assert!(norm(&[1e30, 1.0, -2.0]).iter().all(|&v| v == 0.0));
        assert!(norm(&[f32::NAN, 1.0, 2.0]).iter().all(|v| v.is_nan()));
        let infinite = norm(&[f32::INFINITY, 1.0, -2.0]);
        assert!(infinite[0].is_nan() && infinite[1] == 0.0 && infinite[2] == 0.0);
        let large = vec![F16::from_f32(65504.0); 33];
        let out = run(machine, &large, None, 33, 1e-5);
        assert!(out.iter().all(|v| v.to_f32() == 1.0));
        let over = run(machine, &large, Some(&large), 33, 0.0);
        assert!(over.iter().all(|v| v.to_f32() >= 65504.0));
        let tiny = vec![F16::from_f32(6e-8); 33];
        assert!(run(machine, &tiny, None, 33, 0.0).iter().all(|v| v.to_f32() == 1.0));
    }
}
