//! `logsumexp` and `log_softmax` of extreme numbers. The conformance table (`tests/catalog`) tests
//! their values.

use half::f16;
use mlx_primitives::{Dtype, builtin, ops};

use crate::support::compare::{array_ulps, numbers, ulp};
use crate::support::input::{FLOATS, data};
use crate::support::{Checked, each_device};

#[test]
fn extremes_are_those_of_mlx() -> Checked {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    each_device(|_| {
        for dtype in FLOATS {
            let large = if dtype == Dtype::Float16 { f16::MAX.to_f32() } else { 1e30 };
            for (len, fill) in [(5, 0.5f32), (40, 0.5), (300, -inf), (300, 0.5)] {
                for special in [&[][..], &[inf], &[-inf], &[nan], &[large], &[-large], &[inf, -inf]]
                {
                    let mut row = vec![fill; len];
                    row[..special.len()].copy_from_slice(special);
                    let x = data(&row, &[1, len as i32], dtype)?;
                    let what = format!("{dtype} {special:?} in {len} of {fill}");
                    let y = ops::logsumexp_keepdims(&x)?;
                    let peer = builtin::composition(&y)?;
                    let error = array_ulps(&y, &peer[0], &what)?;
                    // All nonzero terms of each sum are equal, and the logarithm of 300 is accurate
                    // to 20 ulps.
                    assert!(error <= 20.0, "{what}: {error} ulps");
                    let y = ops::log_softmax(&x)?;
                    let peer = builtin::composition(&y)?;
                    let (ours, theirs) = (numbers(&y)?, numbers(&peer[0])?);
                    for (a, b) in ours.iter().zip(&theirs) {
                        let close = (a - b).abs() <= 8.0 * ulp(6.0, dtype);
                        assert!(close || a == b || a.is_nan() && b.is_nan(), "{what}: {a}, {b}");
                    }
                }
            }
        }
        Ok(())
    })
}
