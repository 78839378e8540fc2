//! `softmax` beside its row of `table`: other types, scales, extremes, traffic.

use half::f16;
use mlx_primitives::device::Device;
use mlx_primitives::{Dtype, builtin, ops};

use crate::support::compare::{array_ulps, assert_close, numbers, ulps};
use crate::support::input::{FLOATS, data, random32};
use crate::support::{self, Checked, each_device, reference};

/// The largest errors in ulps against f64 and against MLX's; `table` argues for them.
fn bounds(device: Device, dtype: Dtype, axis: usize) -> (f64, f64) {
    let exp = if device == Device::Gpu { 15.0 } else { 2.0 };
    match dtype {
        Dtype::Float32 => (7.0 + exp, 7.0 + 2.0 * exp + (axis as f64).sqrt()),
        _ => (0.51, 1.0),
    }
}

#[test]
fn integers_become_float32() -> Checked {
    each_device(|device| {
        for dtype in [Dtype::Int8, Dtype::Int32, Dtype::Uint16, Dtype::Bool, Dtype::Int64] {
            let x = random32(&[3, 33], 4)?.abs()?.astype(dtype)?;
            let y = ops::softmax(&x)?;
            let error = array_ulps(&y, &builtin::softmax(&x)?, dtype.name())?;
            assert!(error <= bounds(device, Dtype::Float32, 33).1, "{dtype}: {error} ulps");
            assert_eq!(y.dtype(), Dtype::Float32);
        }
        Ok(())
    })
}

#[test]
fn rows_sum_to_one_whatever_their_scale() -> Checked {
    each_device(|_| {
        for scale in [0.0, 1e-30, 1.0, 30.0, 1e4, 1e38] {
            let x = random32(&[7, 1000], 5)?.divide(3.0)?.multiply(scale)?;
            let sums = numbers(&ops::softmax(&x)?.sum(-1, false)?)?;
            // 1000 roundings to half an ulp of at most 1, in the worst case.
            assert_close(&sums, &[1.0; 7], 1000.0 * 6e-8, &format!("scale {scale}"));
        }
        Ok(())
    })
}

#[test]
fn a_shift_of_powers_of_two_changes_nothing() -> Checked {
    each_device(|_| {
        // Multiples of 1/8 below 4 stay exact when 64 is added, so x - max is the same.
        let x: Vec<f32> = (0..300).map(|i| (i * 7 % 32) as f32 / 8.0).collect();
        let x = data(&x, &[3, 100], Dtype::Float32)?;
        let shifted = ops::softmax(&x.add(64.0)?)?.to_vec::<f32>()?;
        assert_eq!(shifted, ops::softmax(&x)?.to_vec::<f32>()?);
        Ok(())
    })
}

/// Rows at the edges of the types, each finished with ordinary numbers to 40 elements.
fn extreme_rows(dtype: Dtype) -> Vec<Vec<f32>> {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let large = if dtype == Dtype::Float16 { f16::MAX.to_f32() } else { 1e30 };
    let small = if dtype == Dtype::Float16 { 6e-8 } else { 1e-42 };
    let spread = |head: &[f32]| {
        let mut row: Vec<f32> = (0..40).map(|i| i as f32 / 8.0 - 2.0).collect();
        row[..head.len()].copy_from_slice(head);
        row
    };
    let mut one_finite = vec![-inf; 40];
    one_finite[17] = -3.0;
    vec![
        vec![0.0; 40],
        vec![5.0; 40],
        vec![large; 40],
        vec![-large; 40],
        vec![small; 40],
        vec![-inf; 40],
        vec![inf; 40],
        vec![nan; 40],
        one_finite,
        spread(&[large]),
        spread(&[-large, large]),
        spread(&[small, -small, 0.0, -0.0]),
        spread(&[inf]),
        spread(&[-inf, -inf, -inf]),
        spread(&[inf, -inf]),
        spread(&[nan]),
        spread(&[nan, inf]),
    ]
}

#[test]
fn extremes_are_those_of_mlx() -> Checked {
    each_device(|device| {
        for dtype in FLOATS {
            for (i, row) in extreme_rows(dtype).into_iter().enumerate() {
                // Alone, and between two ordinary rows that must not notice.
                let ordinary: Vec<f32> = (0..40).map(|i| i as f32 / 16.0).collect();
                let all = [&ordinary[..], &row, &ordinary].concat();
                for x in [data(&row, &[1, 40], dtype)?, data(&all, &[3, 40], dtype)?] {
                    let what = format!("{dtype} row {i}");
                    let error = array_ulps(&ops::softmax(&x)?, &builtin::softmax(&x)?, &what)?;
                    assert!(error <= bounds(device, dtype, 40).1, "{what}: {error} ulps");
                }
            }
        }
        Ok(())
    })
}

#[test]
fn exponentials_may_underflow_only_where_f32_does() -> Checked {
    each_device(|device| {
        // e^-87 is normal in f32, e^-104 is nothing; MLX drops what is subnormal.
        let x = data(&[0.0, -1.0, -80.0, -87.0, -104.0, -200.0], &[6], Dtype::Float32)?;
        let y = numbers(&ops::softmax(&x)?)?;
        let want = reference::softmax(&numbers(&x)?, 6);
        let error = ulps(&y[..4], &want[..4], Dtype::Float32, "normal");
        assert!(error <= bounds(device, Dtype::Float32, 6).0, "{error} ulps");
        assert_eq!(y[4..], [0.0, 0.0]);
        Ok(())
    })
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_each_byte_once() -> Checked {
    let x = random32(&[8, 1024], 1)?;
    x.eval()?;
    let moved = support::moved(|| ops::softmax(&x))?;
    let bytes = x.nbytes() as u64;
    assert_eq!(moved[0].arrays, [[bytes, 0, bytes], [0, bytes, 0]]);
    support::report_traffic("softmax", &moved, x.nbytes() * 2)
}
