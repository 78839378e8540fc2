//! Tests products with weights that are not transposed.

use super::*;
use mlx_primitives_kernels::simd::Level;

/// Multiplies rows of x by the matrix and adds the residual. A row of x has one element for each
/// row of the matrix.
fn run<T: Sample>(
    on: Machine,
    (mode, bits): (Mode, u32),
    group: usize,
    x: &[T],
    axis: usize,
    weights: Weights,
    residual: Option<&[T]>,
) -> Vec<T> {
    let rows = x.len() / weights.columns;
    let mut out = residual.map_or(vec![T::default(); rows * axis], <[T]>::to_vec);
    let place = out.as_mut_ptr().cast();
    let call = QuantizedTransposedCall {
        element: element::<T>(),
        mode,
        bits,
        group,
        x: x.as_ptr().cast(),
        rows,
        axis,
        weights,
        residual: if residual.is_some() { place } else { std::ptr::null_mut() },
        out: place,
    };
    // SAFETY: the call's buffers are the vectors of this function; the output may overwrite the
    // residual.
    unsafe { quantized_transposed_on(on, &call) };
    out
}

fn products<T: Sample>() {
    for format in FORMATS {
        for (group, axis, columns) in [(32, 32, 1), (32, 96, 47), (64, 256, 530), (128, 384, 65)] {
            if format.0 != Mode::Affine && group != 32 {
                continue;
            }
            let group = if format.0 == Mode::Nvfp4 { 16 } else { group };
            products_of::<T>(format, group, axis, columns);
        }
    }
}

pub fn products_of<T: Sample>(format: (Mode, u32), group: usize, axis: usize, columns: usize) {
    let matrix = Matrix::<T>::random(format, columns, axis, group);
    for rows in [1, 9, 40] {
        let x: Vec<T> = values(rows * columns, 2.0);
        let (mut want, mut reach) = (vec![0.0; rows * axis], vec![0.0; rows * axis]);
        for (i, x) in wide(&x).into_iter().enumerate() {
            let (row, column) = (i / columns, i % columns);
            for k in 0..axis {
                let term = x * matrix.dense[column * axis + k];
                want[row * axis + k] += term;
                reach[row * axis + k] += term.abs();
            }
        }
        let residual: Vec<T> = values(rows * axis, 4.0);
        for on in machines_and_tiles() {
            let got = run(on, format, group, &x, axis, matrix.weights(), None);
            let what = format!("{format:?} {rows} x {columns} x {axis} {:?}", on.level);
            // The kernel may round decoded weights to bf16 even for a few rows, so the bound for
            // many rows applies.
            check(&got, (&want, &reach), FEW_ROWS + 1, &what);
            let sum = run(on, format, group, &x, axis, matrix.weights(), Some(&residual));
            for i in 0..got.len() {
                let expected = rounded::<T>(got[i].to_f32() + residual[i].to_f32());
                assert_eq!(sum[i].to_f32(), expected, "{what}, a residual");
            }
        }
    }
}

each_type!(products);

#[test]
fn threads_change_nothing() {
    let matrix = Matrix::<F16>::random(FORMATS[2], 300, 512, 64);
    let x: Vec<F16> = values(70 * 300, 2.0);
    let on = |threads| Machine { level: Level::current(), pool: Pool::leak_on(threads, threads) };
    let product = |threads| run(on(threads), FORMATS[2], 64, &x, 512, matrix.weights(), None);
    let one = product(1);
    for threads in [2, 8] {
        assert_same(&product(threads), &one, "threads");
    }
}
