//! Checks that products do not read biases that the scales determine, and that their results have
//! the bits of products that read them.

use super::*;

fn biases_that_scales_determine<T: Sample>() {
    for format in FORMATS.into_iter().filter(|format| format.0 == Mode::Affine) {
        for (group, axis) in [(32, 96), (32, 640), (128, 384)] {
            of_centered_codes::<T>(format, group, axis);
        }
        if format.1 == 4 {
            of_centered_codes::<T>(format, 32, 4096);
        }
    }
}

each_type!(biases_that_scales_determine);

fn of_centered_codes<T: Sample>(format: (Mode, u32), group: usize, axis: usize) {
    let matrix = Matrix::<T>::random(format, 37, axis, group);
    let factor = -(f32::from(1u8 << (format.1 - 1)));
    let biases: Vec<T> = (0..matrix.biases.len())
        .map(|group| {
            let at = matrix.scales.as_ptr().cast::<T>().wrapping_add(group);
            // SAFETY: the matrix has a scale of type T for each group, at any alignment.
            T::from_f32(unsafe { at.read_unaligned() }.to_f32() * factor)
        })
        .collect();
    let unread = vec![T::from_f32(f32::NAN); biases.len()];
    let weights = |biases: &[T]| [Weights { biases: biases.as_ptr().cast(), ..matrix.weights() }];
    let (read, unread) = (weights(&biases), weights(&unread));
    // Exact rows of a prompt are multiplied with the biases that the call has.
    let orders = [(RowOrder::Tokens, &unread), (RowOrder::Prompt, &read)];
    let cases = [(1, false), (3, false), (17, false), (1, true), (17, true)];
    for ((rows, int8), (order, given)) in cases.into_iter().flat_map(|c| orders.map(|o| (c, o))) {
        let x: Vec<T> = values(rows * axis, 2.0);
        // A float32 x, as a GGUF file has it, can have scales of another type.
        let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        for machine in machines_and_tiles() {
            let what =
                format!("{format:?} {group} {axis} {rows} {order:?} {int8} {:?}", machine.level);
            let (layout, kind) = ((format, group, axis), (order, element::<T>(), int8));
            let of = |w: &[_; 1], centered| product(machine, layout, kind, &x, w, centered);
            assert_same(&of(given, true), &of(&read, false), &what);
            let of = |w: &[_; 1], centered| product(machine, layout, kind, &wide, w, centered);
            assert_same(&of(given, true), &of(&read, false), &what);
        }
    }
}

/// Multiplies the rows of x by 37 rows of weights.
fn product<X: Sample>(
    machine: Machine,
    (format, group, axis): ((Mode, u32), usize, usize),
    (order, of_scales, int8): (RowOrder, Element, bool),
    x: &[X],
    weights: &[Weights],
    centered: bool,
) -> Vec<X> {
    let mut out = vec![X::default(); x.len() / axis * 37];
    let call = plain(format, group, x, axis, weights, &mut out);
    let call = Call { order, of_scales, int8, centered, ..call };
    // SAFETY: the call's buffers are the vectors of this function and of its caller.
    unsafe { quantized_matmul_on(machine, &call) };
    out
}
