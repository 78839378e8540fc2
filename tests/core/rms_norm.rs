//! `rms_norm`: small and large epsilons. The conformance table (`tests/catalog`) tests its values.

use mlx_primitives::{Dtype, ops};

use crate::support::compare::{numbers, ulps};
use crate::support::input::random32;
use crate::support::{Checked, each_device, reference};

#[test]
fn epsilon_counts() -> Checked {
    each_device(|_| {
        for eps in [0.0, 1e-12, 1e-6, 1.0, 1e10] {
            let x = random32(&[3, 100], 10)?.multiply(1e-3)?;
            let y = ops::rms_norm(&x, None, eps)?;
            let want = reference::rms_norm(&numbers(&x)?, None, 100, f64::from(eps));
            let error = ulps(&numbers(&y)?, &want, Dtype::Float32, "eps");
            assert!(error <= 4.0, "eps {eps}: {error} ulps");
        }
        Ok(())
    })
}
