use super::bytes::byte_machines;
use super::*;

/// Multiplies zeros with one extreme element among them: very small, very large, infinite or NaN.
#[test]
fn bytes_of_extreme_groups() {
    let (group, axis) = (32, 128);
    let matrix = Matrix::<f32>::random((Mode::Affine, 4), 16, axis, group);
    let weights = [matrix.weights()];
    for (machine, rows) in byte_machines().flat_map(|machine| [1, 9].map(|rows| (machine, rows))) {
        let extreme = rows / 2;
        for (value, finite) in [
            (0.0, true),
            (f32::from_bits(1), true),
            (f32::MIN_POSITIVE, true),
            (1e37, true),
            (f32::NAN, false),
            (f32::INFINITY, false),
            (f32::NEG_INFINITY, false),
        ] {
            let mut x = vec![0.0f32; rows * axis];
            x[extreme * axis + group + 5] = value;
            let mut out = vec![1.0f32; rows * 16];
            let call = plain((Mode::Affine, 4), group, &x, axis, &weights, &mut out);
            // SAFETY: the call's buffers are the vectors of this function.
            unsafe { int8::run::<f32>(machine, &call) };
            let what = format!("{value} {rows} {:?}", machine.level);
            let (want, reach) = matrix.times(&wide(&x), axis);
            for (i, &got) in out.iter().enumerate() {
                if i / 16 != extreme || finite {
                    // The nonzero element is the largest of its group, so its byte is exactly 127
                    // unless the element is tiny. For tiny elements, the bound has 1e-37.
                    let bound = reach[i] * 1e-6 + 1e-37;
                    assert!((f64::from(got) - want[i]).abs() <= bound, "{what}: {got} at {i}");
                } else {
                    assert!(!got.is_finite(), "{what}: {got} at {i}");
                }
            }
        }
    }
}

/// Some rows of a prompt have extreme elements, which must not change other rows. The results
/// overwrite the residual.
#[test]
fn prompts_of_extreme_rows() {
    let (group, axis, rows, columns) = (32, 128, FEW_ROWS + 20, 19);
    let format = (Mode::Affine, 4);
    let matrix = Matrix::<f32>::random(format, columns, axis, group);
    let weights = [matrix.weights()];
    let extremes = [0.0, f32::from_bits(1), 1e-36, 1e36, f32::NAN, f32::INFINITY, -f32::INFINITY];
    for machine in machines_and_tiles() {
        for value in extremes {
            let mut x: Vec<f32> = values(rows * axis, 2.0);
            let extreme = [1, rows - 2];
            for row in extreme {
                x[row * axis + group + 5] = value;
            }
            let residual: Vec<f32> = values(rows * columns, 1.0);
            let mut out = residual.clone();
            let mut call = plain(format, group, &x, axis, &weights, &mut out);
            call.residual = call.out.cast_const();
            // SAFETY: the call's buffers are the vectors of this function.
            unsafe { quantized_matmul_on(machine, &call) };
            let (want, reach) = matrix.times(&wide(&x), axis);
            for (i, &got) in out.iter().enumerate() {
                let what = format!("{value} {:?}: {got} at {i}", machine.level);
                let want = want[i] + f64::from(residual[i]);
                if extreme.contains(&(i / columns)) && !value.is_finite() {
                    // The result is an infinity with the sign of the product.
                    assert_eq!(got.is_nan(), value.is_nan(), "{what}");
                    assert!(value.is_nan() || f64::from(got) == want, "{what}");
                } else {
                    let bound = reach[i] * 4e-6 + want.abs() * f64::from(f32::EPSILON);
                    assert!((f64::from(got) - want).abs() <= bound, "{what}");
                }
            }
        }
    }
}

/// Multiplies one row of x, which the kernel splits into bytes ("digits"). Some elements barely fit
/// in the bytes, do not fit, or have to be rounded.
fn digits_of_extreme_rows<T: Sample>(values: &[(f32, bool)], least: f64) {
    // Rows of four groups (axis 256) use a special loop.
    let (group, axes) = (64, [192, 256]);
    for (bits, axis) in [2, 4, 8].into_iter().flat_map(|bits| axes.map(|axis| (bits, axis))) {
        let matrix = Matrix::<T>::random((Mode::Affine, bits), 21, axis, group);
        let weights = [matrix.weights()];
        for machine in machines_and_tiles() {
            for &(value, finite) in values {
                for others in [0.0, 1.0, value] {
                    let mut x = vec![T::from_f32(others); axis];
                    x[group + 5] = T::from_f32(value);
                    x[2 * group - 1] = T::from_f32(-value);
                    let format = (Mode::Affine, bits);
                    let out = multiplied(machine, format, group, &x, axis, &weights);
                    let what = format!("{bits} bits, {value:e}, {others:e}, {:?}", machine.level);
                    let (want, reach) = matrix.times(&wide(&x), axis);
                    for (i, got) in out.iter().enumerate() {
                        let got = f64::from(got.to_f32());
                        if !finite {
                            assert!(!got.is_finite(), "{what}: {got} at {i}");
                            continue;
                        }
                        // `least` allows for the smallest numbers, which bf16 instructions treat as
                        // zero.
                        let bound = want[i].abs() * f64::from(T::EPSILON) / 2.0 * 1.01
                            + reach[i] * 4e-6
                            + least;
                        let off = (got - want[i]).abs();
                        assert!(off <= bound, "{what}: {got:e} at {i}, expected {:e}", want[i]);
                    }
                }
            }
        }
    }
}

