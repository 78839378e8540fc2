//! `layer_norm` beside its row of `table`: means far from zero, refusals, plans, traffic.

use mlx_primitives::{Array, Dtype, Result, graph, ops};

use crate::support::compare::numbers;
use crate::support::input::{data, random32};
use crate::support::{self, Checked, EPS, each_device, message};

#[test]
fn a_mean_far_from_zero_is_subtracted_first() -> Checked {
    each_device(|_| {
        // The squares of such numbers in f32 leave no digit of a variance of a quarter.
        for axis in [64, 4096, 20_000] {
            let x: Vec<f32> = (0..axis).map(|i| 1e4 + (i % 2) as f32).collect();
            let y = ops::layer_norm(&data(&x, &[1, axis], Dtype::Float32)?, None, None, 0.0)?;
            let worst = numbers(&y)?.iter().map(|v| (v.abs() - 1.0).abs()).fold(0.0, f64::max);
            // The mean's rounding, half an ulp of ten thousand, is a thousandth of the deviation.
            assert!(worst <= 0.005, "{axis}: {worst}");
        }
        Ok(())
    })
}

#[test]
fn bad_input_is_refused() -> Checked {
    let x = random32(&[2, 8], 1)?;
    let refused = |result: Result<Array>, mentions: &str| {
        let text = message(result);
        assert!(text.starts_with("[layer_norm] expected ") && text.contains("got "), "{text}");
        assert!(text.contains(mentions), "{text} lacks {mentions}");
    };
    for shape in [&[][..], &[1], &[7], &[9], &[8, 1], &[1, 8]] {
        let vector = Array::ones::<f32>(shape)?;
        refused(ops::layer_norm(&x, Some(&vector), None, EPS), "weight of shape (8)");
        refused(ops::layer_norm(&x, None, Some(&vector), EPS), "bias of shape (8)");
    }
    refused(ops::layer_norm(&Array::scalar(1.0f32)?, None, None, EPS), "scalar");
    refused(ops::layer_norm(&Array::zeros::<f32>(&[3, 0])?, None, None, EPS), "(3,0)");
    for dtype in [Dtype::Int32, Dtype::Bool, Dtype::Complex64, Dtype::Float64] {
        refused(ops::layer_norm(&x.astype(dtype)?, None, None, EPS), dtype.name());
    }
    Ok(())
}

#[test]
fn plans_keep_a_row_in_registers_while_it_fits() -> Checked {
    for (axis, threads, form, group) in [
        (128, 1024, "simd", 256),
        (129, 1024, "row", 64),
        (4096, 1024, "row", 1024),
        (4096, 512, "row2", 512),
        (16384, 1024, "row4", 1024),
        (16385, 1024, "looped", 1024),
    ] {
        let x = Array::zeros::<half::bf16>(&[8, axis])?;
        let launch = &graph::dispatches(&ops::layer_norm(&x, None, None, EPS)?, threads)?[0];
        assert_eq!(launch.kernel, format!("mlxp_layer_norm_{form}_bfloat16"));
        assert_eq!(launch.group, [group, 1, 1]);
        // Two floats for each SIMD group.
        let scratch = if form == "simd" { 0 } else { group / 32 * 8 };
        assert_eq!(launch.threadgroup_bytes, scratch);
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_each_byte_once_and_long_rows_twice() -> Checked {
    for (rows, axis, reads) in [(8, 100, 1), (4, 1024, 1), (2, 16384, 1), (1, 20_000, 2)] {
        let (x, w) = (random32(&[rows, axis], 1)?, random32(&[axis], 2)?);
        let b = random32(&[axis], 3)?;
        mlx_primitives::eval([&x, &w, &b])?;
        let moved = support::moved(|| ops::layer_norm(&x, Some(&w), Some(&b), EPS))?;
        assert_eq!(moved.len(), 1);
        // Weight and bias are asked for by every row; caches answer all but the first.
        let (row, all) = (4 * axis as u64, 4 * (rows * axis) as u64);
        let want = [[reads * all, 0, all], [all, 0, row], [all, 0, row], [0, all, 0]];
        assert_eq!(moved[0].arrays, want, "{rows}x{axis}");
        if axis == 1024 {
            let ideal = x.nbytes() * 2 + w.nbytes() * 2 * rows as usize;
            support::report_traffic("layer_norm", &moved, ideal)?;
        }
    }
    Ok(())
}
