//! `layer_norm` beside its row of `table`: means far from zero, plans.

use mlx_primitives::{Array, Dtype, graph, ops};

use crate::support::compare::numbers;
use crate::support::input::data;
use crate::support::{Checked, EPS, each_device};

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