#[test]
fn digits_of_extreme_rows_in_bf16() {
    let finite = [0.0, 1e-39, 1e-30, 1.1e-24, 0.9e-24, 1.9921875, -1.9921875, 255.0, 1.5e-5, 3e33];
    let mut values: Vec<_> = finite.map(|value| (value, true)).to_vec();
    values.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|value| (value, false)));
    digits_of_extreme_rows::<Bf16>(&values, 1e-35);
}

#[test]
fn digits_of_extreme_rows_in_f16() {
    let finite = [0.0, 6e-8, 6.1e-5, 1.9990234, -1.9990234, 63.97];
    let mut values: Vec<_> = finite.map(|value| (value, true)).to_vec();
    values.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|value| (value, false)));
    digits_of_extreme_rows::<F16>(&values, 3.1e-8);
}

/// Multiplies the largest weights by elements just below a power of two, at which the rounding unit
/// of the digits doubles.
fn largest_sums_of_digits<T: Sample>() {
    for (bits, group) in [2, 4, 8].into_iter().flat_map(|bits| [(bits, 64), (bits, 128)]) {
        let axis = if group == 64 { 5 * group } else { 4 * group };
        let mut matrix = Matrix::<T>::random((Mode::Affine, bits), 19, axis, group);
        matrix.packed.fill(0xff);
        for (i, weight) in matrix.dense.iter_mut().enumerate() {
            let scale = matrix.scales.as_ptr().cast::<T>().wrapping_add(i / group);
            // SAFETY: the buffer of bytes contains one scale of type T for each group.
            let scale = f64::from(unsafe { scale.read_unaligned() }.to_f32());
            let bias = f64::from(matrix.biases[i / group].to_f32());
            *weight = scale * f64::from((1 << bits) - 1) + bias;
        }
        let weights = [matrix.weights()];
        for machine in machines_and_tiles() {
            for value in [1.9765625, -1.9765625, 1.9921875] {
                let x = vec![T::from_f32(value); axis];
                let format = (Mode::Affine, bits);
                let out = multiplied(machine, format, group, &x, axis, &weights);
                let (want, reach) = matrix.times(&wide(&x), axis);
                for (i, got) in out.iter().enumerate() {
                    let off = (f64::from(got.to_f32()) - want[i]).abs();
                    let bound =
                        want[i].abs() * f64::from(T::EPSILON) / 2.0 * 1.01 + reach[i] * 4e-6;
                    let what = format!("{bits} bits, {value}, {:?}", machine.level);
                    assert!(off <= bound, "{what}: off by {off:e} at {i}, expected {:e}", want[i]);
                }
            }
        }
    }
}

#[test]
fn the_largest_sums_of_digits_fit() {
    largest_sums_of_digits::<Bf16>();
    largest_sums_of_digits::<F16>();
}

/// Multiplies one row that is so long that several threads convert parts of it to bytes. In one
/// case, the last element is a NaN, which does not fit in bytes, and only one thread finds it.
#[test]
fn long_rows_of_digits() {
    let (group, axis) = (64, 44_864);
    for bits in [2, 4, 8] {
        let matrix = Matrix::<Bf16>::random((Mode::Affine, bits), 5, axis, group);
        let weights = [matrix.weights()];
        for last in [1.0, f32::NAN] {
            let mut x: Vec<Bf16> = values(axis, 2.0);
            x[axis - 1] = Bf16::from_f32(last);
            let (want, reach) = matrix.times(&wide(&x), axis);
            for machine in machines_and_tiles() {
                let out = multiplied(machine, (Mode::Affine, bits), group, &x, axis, &weights);
                let what = format!("{bits} bits, {last}, {:?}", machine.level);
                if last.is_nan() {
                    assert!(out.iter().all(|got| got.to_f32().is_nan()), "{what}");
                } else {
                    check(&out, (&want, &reach), 1, &what);
                }
            }
        }
    }
}

/// A row has the same bits alone and together with other rows. So a token does not depend on the
/// tokens that are decoded in the same batch.
fn rows_alone_and_together<T: Sample>() {
    let (group, axis, rows) = (64, 1088, FEW_ROWS);
    for format in FORMATS.into_iter().filter(|format| format.0 == Mode::Affine) {
        let matrix = Matrix::<T>::random(format, 37, axis, group);
        let weights = [matrix.weights()];
        let x: Vec<T> = values(rows * axis, 2.0);
        for machine in machines_and_tiles() {
            let product = |x: &[T]| multiplied(machine, format, group, x, axis, &weights);
            let alone: Vec<T> = x.chunks_exact(axis).flat_map(product).collect();
            for together in [2, 3, 5, rows] {
                let what = format!("{format:?} {together} {:?}", machine.level);
                let got: Vec<T> = x.chunks(together * axis).flat_map(product).collect();
                assert_same(&got, &alone, &what);
            }
        }
    }
}

