//! Tests weights whose scales stay in blocks of 256 weights, as in ggml's K-quants.

use super::*;
use half::f16;
use mlx_primitives_kernels::simd::Level;

/// The number of bits of a code, and the number of weights in a group.
const LAYOUTS: [(u32, usize); 3] = [(4, 32), (5, 32), (6, 16)];

/// Builds the scales of a block for random weights of both signs.
pub fn block(bits: u32, seed: u64) -> Vec<u8> {
    let mut bytes = random_bytes(k_quant::SCALE_BYTES, seed);
    let number = |byte: u8| (f32::from(byte) - 128.0) * 3e-4 / (1 << bits) as f32;
    let (scale, bias) = (number(bytes[0]), number(bytes[1]) * (1 << bits) as f32);
    bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    bytes[2..4].copy_from_slice(&f16::from_f32(bias).to_le_bytes());
    bytes
}

/// Decodes the scales and the biases of a block's groups.
pub fn numbers(bits: u32, block: &[u8]) -> (Vec<f64>, Vec<f64>) {
    let float = |at: usize| f64::from(f16::from_le_bytes([block[at], block[at + 1]]));
    if bits == 6 {
        let scale = |byte: &u8| float(0) * (f64::from(*byte) - 128.0);
        let scales: Vec<f64> = block[4..].iter().map(scale).collect();
        let biases = scales.iter().map(|scale| -32.0 * scale).collect();
        return (scales, biases);
    }
    let times = |factor: f64, bytes: &[u8]| -> Vec<f64> {
        bytes.iter().map(|&byte| factor * f64::from(byte)).collect()
    };
    (times(float(0), &block[4..12]), times(float(2), &block[12..]))
}

pub fn formats() -> impl Iterator<Item = ((Mode, u32), usize)> {
    LAYOUTS.into_iter().map(|(bits, group)| ((Mode::KQuant, bits), group))
}

fn products<T: Sample>() {
    for (format, group) in formats() {
        for axis in [256, 768, 2304, 4352] {
            products_of::<T>(format, group, axis);
        }
    }
}

each_type!(products);

fn rows_have_one_order<T: Sample>() {
    for (format, group) in formats() {
        order::one_order_of::<T>(format, group, 1536);
    }
}

each_type!(rows_have_one_order);

fn products_of_bytes<T: Sample>() {
    for (format, group) in formats() {
        for axis in [256, 2304, 4352] {
            bytes::products_of_bytes_of::<T>(format, group, axis);
        }
    }
}

each_type!(products_of_bytes);

fn transposed_products<T: Sample>() {
    for (format, group) in formats() {
        for (axis, columns) in [(256, 47), (768, 530)] {
            transposed::products_of::<T>(format, group, axis, columns);
        }
    }
}

each_type!(transposed_products);

/// Rows of weights can be multiplied in pairs or in blocks, and have the results of single rows. An
/// axis of 8448 is an odd number of blocks.
#[test]
fn many_columns_are_those_of_single_ones() {
    for ((format, group), rows) in formats().flat_map(|format| [1, 3].map(|rows| (format, rows))) {
        for axis in [256, 1536, 8448] {
            let matrix = Matrix::<f32>::random(format, 290, axis, group);
            let x: Vec<f32> = values(rows * axis, 2.0);
            for machine in machines() {
                let all = multiplied(machine, format, group, &x, axis, &[matrix.weights()]);
                for column in [0, 15, 16, 127, 128, 255, 289] {
                    let Weights { packed, scales, biases, .. } = matrix.weights();
                    let packed = packed.wrapping_add(column * axis * format.1 as usize / 8);
                    let blocks = axis / k_quant::BLOCK;
                    let scales = scales.wrapping_add(column * blocks * k_quant::SCALE_BYTES);
                    let one = [Weights { packed, scales, biases, columns: 1 }];
                    let one = multiplied(machine, format, group, &x, axis, &one);
                    let of_all: Vec<f32> = all.iter().skip(column).step_by(290).copied().collect();
                    let what = format!("{format:?} {axis} {rows} {column} {:?}", machine.level);
                    assert_same(&one, &of_all, &what);
                }
            }
        }
    }
}

/// The sums of many rows and columns fit in the memory that the kernel has for them.
#[test]
fn many_rows_of_bytes_are_those_of_few() {
    for (format, group) in formats() {
        let (axis, columns, rows) = (256, 200, 64);
        let matrices = [(); 2].map(|()| Matrix::<f32>::random(format, columns, axis, group));
        let weights = matrices.each_ref().map(Matrix::weights);
        let x: Vec<f32> = values(rows * axis, 2.0);
        for machine in machines().into_iter().map(with_one_thread) {
            let product = |x: &[f32]| {
                let mut out = vec![0.0; x.len() / axis * columns];
                let call = plain(format, group, x, axis, &weights, &mut out);
                let (join, order) = (Join::Swiglu, RowOrder::Prompt);
                let call = Call { join, order, int8: true, ..call };
                // SAFETY: the call's buffers are the vectors of this function.
                unsafe { quantized_matmul_on(machine, &call) };
                out
            };
            let few: Vec<f32> = x.chunks_exact(8 * axis).flat_map(product).collect();
            assert_same(&product(&x), &few, &format!("{format:?} {:?}", machine.level));
        }
    }
}

/// Each thread decodes the scales of the rows of weights that it multiplies.
#[test]
fn threads_change_nothing() {
    for (format, group) in formats() {
        let (axis, columns) = (512, 700);
        let matrix = Matrix::<f32>::random(format, columns, axis, group);
        for rows in [1, 8, 70] {
            let x: Vec<f32> = values(rows * axis, 2.0);
            let product = |threads| {
                let pool = Pool::leak_on(threads, threads);
                let on = Machine { level: Level::current(), pool };
                multiplied(on, format, group, &x, axis, &[matrix.weights()])
            };
            assert_same(&product(3), &product(1), &format!("{format:?}, {rows} rows"));
        }
    }
}
