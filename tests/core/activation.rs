//! The memory traffic of `affine`. The conformance table (`tests/catalog`) tests the values of
//! `affine` and of activations.

#![cfg(target_os = "linux")]

use mlx_primitives::ops;

use crate::support::input::random32;
use crate::support::{self, Checked};

#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_factors_once_for_four_rows() -> Checked {
    let (a, vector) = (random32(&[8, 1031], 50)?, random32(&[1031], 52)?);
    mlx_primitives::eval([&a, &vector])?;
    let (all, row) = (a.nbytes() as u64, vector.nbytes() as u64);
    let moved = support::moved(|| ops::affine(&a, &vector, &vector))?;
    let factor = [2 * row, 0, row];
    assert_eq!(moved[0].arrays, [[all, 0, all], factor, factor, [0, all, 0]]);
    support::report_traffic("affine", &moved, 2 * a.nbytes() + 2 * vector.nbytes())
}
