//! Products of x that is rounded to eight bits.

use super::*;
use mlx_primitives_kernels::simd::Level;

/// Rounds x to eight bits, in groups as large as the groups of the weights, by the formulas in the
/// kernel's documentation.
fn in_bytes<T: Sample>(x: &[T], group: usize) -> Vec<f64> {
    let rounded = |x: &[T]| -> Vec<f64> {
        let most = x.iter().fold(0.0f32, |most, x| most.max(x.to_f32().abs()));
        let byte = |x: &T| f64::from((x.to_f32() * (127.0 / most)).round_ties_even());
        x.iter().map(|x| byte(x) * f64::from(most / 127.0)).collect()
    };
    x.chunks_exact(group).flat_map(rounded).collect()
}

/// The machines for whose instruction sets the products of bytes are compiled.
pub fn byte_machines() -> impl Iterator<Item = Machine> {
    use Level::{Scalar, ScalarTiles};
    let bytes = |machine: &Machine| {
        let level = machine.level;
        level.dots_bytes() || level.adds_pairs_of_bytes() || matches!(level, Scalar | ScalarTiles)
    };
    machines_and_tiles().into_iter().filter(bytes)
}

/// Compares the kernel's results with products of x that was rounded to bytes. So the test shows
/// that the kernel loses no further precision.
fn products_of_bytes<T: Sample>() {
    for format in FORMATS.into_iter().filter(|format| format.0 != Mode::Mxfp8) {
        for (group, axis) in
            [(32, 32), (32, 96), (64, 1088), (128, 384), (32, 2080), (64, 4160), (128, 2176)]
        {
            match format.0 {
                Mode::Nvfp4 if group == 32 => products_of_bytes_of::<T>(format, 16, axis),
                Mode::Mxfp4 | Mode::Nvfp4 if group != 32 => {}
                _ => products_of_bytes_of::<T>(format, group, axis),
            }
        }
    }
}

pub fn products_of_bytes_of<T: Sample>(format: (Mode, u32), group: usize, axis: usize) {
    for rows in [1, 15, 65] {
        let matrices = [29, 3].map(|columns| Matrix::<T>::random(format, columns, axis, group));
        let x: Vec<T> = values(rows * axis, 2.0);
        let x8 = in_bytes(&x, group);
        let weights = matrices.each_ref().map(Matrix::weights);
        for machine in byte_machines() {
            if format.1 == 8 && machine.level.adds_pairs_of_bytes() {
                continue; // see `eight_bits_stay_exact_where_bytes_would_overflow`
            }
            let mut out = vec![T::default(); rows * 32];
            let call = plain(format, group, &x, axis, &weights, &mut out);
            // SAFETY: the call's buffers are the vectors of this function.
            unsafe { int8::run::<T>(machine, &call) };
            let what = format!("{format:?} {group} {axis} {rows} {:?}", machine.level);
            for (first, matrix) in [0, 29].into_iter().zip(&matrices) {
                let (want, reach) = matrix.times(&x8, axis);
                let columns = matrix.columns;
                let of = |row: usize| out[row * 32 + first..][..columns].iter().copied();
                let got: Vec<T> = (0..rows).flat_map(of).collect();
                check(&got, (&want, &reach), 1, &what);
            }
        }
    }
}

each_type!(products_of_bytes);

/// Products with codes of eight bits do not fit in sums of sixteen bits. So x is not rounded for
/// them if a CPU adds up products of bytes in such sums.
#[test]
fn eight_bits_stay_exact_where_bytes_would_overflow() {
    let (format, group, axis) = ((Mode::Affine, 8), 32, 256);
    let matrix = Matrix::<f32>::random(format, 16, axis, group);
    let weights = [matrix.weights()];
    for machine in byte_machines() {
        for rows in [1, 9, 33] {
            let x: Vec<f32> = values(rows * axis, 2.0);
            let exact = multiplied(machine, format, group, &x, axis, &weights);
            let mut out = vec![0.0f32; rows * 16];
            let call = plain(format, group, &x, axis, &weights, &mut out);
            // SAFETY: the call's buffers are the vectors of this function.
            unsafe { quantized_matmul_on(machine, &Call { int8: true, ..call }) };
            let what = format!("{rows} rows, {:?}", machine.level);
            let rounds = machine.level.dots_bytes();
            assert_eq!(out != exact, rounds, "{what}");
        }
    }
}

/// The largest codes times the largest bytes fit in the sums of all formats.
#[test]
fn the_largest_sums_of_bytes_fit() {
    let formats = FORMATS.into_iter().filter(|format| format.0 != Mode::Mxfp8);
    let formats = formats.map(|format| (format, if format.0 == Mode::Nvfp4 { 16 } else { 32 }));
    for (format, group) in formats.chain(k_quants::formats()) {
        let float = matches!(format.0, Mode::Mxfp4 | Mode::Nvfp4);
        let largest = if float { 0x77 } else { 0xff };
        let axis = 2 * k_quant::BLOCK;
        let packed = vec![largest; 16 * axis * format.1 as usize / 8];
        let matrix = Matrix::<f32>::of(packed, format, 16, axis, group);
        let weights = [matrix.weights()];
        for machine in byte_machines() {
            if format.1 == 8 && machine.level.adds_pairs_of_bytes() {
                continue; // see `eight_bits_stay_exact_where_bytes_would_overflow`
            }
            for (rows, value) in [(1, 1.0), (1, -1.0), (4, 1.0), (33, -1.0)] {
                let x = vec![value; rows * axis];
                let mut out = vec![0.0f32; rows * 16];
                let call = plain(format, group, &x, axis, &weights, &mut out);
                // SAFETY: the call's buffers are the vectors of this function.
                unsafe { int8::run::<f32>(machine, &call) };
                let (want, reach) = matrix.times(&wide(&x), axis);
                let what = format!("{format:?} {rows} {value} {:?}", machine.level);
                check(&out, (&want, &reach), 1, &what);
            }
        }
    }
}
