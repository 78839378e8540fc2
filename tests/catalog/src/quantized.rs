//! Rows of the catalog for products with packed weights, and for low-rank updates of plain and
//! packed weights. A packed weight is part of the row, not an input.

use mlx_primitives_check::{Backend, Bound, Check, Conformance, Tensor};
use mlx_primitives::ops::{self, LinearWeight, QuantizedLinear, QuantizedWeight};
use mlx_primitives::{Array, Dtype};

use super::products::products;
use super::inputs::{Checked, EPS, FLOATS, FORMATS, K_QUANTS, SCALE, bases, decoded, simulated, ulp, weight};
use super::{composed, derivatives_of_ops, only, reference, Hold};

/// Dequantizes a packed matrix.
fn dense(w: &QuantizedWeight, dtype: Dtype) -> anyhow::Result<Tensor> {
    Ok(Tensor::new([w.outputs() as usize, w.inputs() as usize], decoded(w, dtype)?))
}

/// An f32 sum has an error of a few ulps of the sum of its terms' magnitudes. The terms of an
/// affine code and of its bias are larger than the weight itself. The result is rounded once. With
/// many rows, the decoded weights are also rounded to the type, by half an ulp for each term.
fn linear(w: QuantizedWeight, dtype: Dtype) -> anyhow::Result<Conformance> {
    let dense = dense(&w, dtype)?;
    let of = dense.clone();
    let op = move |x: &[Array]| {
        Ok(vec![ops::quantized_linear(&x[0], &w, QuantizedLinear::default())?])
    };
    let row = Conformance::new("quantized_linear", op, move |x| {
        let [sums, _] = products(&x[0], &dense);
        vec![sums]
    });
    Ok(row
        .dtypes(&[dtype])
        .bounds(|compared| Bound {
            absolute: if compared.peer { 1e-6 } else { 0.0 },
            ..Bound::ulps(if compared.check == Check::Vmap { 1.02 } else { 0.51 })
        })
        .errors(move |compared| {
            let x = &compared.inputs[0];
            let [_, reach] = products(x, &of);
            let rows: usize = x.shape[..x.shape.len() - 1].iter().product();
            // vmap joins the rows of all entries into one product.
            let many = rows > 8 || compared.check == Check::Vmap;
            let decoded = if many { ulp(1.0, dtype) / 2.0 } else { 0.0 };
            let times = if compared.peer { 2e-5 } else { 4e-6 + decoded };
            vec![reach.map(|reach| times * reach)]
        })
        .derivative_bounds(derivatives_of_ops(5e-5, 9.0))
        .without(Check::Extremes, "MLX makes other numbers of them; quantized_matmul.rs has some"))
}

/// The sizes [rows, n, k]. The kernel stages x (copies it to threadgroup memory) once for some
/// sizes, and several times for others. Some sizes exceed a tile, and every loop of the kernels has
/// a remainder for some size.
const SIZES: [[i32; 3]; 13] = [
    [0, 3, 128],
    [1, 1, 128],
    [1, 37, 256],
    [1, 3, 8320],
    [2, 5, 128],
    [3, 6, 640],
    [5, 18, 1152],
    [8, 33, 640],
    [9, 7, 128],
    [33, 35, 256],
    [1, 130, 2048],
    [3, 100, 4224],
    [100, 67, 1152],
];

pub(super) fn quantized_linear_of_every_format_and_size(hold: &Hold<'_>) -> Checked {
    for (format, dtype) in FORMATS.into_iter().flat_map(|format| FLOATS.map(|d| (format, d))) {
        // The last sizes would take too long in the simulator.
        for [rows, n, k] in SIZES.into_iter().take(if simulated() { 10 } else { 13 }) {
            let w = weight(format, n, k, dtype, 1)?;
            let mut row = linear(w.clone(), dtype)?.sizes(&[&[rows, k]]);
            // Only float32 is compared with MLX: for some formats, MLX's CPU backend adds up
            // products in the type of the result, so its 16-bit results are less accurate.
            if dtype == Dtype::Float32 && rows * n * k < 300_000 {
                let op = move |x: &[Array]| {
                    Ok(vec![ops::quantized_linear(&x[0], &w, QuantizedLinear::default())?])
                };
                row = row.peer(composed(op), |_| Bound { absolute: 1e-6, ..Bound::default() });
            }
            hold(only(Check::Values, row))?;
        }
    }
    for format in K_QUANTS {
        for [rows, n, k] in SIZES.into_iter().take(if simulated() { 10 } else { 13 }) {
            let w = weight(format, n, (k + 255) / 256 * 256, Dtype::Float32, 1)?;
            let shape = [rows, w.inputs()];
            hold(only(Check::Values, linear(w, Dtype::Float32)?.sizes(&[&shape])))?;
        }
    }
    Ok(())
}

