//! `logsumexp` and `log_softmax` beside their rows of `table`: extremes, refusals, traffic.

use half::f16;
use mlx_primitives::{Array, Dtype, builtin, ops};

use crate::support::compare::{array_ulps, numbers, ulp};
use crate::support::input::{FLOATS, data, random32};
use crate::support::{self, Checked, each_device, message};

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
                    let y = ops::logsumexp(&x, true)?;
                    let peer = builtin::composition(&y)?;
                    let error = array_ulps(&y, &peer[0], &what)?;
                    // Sums of equal terms: the logarithm of 300 is within 20 ulps of itself.
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

#[test]
fn bad_input_is_refused() -> Checked {
    for dtype in [Dtype::Complex64, Dtype::Float64] {
        let x = random32(&[2, 8], 10)?.astype(dtype)?;
        assert!(message(ops::logsumexp(&x, false)).starts_with("[logsumexp] expected"));
        assert!(message(ops::log_softmax(&x)).starts_with("[log_softmax] expected"));
    }
    for x in [Array::scalar(1.0f32)?, Array::zeros::<f32>(&[2, 0])?] {
        assert!(message(ops::logsumexp(&x, false)).starts_with("[logsumexp] expected"));
        assert!(message(ops::log_softmax(&x)).starts_with("[log_softmax] expected"));
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_each_byte_once() -> Checked {
    let x = random32(&[8, 5000], 1)?;
    x.eval()?;
    let bytes = x.nbytes() as u64;
    let moved = support::moved(|| ops::logsumexp(&x, true))?;
    assert_eq!(moved[0].arrays, [[bytes, 0, bytes], [0, 32, 0]]);
    support::report_traffic("logsumexp", &moved, x.nbytes() + 32)?;
    let moved = support::moved(|| ops::log_softmax(&x))?;
    assert_eq!(moved[0].arrays, [[bytes, 0, bytes], [0, bytes, 0]]);
    support::report_traffic("log_softmax", &moved, 2 * x.nbytes())
}
