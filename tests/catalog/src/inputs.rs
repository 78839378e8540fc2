//! Inputs for the rows of the catalog: types, random numbers, matrices and their dequantized
//! values.

use crate::reference_loops::{self, values};
use half::{bf16, f16};
use mlx_primitives::ops::{LinearWeight, QuantizedMode, QuantizedWeight};
use mlx_primitives::{Array, Dtype, Result};

/// The result of a check or of a test.
pub type Checked<T = ()> = anyhow::Result<T>;

pub const EPS: f32 = 1e-5;

pub const FLOATS: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

/// Returns true if the environment makes primitives run in the Metal simulator.
pub fn simulated() -> bool {
    std::env::var_os(SIMULATE).is_some()
}

pub const SIMULATE: &str = "MLX_PRIMITIVES_SIMULATE_METAL";

/// The number of fraction bits of a type, and the exponent of its smallest normal number.
fn format(dtype: Dtype) -> (i32, i32) {
    match dtype {
        Dtype::Float16 => (10, -14),
        Dtype::Bfloat16 => (7, -126),
        Dtype::Float32 => (23, -126),
        other => panic!("no ulps of {other}"),
    }
}

/// The distance between adjacent numbers in `dtype` at `value`.
pub fn ulp(value: f64, dtype: Dtype) -> f64 {
    let (fraction, least) = format(dtype);
    let exponent = if value == 0.0 { least } else { value.abs().log2().floor() as i32 };
    2f64.powi(exponent.max(least) - fraction)
}

/// Converts the elements of an array of any floating type to f32, and then to f64.
pub fn numbers(x: &Array) -> Result<Vec<f64>> {
    let values = x.astype(Dtype::Float32)?.to_vec::<f32>()?;
    Ok(values.into_iter().map(f64::from).collect())
}

/// An evaluated array of a floating type with these numbers.
pub fn data(values: &[f32], shape: &[i32], dtype: Dtype) -> Result<Array> {
    match dtype {
        Dtype::Float16 => {
            let values: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
            Array::from_slice(&values, shape)
        }
        Dtype::Bfloat16 => {
            let values: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
            Array::from_slice(&values, shape)
        }
        Dtype::Float32 => Array::from_slice(values, shape),
        other => Array::from_slice(values, shape)?.astype(other),
    }
}

/// Random data of a floating type, in [-3, 3).
pub fn random(shape: &[i32], dtype: Dtype, seed: u64) -> Result<Array> {
    let count = shape.iter().map(|&dim| dim as usize).product();
    data(&values(count, seed, 3.0), shape, dtype)
}

/// The largest error of attention. Scores are at most 12, so each of three roundings adds an error
/// of 12 half ulps of f32 to a softmax weight. The roundings are of a dot product of up to 256
/// terms, of the product with the scale, and of the exponential (5 ulps for a GPU's fast
/// exponential). Values are at most 3.
pub const TOLERANCE: f64 = 6e-5;

/// The largest difference from MLX's attention. MLX rounds scores and weights to the type. Scores
/// are at most 12, and have errors of two ulps.
pub fn tolerance_to_mlx(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Float32 => 2.0 * TOLERANCE,
        Dtype::Float16 => 0.05,
        _ => 0.4,
    }
}

pub const FORMATS: [(i32, i32, QuantizedMode); 11] = [
    (64, 2, QuantizedMode::Affine),
    (32, 3, QuantizedMode::Affine),
    (32, 4, QuantizedMode::Affine),
    (64, 4, QuantizedMode::Affine),
    (128, 4, QuantizedMode::Affine),
    (64, 6, QuantizedMode::Affine),
    (64, 8, QuantizedMode::Affine),
    (32, 4, QuantizedMode::Mxfp4),
    (32, 5, QuantizedMode::Affine),
    (32, 8, QuantizedMode::Mxfp8),
    (16, 4, QuantizedMode::Nvfp4),
];

/// The formats of K-quants. `mlx_primitives` has no function that packs weights into them.
pub const K_QUANTS: [(i32, i32, QuantizedMode); 3] = [
    (32, 4, QuantizedMode::KQuant),
    (32, 5, QuantizedMode::KQuant),
    (16, 6, QuantizedMode::KQuant),
];

