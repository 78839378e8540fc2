//! Weights in `QuantizedMode::KQuant`, whose groups have packed scales as in GGUF's K-quants. The
//! tests decode the numbers bit by bit.

use half::f16;
use mlx_primitives::device::Device;
use mlx_primitives::ops::{CpuActivations, LinearWeight, Lora, RowOrder, with_row_order};
use mlx_primitives::simulator::{Schedule, with_metal};

use super::*;
use crate::support::on_cpu;

/// The number of weights in a group, and the number of bits of a weight's code.
const LAYOUTS: [(i32, i32); 3] = [(32, 4), (32, 5), (16, 6)];

/// A random packed matrix, with its numbers as the test decodes them.
struct Matrix {
    weight: QuantizedWeight,
    numbers: Vec<f64>,
}

fn new(
    packed: &[u32],
    scales: &[u8],
    n: i32,
    (group, bits): (i32, i32),
) -> Result<QuantizedWeight> {
    let columns = |count: usize| count as i32 / n;
    let packed = Array::from_slice(packed, [n, columns(packed.len())])?;
    let scales = Array::from_slice(scales, [n, columns(scales.len())])?;
    QuantizedWeight::new(packed, scales, None, group, bits, QuantizedMode::KQuant)
}

fn matrix(n: i32, k: i32, layout: (i32, i32), seed: u64) -> Result<Matrix> {
    let (bits, group) = (layout.1 as usize, layout.0 as usize);
    let mut state = seed + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 32) as u32
    };
    let packed: Vec<u32> = (0..(n * k) as usize * bits / 32).map(|_| next()).collect();
    let (mut scales, mut of_groups) = (Vec::new(), Vec::new());
    for _ in 0..n * k / 256 {
        let steps = [next(), next()].map(|bits| (f32::from(bits as u8) - 128.0) * 1e-5);
        let steps = [steps[0], if bits == 6 { 0.0 } else { 8.0 * steps[1] }].map(f16::from_f32);
        scales.extend(steps.iter().flat_map(|step| step.to_le_bytes()));
        let integers: [u8; 16] =
            std::array::from_fn(|_| next() as u8 & if bits == 6 { 255 } else { 63 });
        scales.extend(integers);
        let [first, second] = steps.map(f64::from);
        match bits {
            6 => of_groups.extend(integers.map(|i| {
                let scale = first * (f64::from(i) - 128.0);
                (scale, -32.0 * scale)
            })),
            _ => of_groups
                .extend((0..8).map(|i| {
                    (first * f64::from(integers[i]), second * f64::from(integers[8 + i]))
                })),
        }
    }
    let bit = |at: usize| packed[at / 32] >> (at % 32) & 1;
    let number = |i: usize| {
        let code: u32 = (0..bits).map(|b| bit(i * bits + b) << b).sum();
        let (scale, bias) = of_groups[i / group];
        scale * f64::from(code) + bias
    };
    let numbers = (0..(n * k) as usize).map(number).collect();
    Ok(Matrix { weight: new(&packed, &scales, n, layout)?, numbers })
}

#[test]
fn numbers_are_those_of_the_codes_and_scales() -> Checked {
    let (n, k) = (5, 768);
    each_device(|_| {
        for layout in LAYOUTS {
            let Matrix { weight, numbers: want } = matrix(n, k, layout, 3)?;
            assert_eq!((weight.inputs(), weight.outputs()), (k, n));
            assert_eq!(weight.nbytes() * 8, (n * k * layout.1 + n * k / 256 * 160) as usize);
            let all = weight.dequantize()?;
            assert_eq!((all.shape(), all.dtype()), (&[n, k][..], Dtype::Float32));
            assert_close(&numbers(&all)?, &want, 1e-7, &format!("{layout:?}"));
            let (ids, rows) = (Array::from_slice(&[4i32, -5, 4], [3])?, [4, 0, 4]);
            let rows: Vec<f64> = rows
                .iter()
                .flat_map(|row| &want[row * k as usize..][..k as usize])
                .copied()
                .collect();
            let taken = weight.take_rows(&ids, Dtype::Float32)?;
            assert_eq!(taken.shape(), [3, k]);
            assert_close(&numbers(&taken)?, &rows, 1e-7, &format!("rows, {layout:?}"));
            let half = weight.take_rows(&ids.reshape([1, 3])?, Dtype::Bfloat16)?;
            assert_eq!((half.shape(), half.dtype()), (&[1, 3, k][..], Dtype::Bfloat16));
            assert_eq!(LinearWeight::from(&weight).dtype(), Dtype::Float32);
        }
        Ok(())
    })
}

