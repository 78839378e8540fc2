//! Linear layers and matrix products: sums outside a type's range, chains of residuals, traffic.
//! The conformance table (`tests/catalog`) tests their values.

use half::f16;
use mlx_primitives::ops::{self, Linear, RowOrder, with_row_order};
use mlx_primitives::support::gated_linear;
use mlx_primitives::{Array, Dtype, Result, graph};

use crate::support::compare::{assert_close, assert_same, is_nvidia, numbers};
use crate::support::input::{data, random, random32};
use crate::support::{self, Checked, each_device, simulated};

#[test]
fn only_the_result_must_fit() -> Checked {
    each_device(|_| {
        // In the first product, only partial sums exceed float16's range. In the second, the result
        // does too.
        let large = f16::MAX.to_f32();
        let x = data(&[large, large, -large, -large, 1.0], &[1, 5], Dtype::Float16)?;
        let w = data(&[1.0; 5], &[1, 5], Dtype::Float16)?;
        assert_eq!(numbers(&ops::matmul_nt(&x, &w)?)?, [1.0]);
        let x = data(&[large, large, 0.0, 0.0, 1.0], &[1, 5], Dtype::Float16)?;
        assert_eq!(numbers(&ops::matmul_nt(&x, &w)?)?, [f64::INFINITY]);
        Ok(())
    })
}

/// The op overwrites the buffer of a residual, unless something else reads the residual later.
#[test]
fn a_chain_of_residuals() -> Checked {
    each_device(|_| {
        let (x, w) = (random32(&[4, 16], 70)?, random32(&[16, 16], 71)?.multiply(0.01f32)?);
        let rounds = if simulated() { 10 } else { 100 };
        let (mut y, mut want) = (x.clone(), x.clone());
        for _ in 0..rounds {
            y = ops::linear(&x, &w, Linear { residual: Some(&y), ..Default::default() })?;
            want = ops::matmul_nt(&x, &w)?.add(&want)?;
        }
        assert_same(&y, &want, "chain")?;
        assert_same(&x, &random32(&[4, 16], 70)?, "the input")?;
        Ok(())
    })
}

/// For few rows of 16-bit types, NVIDIA GPUs have a special kernel. It requires that each row
/// begins at a multiple of 16 bytes.
#[test]
fn few_rows_have_the_bits_of_one() -> Checked {
    each_device(|_| {
        for dtype in [Dtype::Float16, Dtype::Bfloat16] {
            for k in [8, 264, 1160] {
                let (x, w) = (random(&[9, k], dtype, 90)?, random(&[20, k], dtype, 91)?);
                let bias = random(&[20], dtype, 92)?;
                let product = |x: &Array| {
                    let options = Linear { bias: Some(&bias), ..Default::default() };
                    with_row_order(RowOrder::Tokens, || ops::linear(x, &w, options))
                };
                let all = product(&x)?;
                let [x32, w32, bias32] = [&x, &w, &bias].map(|array| array.astype(Dtype::Float32));
                let want = ops::matmul_nt(&x32?, &w32?)?.add(&bias32?)?;
                let tolerance = if dtype == Dtype::Float16 { 2e-3 } else { 1.6e-2 };
                assert_close(&numbers(&all)?, &numbers(&want)?, tolerance, "a product");
                for row in 0..9 {
                    let alone = product(&x.i(row..row + 1)?)?;
                    assert_same(&alone, &all.i(row..row + 1)?, "a row alone")?;
                }
            }
        }
        Ok(())
    })
}