each_type!(rows_alone_and_together);

/// Multiplies prompts in float32, whose elements the kernel splits into bf16 parts. One
/// extreme element is alone in its group or has neighbors. Infinity or NaN changes only its row.
#[test]
fn prompts_of_extreme_groups() {
    let (axis, rows) = (256, 19);
    for (bits, group) in [(2, 32), (4, 64), (8, 128)] {
        let format = (Mode::Affine, bits);
        let matrix = Matrix::<f32>::random(format, 37, axis, group);
        let weights = [matrix.weights()];
        for machine in machines_and_tiles() {
            for (value, finite) in [
                (f32::from_bits(1), true),
                (f32::MIN_POSITIVE * 1.7, true),
                (1.234_567_9e-30, true),
                (-1.999_999_9, true),
                (1.234_567_9e30, true),
                (-3.3e38, true),
                (f32::NAN, false),
                (f32::INFINITY, false),
                (f32::NEG_INFINITY, false),
            ] {
                for others in [0.0, 1.0, value] {
                    let mut x = values::<f32>(rows * axis, 2.0);
                    let row = 17 * axis;
                    x[row..row + axis].fill(0.0);
                    x[row + group..][..group].fill(others * 2f32.powi(-9));
                    x[row + group + 5] = value;
                    let out = multiplied(machine, format, group, &x, axis, &weights);
                    let (want, reach) = matrix.times(&wide(&x), axis);
                    let what = format!("{bits} bits, {value:e}, {others:e}, {:?}", machine.level);
                    for (i, &got) in out.iter().enumerate() {
                        if i / 37 == 17 && !finite {
                            assert!(!got.is_finite(), "{what}: {got} at {i}");
                            continue;
                        }
                        if want[i].abs() > f64::from(f32::MAX) * 0.99 {
                            continue;
                        }
                        let off = (f64::from(got) - want[i]).abs();
                        let bound = reach[i] * 4e-6 + 1e-43;
                        assert!(off <= bound, "{what}: {got:e} at {i}, expected {:e}", want[i]);
                    }
                }
            }
        }
    }
}

/// Tile instructions give the same bits as the loops that replace them, because the sums of digits
/// are exact.
#[test]
fn tiles_of_digits_have_the_bits_of_loops() {
    let tiles = machines_and_tiles();
    let tiles: Vec<_> = tiles.iter().filter(|machine| machine.level.multiplies_tiles()).collect();
    for (bits, group) in [2, 4, 8].into_iter().flat_map(|bits| [32, 64, 128].map(|g| (bits, g))) {
        let format = (Mode::Affine, bits);
        for groups in [1, 5, 17] {
            let axis = group * groups;
            let matrix = Matrix::<Bf16>::random(format, 37, axis, group);
            let weights = [matrix.weights()];
            for rows in [1, 2, 5, 6, 16, 31, 65] {
                let x: Vec<Bf16> = values(rows * axis, 2.0);
                let mut first: Option<Vec<Bf16>> = None;
                for machine in &tiles {
                    let mut out = vec![Bf16::default(); rows * 37];
                    let call = plain(format, group, &x, axis, &weights, &mut out);
                    let call = Call { order: RowOrder::Tokens, ..call };
                    // SAFETY: the call's buffers are the vectors of this function.
                    unsafe { quantized_matmul_on(**machine, &call) };
                    let what = format!("{format:?} {group} {groups} {rows} {:?}", machine.level);
                    assert_same(&out, first.get_or_insert_with(|| out.clone()), &what);
                }
            }
        }
    }
}

/// A row that does not fit in bytes must not change the bits of other rows. The exact products are
/// zero, so the results are rounding errors, which a different order of additions would change.
#[test]
fn rows_beside_extreme_ones_keep_their_bits() {
    let (format, group, axis, rows) = ((Mode::Affine, 4), 64, 1024, 7);
    let matrix = Matrix::<Bf16>::random(format, 21, axis, group).with_equal_halves();
    let weights = [matrix.weights()];
    for machine in machines_and_tiles() {
        let x = with_opposite_halves(values::<Bf16>(rows * axis, 2.0), rows);
        let mut extreme = x.clone();
        extreme[3 * axis + 5] = Bf16::from_f32(f32::INFINITY);
        let want = multiplied(machine, format, group, &x, axis, &weights);
        let got = multiplied(machine, format, group, &extreme, axis, &weights);
        let (at, end) = (3 * 21, 4 * 21);
        let what = format!("{:?}", machine.level);
        assert_same(&got[..at], &want[..at], &what);
        assert_same(&got[end..], &want[end..], &what);
        assert!(got[at..end].iter().all(|y| !y.to_f32().is_finite()), "{what}");
    }
}