/// Compares a product with a reference. For 16-bit rows, a GPU first unpacks the matrix and rounds
/// its numbers to the type, so the allowed error is larger.
fn check_product(y: &Array, want: &[f64], reach: &[f64], rows: usize, what: &str) -> Checked {
    let rows = if y.dtype() == Dtype::Float32 { rows } else { 9.max(rows) };
    check(y, want, reach, rows, what)
}

#[test]
fn products_and_gradients() -> Checked {
    let (n, k) = (37, 512);
    each_device(|device| {
        for layout in LAYOUTS {
            let Matrix { weight, numbers: of_w } = matrix(n, k, layout, 5)?;
            let columns = |column: usize| of_w.iter().skip(column).step_by(k as usize);
            let turned: Vec<f64> = (0..k as usize).flat_map(columns).copied().collect();
            for dtype in FLOATS {
                for rows in [1, 3, 40] {
                    let what = format!("{layout:?} {dtype} {rows} {device:?}");
                    let x = random(&[rows, k], dtype, 6)?;
                    let y = linear(&x, &weight)?;
                    assert_eq!(y.dtype(), dtype, "{what}");
                    let (want, reach) = product(&numbers(&x)?, &of_w, k as usize);
                    check_product(&y, &want, &reach, rows as usize, &what)?;
                    let g = random(&[rows, n], dtype, 7)?;
                    let gradient = vjp(|x: Array| linear(&x, &weight), &x, &g)?.1;
                    let (want, reach) = product(&numbers(&g)?, &turned, n as usize);
                    check_product(&gradient, &want, &reach, 9, &format!("gradient, {what}"))?;
                }
            }
        }
        Ok(())
    })
}

/// Products with fused steps, and other ops, may add up in another order than the same ops do on
/// the unpacked matrix.
#[test]
fn other_ops_agree_with_the_unpacked_matrix() -> Checked {
    let (n, k) = (24, 256);
    each_device(|_| {
        for layout in LAYOUTS {
            let [a, b] = [matrix(n, k, layout, 8)?.weight, matrix(n, k, layout, 9)?.weight];
            let [wide_a, wide_b] = [a.dequantize()?, b.dequantize()?];
            let (bias, norm) = (random32(&[n], 10)?, random32(&[k], 11)?);
            let (low, high) = (random32(&[4, k], 12)?, random32(&[n, 4], 13)?);
            for rows in [1, 4, 20] {
                let (x, residual) = (random32(&[rows, k], 14)?, random32(&[rows, n], 15)?);
                let normed = ops::rms_norm(&x, Some(&norm), EPS)?;
                let options = QuantizedLinear {
                    bias: Some(&bias),
                    residual: Some(&residual),
                    norm: Some((&norm, EPS)),
                };
                let plain = ops::Linear {
                    bias: Some(&bias),
                    residual: Some(&residual),
                    ..Default::default()
                };
                let both = concatenate(
                    &[&ops::matmul_nt(&x, &wide_a)?, &ops::matmul_nt(&x, &wide_b)?],
                    -1,
                )?;
                let gate = ops::matmul_nt(&x, &wide_a)?;
                let up = ops::matmul_nt(&x, &wide_b)?;
                for (what, ours, theirs) in [
                    (
                        "linear",
                        ops::quantized_linear(&x, &a, options)?,
                        ops::linear(&normed, &wide_a, plain)?,
                    ),
                    ("linears", ops::quantized_linears(&x, &[&a, &b], Default::default())?, both),
                    (
                        "swiglu",
                        ops::quantized_swiglu(&x, &a, &b, None)?,
                        gate.multiply(gate.sigmoid()?)?.multiply(&up)?,
                    ),
                    (
                        "lora",
                        ops::lora_linear(&x, &LinearWeight::from(&a), &low, &high, 0.5)?,
                        ops::lora_linear(&x, &LinearWeight::from(&wide_a), &low, &high, 0.5)?,
                    ),
                ] {
                    let what = format!("{what}, {layout:?}, {rows} rows");
                    let theirs = numbers(&theirs)?;
                    let largest = theirs.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                    for (ours, theirs) in numbers(&ours)?.into_iter().zip(theirs) {
                        assert!(
                            (ours - theirs).abs() <= 2e-5 * largest,
                            "{what}: {ours}, {theirs}"
                        );
                    }
                }
            }
        }
        Ok(())
    })
}

