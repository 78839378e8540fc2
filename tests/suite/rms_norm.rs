//! `rms_norm` beside its row of `table`: epsilons, traffic.

use mlx_primitives::{Dtype, ops};

use crate::support::compare::{numbers, ulps};
use crate::support::input::random32;
use crate::support::{self, Checked, EPS, each_device, reference};

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

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_each_byte_once() -> Checked {
    let (rows, axis) = (8, 1024);
    let (x, w) = (random32(&[rows, axis], 1)?, random32(&[axis], 2)?);
    mlx_primitives::eval([&x, &w])?;
    let moved = support::moved(|| ops::rms_norm(&x, Some(&w), EPS))?;
    // The weight is asked for by every row; caches answer all but the first.
    let (row, all) = (4 * axis as u64, 4 * (rows * axis) as u64);
    assert_eq!(moved[0].arrays, [[all, 0, all], [all, 0, row], [0, all, 0]]);
    support::report_traffic("rms_norm", &moved, x.nbytes() * 2 + w.nbytes() * rows as usize)
}
