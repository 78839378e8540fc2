//! Checks that the bits of a row do not depend on the other rows of the call.

use super::*;

fn rows_have_one_order_at_any_width<T: Sample>() {
    for format in FORMATS {
        let group = if format.0 == Mode::Nvfp4 { 16 } else { 32 };
        one_order_of::<T>(format, group, 1120);
        // With four groups per row, one vector has the scales of four rows of weights.
        one_order_of::<T>(format, group, 4 * group);
    }
    let short = [(4, 64, 704), (8, 128, 640)];
    let long = [(4, 32, 4096), (4, 32, 4160), (6, 32, 4096), (8, 32, 4096)];
    for (bits, group, axis) in short.into_iter().chain(long) {
        one_order_of::<T>((Mode::Affine, bits), group, axis);
    }
}

each_type!(rows_have_one_order_at_any_width);

impl<T: Sample> Matrix<T> {
    /// Replaces the second half of each row by the first half.
    pub fn with_equal_halves(mut self) -> Self {
        repeat_halves(&mut self.packed, self.columns);
        repeat_halves(&mut self.scales, self.columns);
        repeat_halves(&mut self.biases, self.columns);
        self
    }
}

/// The exact products of the inputs are zero, so the results are rounding errors. A different order
/// of additions would change these errors.
pub fn one_order_of<T: Sample>(format: (Mode, u32), group: usize, axis: usize) {
    let (m, rank) = (40, 9);
    let x = with_opposite_halves(values::<T>(m * axis, 2.0), m);
    let (mut a, b) = (values::<T>(rank * axis, 0.1), values::<T>(22 * rank, 0.1));
    repeat_halves(&mut a, rank);
    let low = LowRank { a: a.as_ptr().cast(), b: b.as_ptr().cast(), rank, scale: 0.5 };
    let matrices = [19, 3]
        .map(|columns| Matrix::<T>::random(format, columns, axis, group).with_equal_halves());
    let weights = matrices.each_ref().map(Matrix::weights);
    for machine in machines_and_tiles() {
        let orders = [RowOrder::Tokens, RowOrder::Prompt];
        for (order, low_rank) in orders.into_iter().flat_map(|o| [(o, None), (o, Some(low))]) {
            let of = |machine, rows: std::ops::Range<usize>, int8| {
                let mut out = vec![T::default(); rows.len() * 22];
                let x = &x[rows.start * axis..rows.end * axis];
                let call = plain(format, group, x, axis, &weights, &mut out);
                let call = Call { order, low_rank, int8, ..call };
                // SAFETY: the call's buffers are the vectors of this function.
                unsafe { quantized_matmul_on(machine, &call) };
                out
            };
            for int8 in [false, true] {
                let all = of(with_one_thread(machine), 0..m, int8);
                for rows in [0..1, 4..6, 1..6, 2..11, 3..26, 5..38, 0..40] {
                    let what = format!(
                        "{format:?}, {axis}, {rows:?}, {order:?}, bytes {int8}, {:?}",
                        machine.level
                    );
                    let expected = &all[rows.start * 22..rows.end * 22];
                    assert_same(&of(machine, rows.clone(), int8), expected, &what);
                }
            }
        }
    }
}

/// Multiplies x by two matrices in one call. A thread's part begins at a multiple of sixteen
/// columns of the call, which can be any column of the second matrix.
#[test]
fn joined_columns_are_those_of_each_matrix() {
    let (format, group, axis) = ((Mode::Affine, 4), 64, 1024);
    let matrices = [19, 3000].map(|columns| Matrix::<f32>::random(format, columns, axis, group));
    let [first, second] = matrices.each_ref().map(Matrix::weights);
    for rows in [1, 3] {
        let x = values::<f32>(rows * axis, 2.0);
        for machine in machines() {
            let product =
                |weights: &[Weights]| multiplied(machine, format, group, &x, axis, weights);
            let both = product(&[first, second]);
            let (first, second) = (product(&[first]), product(&[second]));
            let rows = first.chunks_exact(19).zip(second.chunks_exact(3000));
            let each: Vec<f32> = rows.flat_map(|(a, b)| [a, b].concat()).collect();
            assert_same(&both, &each, &format!("{:?}", machine.level));
        }
    }
}