/// The MLX ops that replace a product and its gradient give the same numbers. Second derivatives
/// differentiate these ops.
#[test]
fn compositions_agree() -> Checked {
    on_cpu(|| {
        for layout in LAYOUTS {
            let w = matrix(24, 256, layout, 3)?.weight;
            let (x, g) = (random32(&[3, 256], 4)?, random32(&[3, 24], 5)?);
            let gradient = vjp(|x: Array| linear(&x, &w), &x, &g)?.1;
            for y in [linear(&x, &w)?, gradient] {
                let composed = numbers(&builtin::composition(&y)?[0])?;
                let largest = composed.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                for (ours, theirs) in numbers(&y)?.into_iter().zip(composed) {
                    assert!(
                        (ours - theirs).abs() <= 2e-5 * largest,
                        "{layout:?}: {ours}, {theirs}"
                    );
                }
            }
        }
        Ok(())
    })
}

#[test]
fn a_row_is_the_same_alone_and_in_a_batch() -> Checked {
    each_device(|device| {
        for layout in LAYOUTS {
            let w = matrix(21, 1024, layout, 3)?.weight;
            for dtype in FLOATS {
                if dtype != Dtype::Float32 && (simulated() || device != Device::Cpu) {
                    continue; // MLX's product with the unpacked matrix
                }
                let x = random(&[7, 1024], dtype, 4)?;
                let all = linear(&x, &w)?;
                for row in [0, 3, 6] {
                    let one = linear(&x.i(row..row + 1)?, &w)?;
                    assert_same(&one, &all.i(row..row + 1)?, &format!("{layout:?}"))?;
                }
            }
        }
        Ok(())
    })
}

/// Rounding activations to eight bits changes a product by less than 2 % of the largest result. One
/// row and the rows of a prompt have equal bits.
#[test]
fn activations_in_eight_bits() -> Checked {
    on_cpu(|| {
        for layout in LAYOUTS {
            let w = matrix(64, 512, layout, 3)?.weight;
            let x = random32(&[64, 512], 4)?;
            let exact = numbers(&linear(&x, &w)?)?;
            let w = w.with_activations(CpuActivations::Int8);
            let rounded = numbers(&with_row_order(RowOrder::Prompt, || linear(&x, &w))?)?;
            let largest = exact.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            for (exact, rounded) in exact.iter().zip(&rounded) {
                assert!((exact - rounded).abs() < 0.02 * largest, "{layout:?}: {exact}, {rounded}");
            }
            let last = x.slice_axis(0, -1..)?;
            let alone = numbers(&with_row_order(RowOrder::Tokens, || linear(&last, &w))?)?;
            let multiplies = mlx_primitives::device::cpu_multiplies_bytes();
            assert!(!multiplies || alone == rounded[63 * 64..], "{layout:?}");
        }
        Ok(())
    })
}

/// No function packs weights in this mode. `merge` therefore packs the sum of a weight and a
/// low-rank update in affine mode.
#[test]
fn merged_weights_are_affine() -> Checked {
    for (layout, bits, step) in [(LAYOUTS[0], 4, 0.04), (LAYOUTS[2], 8, 0.004)] {
        let Matrix { weight, numbers: of_w } = matrix(8, 256, layout, 3)?;
        let lora = Lora::new(random32(&[2, 256], 4)?, random32(&[8, 2], 5)?, 0.0)?;
        let LinearWeight::Quantized(merged) = lora.merge(&weight.into())? else {
            anyhow::bail!("expected packed weights");
        };
        let format = (merged.group_size(), merged.bits(), merged.mode());
        assert_eq!(format, (32, bits, QuantizedMode::Affine));
        let range = of_w.iter().fold(0.0f64, |most, w| most.max(2.0 * w.abs()));
        for (got, want) in numbers(&merged.dequantize()?)?.iter().zip(&of_w) {
            assert!((got - want).abs() <= step * range, "{got}, {want}");
        }
    }
    Ok(())
}