/// For one row of a 16-bit type, NVIDIA GPUs have one kernel for both products and the gate. If the
/// row is not aligned to 16 bytes, separate kernels run.
#[test]
fn gated_rows_have_the_bits_of_separate_ops() -> Checked {
    let of_nvidia = simulated() && std::env::var_os("MLX_PRIMITIVES_TEST_NVIDIA").is_some();
    each_device(|device| {
        for dtype in [Dtype::Float16, Dtype::Bfloat16] {
            for ([n, k], start) in [([20, 8], 0), ([3, 264], 0), ([70, 1160], 0), ([9, 4104], 4)] {
                let x = random(&[1, k + start], dtype, 90)?.slice_axis(1, start..)?;
                let x = x.reshape([1, 1, k])?;
                x.eval()?;
                let norm = random(&[k], dtype, 91)?;
                let small = |seed| -> Result<Array> { random(&[n, k], dtype, seed)?.multiply(0.1) };
                let [gate, up] = [92, 93].map(small);
                let (gate, up) = (gate?, up?);
                let run = |x: &Array| gated_linear([x, &gate, &up, &norm], 1e-5);
                let order = RowOrder::Tokens;
                assert!(run(&x)?.is_none(), "rows in another order");
                let Some(got) = with_row_order(order, || run(&x))? else {
                    assert!(!of_nvidia && !is_nvidia(device), "{dtype:?}, {n} x {k}");
                    continue;
                };
                let kernel = &graph::dispatches(&got, graph::MAX_THREADS)?[0].kernel;
                assert_eq!(kernel.starts_with("mlxp_linear_gated"), start == 0, "{kernel}");
                assert!(with_row_order(order, || run(&random(&[2, k], dtype, 90)?))?.is_none());
                let apart = || {
                    let y = ops::rms_norm(&x, Some(&norm), 1e-5)?;
                    let [gate, up] = [&gate, &up].map(|w| ops::linear(&y, w, Linear::default()));
                    ops::swiglu(&gate?, &up?)
                };
                assert_same(&got, &with_row_order(order, apart)?, "gated rows")?;
            }
        }
        Ok(())
    })
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_weights_once_for_few_rows() -> Checked {
    for (dtype, m) in [(Dtype::Float32, 1), (Dtype::Bfloat16, 1), (Dtype::Float16, 8)] {
        let (x, w) = (random(&[m, 512], dtype, 80)?, random(&[128, 512], dtype, 81)?);
        x.eval()?;
        w.eval()?;
        let moved = support::moved(|| ops::linear(&x, &w, Linear::default()))?;
        let (wide, rows) = (w.nbytes() as u64, x.nbytes() as u64);
        let out = rows / 4;
        assert_eq!(moved[0].arrays[1], [wide, 0, wide], "{dtype} {m}");
        assert_eq!(*moved[0].arrays.last().expect("out"), [0, out, 0], "{dtype} {m}");
        // Each threadgroup multiplies x by 32 rows of w, and reads all of x.
        assert_eq!(moved[0].arrays[0], [4 * rows, 0, rows], "{dtype} {m}");
        let name = if m > 1 { "linear, 8 rows" } else { "linear" };
        support::report_traffic(name, &moved, x.nbytes() + w.nbytes() + out as usize)?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_tiles_as_often_as_they_are_needed() -> Checked {
    let (m, n, k) = (128u64, 192u64, 64u64);
    let (x, w) = (random32(&[128, 64], 82)?, random32(&[192, 64], 83)?);
    x.eval()?;
    w.eval()?;
    for transposed in [true, false] {
        let w = if transposed { w.clone() } else { w.t()?.contiguous()? };
        w.eval()?;
        let moved =
            support::moved(
                || if transposed { ops::matmul_nt(&x, &w) } else { ops::matmul(&x, &w) },
            )?;
        // Each tile has 64 by 64 outputs.
        assert_eq!(moved[0].arrays[0], [4 * m * k * (n / 64), 0, 4 * m * k]);
        assert_eq!(moved[0].arrays[1], [4 * n * k * (m / 64), 0, 4 * n * k]);
        assert_eq!(*moved[0].arrays.last().expect("out"), [0, 4 * m * n, 0]);
        let name = if transposed { "linear, 128 rows" } else { "matmul" };
        support::report_traffic(name, &moved, 4 * (m * k + n * k + m * n) as usize)?;
    }
    Ok(())
}
