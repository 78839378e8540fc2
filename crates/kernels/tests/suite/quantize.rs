use crate::testing::*;
use mlx_primitives_kernels::quantize::*;

const BITS: [usize; 6] = [2, 3, 4, 5, 6, 8];

struct Quantized<T> {
    packed: Vec<u32>,
    scales: Vec<T>,
    biases: Vec<T>,
}

fn run<T: Sample>(on: Machine, x: &[T], shape: &QuantizeShape) -> Quantized<T> {
    let empty = || vec![T::default(); shape.groups];
    let mut out = Quantized {
        packed: vec![0; shape.groups * shape.words()],
        scales: empty(),
        biases: empty(),
    };
    let Quantized { packed, scales, biases } = &mut out;
    let (packed, scales, biases) = (packed.as_mut_ptr(), scales.as_mut_ptr(), biases.as_mut_ptr());
    // SAFETY: the buffers hold all groups of the shape.
    unsafe { quantize_on(on, x.as_ptr(), packed, scales, biases, shape) };
    out
}

fn back<T: Sample>(on: Machine, q: &Quantized<T>, shape: &QuantizeShape) -> Vec<T> {
    let mut out = vec![T::default(); shape.groups * shape.group_size];
    let (scales, biases) = (q.scales.as_ptr(), q.biases.as_ptr());
    // SAFETY: the buffers hold all groups of the shape.
    unsafe { dequantize_on(on, q.packed.as_ptr(), scales, biases, None, out.as_mut_ptr(), shape) };
    out
}

/// Quantizes with one division per code, and sets the bits of the codes one by one.
fn reference<T: Sample>(x: &[T], shape: &QuantizeShape) -> (Quantized<T>, Vec<T>) {
    let mut out = Quantized {
        packed: vec![0; shape.groups * shape.words()],
        scales: Vec::new(),
        biases: Vec::new(),
    };
    let mut values = Vec::new();
    let top = ((1 << shape.bits) - 1) as f32;
    for (index, group) in x.chunks_exact(shape.group_size).enumerate() {
        let (mut low, mut high) = (f32::INFINITY, f32::NEG_INFINITY);
        for v in group {
            (low, high) = (low.min(v.to_f32()), high.max(v.to_f32()));
        }
        let (scale, bias) = scale_and_bias(low, high, top);
        let (kept_scale, kept_bias) = (T::from_f32(scale), T::from_f32(bias));
        out.scales.push(kept_scale);
        out.biases.push(kept_bias);
        for (i, v) in group.iter().enumerate() {
            let code = ((v.to_f32() - bias) / scale).round_ties_even();
            let code = if code.is_nan() { 0.0 } else { code.clamp(0.0, top) };
            for bit in 0..shape.bits {
                let at = (index * shape.group_size + i) * shape.bits + bit;
                out.packed[at / 32] |= (code as u32 >> bit & 1) << (at % 32);
            }
            let product = rounded::<T>(code * kept_scale.to_f32());
            values.push(T::from_f32(product + kept_bias.to_f32()));
        }
    }
    (out, values)
}

fn check<T: Sample>(x: &[T], shape: &QuantizeShape) {
    let (expected, values) = reference(x, shape);
    for machine in machines() {
        let what = format!("{:?} {shape:?}", machine.level);
        let got = run(machine, x, shape);
        assert_same(&got.scales, &expected.scales, &what);
        assert_same(&got.biases, &expected.biases, &what);
        assert_eq!(got.packed, expected.packed, "{what}");
        assert_same(&back(machine, &got, shape), &values, &what);
    }
}

/// Dequantizes the rows `ids` of a matrix with `shape.groups` groups. Each row has `columns`
/// groups.
fn taken<T: Sample>(
    on: Machine,
    q: &Quantized<T>,
    ids: &[u32],
    columns: usize,
    shape: &QuantizeShape,
) -> Vec<T> {
    let rows = TakenRows { ids: ids.as_ptr(), rows: shape.groups / columns, columns };
    let shape = &QuantizeShape { groups: ids.len() * columns, ..*shape };
    let mut out = vec![T::default(); shape.groups * shape.group_size];
    let (scales, biases, to) = (q.scales.as_ptr(), q.biases.as_ptr(), out.as_mut_ptr());
    // SAFETY: the buffers hold the matrix, and the output has room for one row per id.
    unsafe { dequantize_on(on, q.packed.as_ptr(), scales, biases, Some(&rows), to, shape) };
    out
}

#[test]
fn rows_in_any_order_and_beyond_the_matrix() {
    for bits in BITS {
        let (rows, columns) = (7, 3);
        let shape = QuantizeShape { groups: rows * columns, group_size: 64, bits };
        let x = values::<f32>(rows * columns * 64, 1.0);
        for machine in machines() {
            let q = run(machine, &x, &shape);
            let all = back(machine, &q, &shape);
            let ids = [3, 0, 6, 6, 7, 1 << 31, u32::MAX];
            let found = [3, 0, 6, 6, 6, 6, 6];
            let row = |id: &usize| all[id * columns * 64..(id + 1) * columns * 64].to_vec();
            let want: Vec<f32> = found.iter().flat_map(row).collect();
            assert_same(&taken(machine, &q, &ids, columns, &shape), &want, "rows");
        }
    }
}

fn check_sizes<T: Sample>() {
    for bits in BITS {
        for group_size in [32, 64, 128] {
            for groups in [0, 1, 3, 67] {
                let shape = QuantizeShape { groups, group_size, bits };
                check(&values::<T>(groups * group_size, 4.0), &shape);
            }
        }
    }
}

each_type!(check_sizes check_extremes);

/// Quantizes groups that are constant, one-sided, tiny or huge, or contain an infinity or a NaN.
fn check_extremes<T: Sample>() {
    let mut x = values::<T>(32 * 16, 1.0);
    let mut group = |index: usize, f: &dyn Fn(f32) -> f32| {
        for v in &mut x[32 * index..32 * (index + 1)] {
            *v = T::from_f32(f(v.to_f32()));
        }
    };
    group(0, &|_| 0.0);
    group(1, &|v| 0.0 * v);
    group(2, &|_| 7.5);
    group(3, &|_| -0.3);
    group(4, &|v| v - 2.0);
    group(5, &|v| v + 2.0);
    group(6, &|v| v * 1e-7);
    group(7, &|v| v * 6e4);
    group(8, &|v| v * 3e38);
    group(9, &|v| if v > 0.9 { f32::NAN } else { v });
    group(10, &|_| f32::NAN);
    group(11, &|v| if v > 0.9 { f32::INFINITY } else { v });
    group(12, &|v| if v < -0.9 { f32::NEG_INFINITY } else { v });
    group(13, &|v| (v * 7.0).round()); // quotients half way between codes
    group(14, &|v| (v * 15.0).round() * 0.5);
    for bits in BITS {
        check(&x, &QuantizeShape { groups: 16, group_size: 32, bits });
        check(&x, &QuantizeShape { groups: 4, group_size: 128, bits });
    }
}

#[test]
fn quotients_are_those_of_a_division() {
    // Elements whose quotients are at or next to n + 1/2, for scales from tiny to huge.
    for exponent in (-23..120).step_by(7) {
        let scale = 2f32.powi(exponent) * 1.37;
        let near = |code: f32| [code.next_down(), code, code.next_up()];
        let x: Vec<f32> =
            (0..255).flat_map(|code| near((code as f32 + 0.5) * scale)).take(640).collect();
        for bits in BITS {
            check(&x, &QuantizeShape { groups: 5, group_size: 128, bits });
        }
    }
}