/// Uses float32, because then every device multiplies with the packed weights.
#[test]
fn a_dispatch_names_the_bits() -> Checked {
    for (layout, kernel) in LAYOUTS.into_iter().zip(["row_k4", "row_k5", "row_k6"]) {
        let w = matrix(2, 256, layout, 1)?.weight;
        let y = linear(&random32(&[1, 256], 2)?, &w)?;
        let launches = mlx_primitives::graph::dispatches(&y, mlx_primitives::graph::MAX_THREADS)?;
        assert_eq!(launches[0].kernel, format!("mlxp_quantized_matmul_{kernel}_float32"));
    }
    Ok(())
}

#[test]
fn refuses_other_shapes_and_packing() -> Checked {
    let w = matrix(2, 512, (32, 4), 1)?.weight;
    let mode = QuantizedMode::KQuant;
    let remade = |scales: &Array, biases: Option<Array>, group, bits| {
        QuantizedWeight::new(w.packed().clone(), scales.clone(), biases, group, bits, mode)
    };
    let short = w.scales().slice_axis(1, 0..20)?;
    let words = w.packed().slice_axis(1, 0..16)?; // 128 weights
    for (weight, expected) in [
        (remade(w.scales(), None, 64, 4), "groups of 32 and 4 or 5 bits"),
        (remade(w.scales(), None, 32, 6), "groups of 16 and 6 bits"),
        (remade(w.scales(), Some(short.clone()), 32, 4), "biases for affine"),
        (remade(&short, None, 32, 4), "scales of shape"),
        (remade(&w.scales().astype(Dtype::Float32)?, None, 32, 4), "uint8 scales"),
        (QuantizedWeight::new(words, short, None, 32, 4, mode), "a multiple of 256 weights"),
        (QuantizedWeight::quantize(&random32(&[2, 256], 1)?, 32, 4, mode), "a mode that MLX packs"),
    ] {
        let text = message(weight);
        assert!(text.contains(expected), "{text}");
    }
    Ok(())
}

/// Evaluates, on a GPU, graphs that were built for a CPU. Products of 16-bit rows are refused,
/// because the GPU has no kernel for them. Products of float32 rows run, unless the scales of the
/// weights are not aligned.
#[test]
fn a_graph_for_cpus_is_refused_by_a_gpu() -> Checked {
    if !mlx_primitives::simulator::is_available() {
        return Ok(());
    }
    on_cpu(|| {
        let products = |dtype, w: &QuantizedWeight| -> Result<_> {
            let (x, g) = (random(&[1, 256], dtype, 2)?, random(&[1, 2], dtype, 3)?);
            let gradient = vjp(|x: Array| linear(&x, w), &x, &g)?.1;
            let low = [random(&[4, 256], dtype, 4)?, random(&[2, 4], dtype, 5)?];
            let lora = ops::lora_linear(&x, &LinearWeight::from(w), &low[0], &low[1], 0.5)?;
            Ok([linear(&x, w)?, gradient, lora])
        };
        let w = matrix(2, 256, (32, 4), 1)?.weight;
        for y in products(Dtype::Float16, &w)? {
            let text = message(with_metal(Schedule::Forward, || y.eval())?);
            assert!(text.contains("only CPUs have a kernel for k_quant and float16"), "{text}");
        }
        for y in products(Dtype::Float32, &w)? {
            with_metal(Schedule::Forward, || y.eval())??;
        }
        let bytes = Array::from_slice(&[1u8; 41], [41])?.slice_axis(0, 1..41)?;
        let scales = bytes.reshape([2, 20])?;
        let w = QuantizedWeight::new(w.packed().clone(), scales, None, 32, 4, w.mode())?;
        for y in products(Dtype::Float32, &w)? {
            let text = message(with_metal(Schedule::Forward, || y.eval())?);
            assert!(text.contains("from a multiple of 4 bytes on, got 1"), "{text}");
        }
        Ok(())
    })
}