pub(super) fn quantized_linear(hold: &Hold<'_>) -> Checked {
    for dtype in FLOATS {
        let row = linear(weight(FORMATS[3], 19, 64, dtype, 5)?, dtype)?;
        hold(row.shapes(&[&[3, 64]]).shapes(&[&[2, 3, 64]]).shapes(&[&[12, 64]]).shapes(&[&[64]]))?;
    }
    Ok(())
}

/// Tests a product with all options. The inputs are x, the norm's weight, the bias and the
/// residual. A result is an f32 sum of 64 products of numbers up to 9.
pub(super) fn quantized_linear_with_everything(hold: &Hold<'_>) -> Checked {
    for format in [FORMATS[3], FORMATS[7]] {
        let w = weight(format, 5, 64, Dtype::Float32, 26)?;
        let dense = dense(&w, Dtype::Float32)?;
        let op = move |x: &[Array]| {
            let norm = Some((&x[1], EPS));
            let options = QuantizedLinear { norm, bias: Some(&x[2]), residual: Some(&x[3]) };
            Ok(vec![ops::quantized_linear(&x[0], &w, options)?])
        };
        let row = Conformance::new("quantized_linear, all", op, move |x| {
            let normed = reference::rms_norm(&x[0].values, Some(&x[1].values), 64, f64::from(EPS));
            let [mut y, _] = products(&Tensor::new(x[0].shape.clone(), normed), &dense);
            for (i, y) in y.values.iter_mut().enumerate() {
                *y += x[2].values[i % 5] + x[3].values[i];
            }
            vec![y]
        });
        let row = row
            .dtypes(&[Dtype::Float32])
            .bounds(|_| Bound { absolute: 5e-5, ..Bound::ulps(5e-5 / f64::from(f32::EPSILON)) });
        let row = row.derivative_bounds(derivatives_of_ops(5e-5, 9.0));
        let row = row.without(Check::Extremes, "the plain product has some");
        hold(row.shapes(&[&[3, 64], &[64], &[5], &[3, 5]]))?;
    }
    Ok(())
}

/// The op rounds five times, and the product with B multiplies the error of the first rounding.
/// With many rows, the decoded weights are rounded too. The inputs are x, A and B, and also the
/// base if `base` is `None`.
fn lora(base: Option<(LinearWeight, Vec<f64>)>, [n, k]: [i32; 2], dtype: Dtype) -> Conformance {
    let (base, held) = base.unzip();
    let held = held.map(|values| Tensor::new([n as usize, k as usize], values));
    let dense = move |x: &[Tensor]| held.clone().unwrap_or_else(|| x[3].clone());
    let of = dense.clone();
    let op = move |x: &[Array]| {
        let plain = || LinearWeight::from(&x[3]);
        let base = base.as_ref().map_or_else(plain, Clone::clone);
        Ok(vec![ops::lora_linear(&x[0], &base, &x[1], &x[2], SCALE)?])
    };
    let exactly = move |x: &[Tensor]| {
        let [mut y, _] = products(&x[0], &dense(x));
        let [low, _] = products(&x[0], &x[1]);
        let [high, _] = products(&low, &x[2]);
        y.values.iter_mut().zip(&high.values).for_each(|(y, z)| *y += f64::from(SCALE) * z);
        vec![y]
    };
    Conformance::new("lora_linear", op, exactly)
        .range(-0.6, 0.6)
        .dtypes(&[dtype])
        .bounds(|_| Bound::default())
        .errors(move |compared| {
            let (x, scale) = (compared.inputs, f64::from(SCALE));
            let [base, reach] = products(&x[0], &of(x));
            let [low, low_reach] = products(&x[0], &x[1]);
            let [high, _] = products(&low, &x[2]);
            let [high_reach, _] = products(&low_reach, &x[2].map(f64::abs));
            let rows: usize = x[0].shape[..x[0].shape.len() - 1].iter().product();
            let error = |i: usize| {
                let (base, high) = (base.values[i], scale * high.values[i]);
                let (reach, of_high) = (reach.values[i], scale * high_reach.values[i]);
                let terms = base.abs() + 2.0 * high.abs() + (base + high).abs();
                let decoded = if rows > 8 { reach } else { 0.0 };
                ulp(1.0, dtype) * (terms + of_high + decoded) + 4e-6 * (reach + of_high)
            };
            let errors: Vec<f64> = (0..base.values.len()).map(error).collect();
            vec![Tensor::new(base.shape.clone(), errors)]
        })
        .derivative_bounds(derivatives_of_ops(5e-5, 9.0))
        .without(Check::Extremes, "the products without updates have some")
}

