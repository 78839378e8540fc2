//! Compares numbers in units in the last place (ulps).

use mlx_primitives::device::{Device, Stream, with_stream};
use mlx_primitives::{Array, Dtype, Result, eval};
use mlx_primitives_check::Backend;

pub use crate::table::inputs::{numbers, ulp};

/// The largest difference from `want` in ulps of `dtype`. NaN and infinities must agree exactly.
#[track_caller]
pub fn ulps(got: &[f64], want: &[f64], dtype: Dtype, what: &str) -> f64 {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    let mut worst = 0.0f64;
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        if got.is_finite() && want.is_finite() {
            worst = worst.max((got - want).abs() / ulp(want, dtype));
        } else {
            let same = got == want || got.is_nan() && want.is_nan();
            assert!(same, "{what}: {got} at {i}, expected {want}");
        }
    }
    worst
}

/// Like [`ulps`], for arrays. Their shapes and types must agree.
#[track_caller]
pub fn array_ulps(got: &Array, want: &Array, what: &str) -> Result<f64> {
    assert_eq!((got.shape(), got.dtype()), (want.shape(), want.dtype()), "{what}");
    Ok(ulps(&numbers(got)?, &numbers(want)?, got.dtype(), what))
}

/// Checks that each difference is at most `tolerance * (1 + |want|)`.
#[track_caller]
pub fn assert_close(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let close = (got - want).abs() <= tolerance * (1.0 + want.abs());
        assert!(close, "{what}: {got:e} at {i}, expected {want:e} within {tolerance:e}");
    }
}

/// Counts the elements that differ in any bit. All NaNs are considered equal.
pub fn differing(got: &Array, want: &Array) -> Result<usize> {
    let bits = |x: &Array| -> Result<Vec<u32>> {
        let values = x.astype(Dtype::Float32)?.to_vec::<f32>()?;
        Ok(values.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect())
    };
    Ok(bits(got)?.iter().zip(bits(want)?).filter(|(got, want)| *got != want).count())
}

/// Checks that shapes, types and bits are equal. All NaNs are considered equal.
#[track_caller]
pub fn assert_same(got: &Array, want: &Array, what: &str) -> Result<()> {
    assert_eq!((got.shape(), got.dtype()), (want.shape(), want.dtype()), "{what}");
    let count = differing(got, want)?;
    assert_eq!(count, 0, "{what}: {count} of {} elements differ\n{got}\n{want}", got.size());
    Ok(())
}

/// Whether ops of this device run on an NVIDIA GPU. Kernels there add in another order than on a
/// Mac, and MLX's graph compiler rounds at other steps.
pub fn is_nvidia(device: Device) -> bool {
    device == Device::Gpu && Backend::Gpu.is_cuda()
}

/// Like [`assert_same`], except on an NVIDIA GPU. There, values may differ by two units in the last
/// place of 1, and by more if they are large.
#[track_caller]
pub fn assert_same_order(device: Device, got: &Array, want: &Array, what: &str) -> Result<()> {
    if !is_nvidia(device) {
        return assert_same(got, want, what);
    }
    assert_eq!((got.shape(), got.dtype()), (want.shape(), want.dtype()), "{what}");
    assert_close(&numbers(got)?, &numbers(want)?, 2.0 * ulp(1.0, want.dtype()), what);
    Ok(())
}

/// Evaluates with MLX's evaluation instead of this crate's. This crate leaves a graph to MLX if one
/// array is on another stream.
pub fn eval_by_mlx(arrays: &[&Array], elsewhere: &Stream) -> Result<()> {
    let other = with_stream(elsewhere, || Array::ones::<f32>((4,))?.exp())?;
    eval(arrays.iter().copied().chain([&other]))
}
