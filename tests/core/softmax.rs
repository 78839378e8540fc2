//! `softmax`: scales and underflow. The conformance table (`tests/catalog`) tests its values.

use mlx_primitives::device::Device;
use mlx_primitives::{Dtype, ops};

use crate::support::compare::{assert_close, numbers, ulps};
use crate::support::input::{data, random32};
use crate::support::{Checked, each_device, reference};

#[test]
fn rows_sum_to_one_whatever_their_scale() -> Checked {
    each_device(|_| {
        for scale in [0.0, 1e-30, 1.0, 30.0, 1e4, 1e38] {
            let x = random32(&[7, 1000], 5)?.divide(3.0)?.multiply(scale)?;
            let sums = numbers(&ops::softmax(&x)?.sum(-1)?)?;
            // A sum has up to 1000 terms. Each addition is wrong by at most half an ulp of 1.
            assert_close(&sums, &[1.0; 7], 1000.0 * 6e-8, &format!("scale {scale}"));
        }
        Ok(())
    })
}

#[test]
fn a_shift_of_powers_of_two_changes_nothing() -> Checked {
    each_device(|_| {
        // The numbers are multiples of 1/8 below 4. Adding 64 is exact, so x - max does not change.
        let x: Vec<f32> = (0..300).map(|i| (i * 7 % 32) as f32 / 8.0).collect();
        let x = data(&x, &[3, 100], Dtype::Float32)?;
        let shifted = ops::softmax(&x.add(64.0)?)?.to_vec::<f32>()?;
        assert_eq!(shifted, ops::softmax(&x)?.to_vec::<f32>()?);
        Ok(())
    })
}

#[test]
fn exponentials_may_underflow_only_where_f32_does() -> Checked {
    each_device(|device| {
        // e^-87 is a normal number in f32, and e^-104 is 0. MLX flushes subnormal numbers to 0.
        let x = data(&[0.0, -1.0, -80.0, -87.0, -104.0, -200.0], &[6], Dtype::Float32)?;
        let y = numbers(&ops::softmax(&x)?)?;
        let want = reference::softmax(&numbers(&x)?, 6);
        let error = ulps(&y[..4], &want[..4], Dtype::Float32, "normal");
        // The conformance table's row for softmax explains this bound.
        let bound = if device == Device::Gpu { 22.0 } else { 9.0 };
        assert!(error <= bound, "{error} ulps");
        assert_eq!(y[4..], [0.0, 0.0]);
        Ok(())
    })
}
