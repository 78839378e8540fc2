//! `layer_norm`: means far from zero. The conformance table (`tests/catalog`) tests its values.

use mlx_primitives::{Dtype, ops};

use crate::support::compare::numbers;
use crate::support::input::data;
use crate::support::{Checked, each_device};

#[test]
fn a_mean_far_from_zero_is_subtracted_first() -> Checked {
    each_device(|_| {
        // The numbers are near 1e4 and have a variance of a quarter. A variance computed in f32
        // from their squares would have no correct digit.
        for axis in [64, 4096, 20_000] {
            let x: Vec<f32> = (0..axis).map(|i| 1e4 + (i % 2) as f32).collect();
            let y = ops::layer_norm(&data(&x, &[1, axis], Dtype::Float32)?, None, None, 0.0)?;
            let worst = numbers(&y)?.iter().map(|v| (v.abs() - 1.0).abs()).fold(0.0, f64::max);
            // The mean is near ten thousand. Half an ulp of the mean is a thousandth of the
            // standard deviation.
            assert!(worst <= 0.005, "{axis}: {worst}");
        }
        Ok(())
    })
}