pub(super) fn lora_linear_of_every_base_rank_and_size(hold: &Hold<'_>) -> Checked {
    for dtype in FLOATS {
        for (n, k) in [(1, 1), (7, 33), (37, 128), (20, 256)] {
            for base in bases(n, k, dtype)? {
                let mut row = lora(Some(base), [n, k], dtype);
                for rank in [1, 4, 8, 17, 40] {
                    for rows in [0, 1, 3, 11, 35] {
                        if !simulated() || rank < 40 && rows < 35 {
                            row = row.sizes(&[&[rows, k], &[rank, k], &[n, rank]]);
                        }
                    }
                }
                hold(only(Check::Values, row))?;
            }
        }
    }
    Ok(())
}

pub(super) fn lora_linear(hold: &Hold<'_>) -> Checked {
    for dtype in FLOATS {
        for base in bases(5, 64, dtype)? {
            hold(lora(Some(base), [5, 64], dtype).shapes(&[&[3, 64], &[2, 64], &[5, 2]]))?;
        }
        hold(lora(None, [6, 12], dtype).shapes(&[&[2, 3, 12], &[4, 12], &[6, 4], &[6, 12]]))?;
    }
    Ok(())
}

/// Tests `dequantize` with fixed two-bit codes. A weight is a product and a sum. Each is rounded to
/// the type, as on MLX's CPU backend.
pub(super) fn dequantize(hold: &Hold<'_>) -> Checked {
    const WORDS: [u32; 4] = [0x1234_5678, 0x9abc_def0, 7, 1 << 31];
    fn products(x: &[Tensor]) -> impl Iterator<Item = (f64, f64)> {
        let code = |i: usize| WORDS[i / 16] >> (i % 16 * 2) & 3;
        (0..64).map(move |i| (f64::from(code(i)) * x[0].values[i / 32], x[1].values[i / 32]))
    }
    let op = |x: &[Array]| {
        let packed = Array::from_slice(&WORDS, [2, 2])?;
        Ok(vec![ops::dequantize(&packed, &x[0], &x[1], 32, 2)?])
    };
    let row = Conformance::new("dequantize", op, |x| {
        vec![Tensor::new([2, 32], products(x).map(|(a, b)| a + b).collect::<Vec<_>>())]
    })
    .shapes(&[&[2, 1], &[2, 1]])
    .bounds(|_| Bound::ulps(0.51))
    .errors(|compared| {
        let half = if compared.peer { 0.0 } else { ulp(1.0, compared.dtype) / 2.0 };
        let errors = products(compared.inputs).map(|(a, _)| half * a.abs());
        vec![Tensor::new([2, 32], errors.collect::<Vec<_>>())]
    })
    .peer(composed(op), |compared| {
        if compared.backend == Backend::Gpu { Bound::ulps(1.0) } else { Bound::default() }
    })
    .extremes_as_peer();
    hold(row.vmap_bounds(|_| Bound::default()).derivative_bounds(derivatives_of_ops(1e-4, 40.0)))
}