/// Makes a matrix `[n, k]` of K-quants with random codes, scales and biases.
fn k_quants(bits: i32, n: i32, k: i32, seed: u64) -> Result<(Array, Array)> {
    let (words, blocks) = (n * (k / 32 * bits), n * (k / 256));
    let codes = values(words as usize, seed, 1.0);
    let mixed = |x: &f32| (x.to_bits() ^ x.to_bits() >> 15).wrapping_mul(0x9e37_79b9);
    let codes: Vec<u32> = codes.iter().map(mixed).collect();
    let integers = values(blocks as usize * 20, seed + 100, 32.0);
    let mut scales: Vec<u8> = integers.iter().map(|x| (x + 32.0) as u8).collect();
    for (number, block) in scales.chunks_exact_mut(20).enumerate() {
        let sign = if number % 3 == 1 { -1.0 } else { 1.0 };
        let steps = if bits == 6 { [0.0003, 0.0] } else { [0.002, -0.015] };
        for (to, step) in block.chunks_exact_mut(2).zip(steps) {
            to.copy_from_slice(&half::f16::from_f64(sign * step).to_le_bytes());
        }
        if bits == 6 {
            block[4..].iter_mut().for_each(|integer| *integer = integer.wrapping_mul(5));
        }
    }
    let packed = Array::from_slice(&codes, [n, k / 32 * bits])?;
    Ok((packed, Array::from_slice(&scales, [n, k / 256 * 20])?))
}

/// Makes a random packed matrix `[n, k]` with scales of `dtype`.
pub fn weight(
    (group, bits, mode): (i32, i32, QuantizedMode),
    n: i32,
    k: i32,
    dtype: Dtype,
    seed: u64,
) -> Result<QuantizedWeight> {
    if mode == QuantizedMode::KQuant {
        let (packed, scales) = k_quants(bits, n, k, seed)?;
        return QuantizedWeight::new(packed, scales, None, group, bits, mode);
    }
    let w = random(&[n, k], dtype, seed)?.multiply(Array::scalar(0.3f32)?.astype(dtype)?)?;
    QuantizedWeight::quantize(&w, group, bits, mode)
}

/// Decodes the scales and the biases of the groups of K-quants.
fn groups_of_blocks(bytes: &[u8], bits: i32) -> (Vec<f64>, Vec<f64>) {
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    for block in bytes.chunks_exact(20) {
        let step = |at| f64::from(half::f16::from_le_bytes([block[at], block[at + 1]]));
        let integers: Vec<f64> = block[4..].iter().map(|&integer| f64::from(integer)).collect();
        if bits == 6 {
            scales.extend(integers.iter().map(|integer| step(0) * (integer - 128.0)));
            biases.extend(integers.iter().map(|integer| -32.0 * step(0) * (integer - 128.0)));
        } else {
            scales.extend(integers[..8].iter().map(|integer| step(0) * integer));
            biases.extend(integers[8..].iter().map(|integer| step(2) * integer));
        }
    }
    (scales, biases)
}

/// Decodes the numbers of a packed matrix with a simple reference implementation.
pub fn decoded(w: &QuantizedWeight, dtype: Dtype) -> anyhow::Result<Vec<f64>> {
    let mut of_blocks = None;
    let scales = if w.mode() == QuantizedMode::Affine {
        numbers(w.scales())?
    } else if w.mode() == QuantizedMode::KQuant {
        let (scales, biases) = groups_of_blocks(&w.scales().to_vec::<u8>()?, w.bits());
        of_blocks = Some(biases);
        scales
    } else {
        let number = |&byte: &u8| match w.mode() {
            QuantizedMode::Nvfp4 => reference_loops::fp8(byte.into()) as f32,
            _ => 2f32.powi(i32::from(byte) - 127),
        };
        let scales: Vec<f32> = w.scales().to_vec::<u8>()?.iter().map(number).collect();
        numbers(&Array::from_slice(&scales, w.scales().shape())?.astype(dtype)?)?
    };
    let biases = w.biases().map(numbers).transpose()?.or(of_blocks);
    let (inputs, format) = (w.inputs() as usize, (w.bits() as usize, w.group_size() as usize));
    let words = w.packed().to_vec::<u32>()?;
    Ok(crate::reference_loops::decoded(&words, inputs, format, &scales, biases.as_deref()))
}

/// The scale of low-rank updates.
pub const SCALE: f32 = 1.7;

pub fn small(shape: &[i32], dtype: Dtype, seed: u64) -> Result<Array> {
    random(shape, dtype, seed)?.multiply(Array::scalar(0.2f32)?.astype(dtype)?)
}

/// Makes weights for low-rank updates: plain and packed matrices, with their dequantized values.
pub fn bases(n: i32, k: i32, dtype: Dtype) -> anyhow::Result<Vec<(LinearWeight, Vec<f64>)>> {
    let plain = small(&[n, k], dtype, 1)?;
    let dense = numbers(&plain)?;
    let mut bases = vec![(plain.into(), dense)];
    for format in [FORMATS[1], FORMATS[3], FORMATS[7]] {
        if k % format.0 == 0 {
            let w = weight(format, n, k, dtype, 2)?;
            let dense = decoded(&w, dtype)?;
            bases.push((w.into(), dense));
        }
    }
    Ok(bases)
}
