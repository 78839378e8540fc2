use crate::reference_loops::{dot, fp8};
use crate::testing::*;
use mlx_primitives_kernels::pool::Pool;
use mlx_primitives_kernels::quantized_matmul::*;
use mlx_primitives_kernels::{FEW_ROWS, RowOrder};

mod bytes;
mod centered;
mod extremes;
mod k_quants;
mod order;
mod transposed;

pub use k_quants::numbers as numbers_of_block;

const FORMATS: [(Mode, u32); 9] = [
    (Mode::Affine, 2),
    (Mode::Affine, 3),
    (Mode::Affine, 4),
    (Mode::Affine, 5),
    (Mode::Affine, 6),
    (Mode::Affine, 8),
    (Mode::Mxfp4, 4),
    (Mode::Mxfp8, 8),
    (Mode::Nvfp4, 4),
];

/// Products, and for each product the sum of the magnitudes of its terms.
type Sums = (Vec<f64>, Vec<f64>);

/// A packed matrix of random bits, and its weights as numbers in `dense`.
struct Matrix<T> {
    packed: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<T>,
    dense: Vec<f64>,
    columns: usize,
}

fn random_bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u8
    };
    (0..count).map(|_| next()).collect()
}

fn fp4(q: u32) -> f64 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][(q & 7) as usize];
    if q & 8 == 0 { magnitude } else { -magnitude }
}

impl<T: Sample> Matrix<T> {
    fn random((mode, bits): (Mode, u32), columns: usize, axis: usize, group: usize) -> Self {
        let mut packed = random_bytes(columns * axis * bits as usize / 8, columns as u64);
        if mode == Mode::Mxfp8 {
            // Clears the lowest bit, so that no code is NaN.
            packed.iter_mut().for_each(|byte| *byte &= 0xfe);
        }
        Self::of(packed, (mode, bits), columns, axis, group)
    }

    /// A matrix of the given codes with random scales and biases.
    fn of(
        packed: Vec<u8>,
        (mode, bits): (Mode, u32),
        columns: usize,
        axis: usize,
        group: usize,
    ) -> Self {
        let groups = columns * axis / group;
        let (mut scales, mut biases, mut of_group) = (Vec::new(), Vec::new(), Vec::new());
        let mut of_bias = Vec::new();
        if mode == Mode::KQuant {
            for block in 0..columns * axis / k_quant::BLOCK {
                let bytes = k_quants::block(bits, block as u64);
                let (of_scales, of_biases) = k_quants::numbers(bits, &bytes);
                scales.extend(bytes);
                of_group.extend(of_scales);
                of_bias.extend(of_biases);
            }
        } else if mode == Mode::Affine {
            let values: Vec<T> = values(groups, 2.0 / (1 << bits) as f32);
            biases = self::values::<T>(groups + 1, 1.0);
            biases.truncate(groups);
            of_group.extend(values.iter().map(|scale| f64::from(scale.to_f32())));
            for scale in &values {
                // SAFETY: an element consists of plain bytes.
                let bytes = unsafe {
                    std::slice::from_raw_parts(
                        std::ptr::from_ref(scale).cast::<u8>(),
                        size_of::<T>(),
                    )
                };
                scales.extend_from_slice(bytes);
            }
        } else if mode == Mode::Nvfp4 {
            // Scales of either sign and of magnitude below 2, including subnormal ones.
            scales = random_bytes(groups, 77).iter().map(|byte| byte & 0xbf).collect();
            of_group.extend(scales.iter().map(|&scale| fp8(u32::from(scale))));
        } else {
            // The exponents limit weights to a few hundred, with 8 bits and with 4 bits.
            let least = if bits == 8 { 115 } else { 121 };
            scales = random_bytes(groups, 77).iter().map(|byte| least + byte % 12).collect();
            of_group.extend(scales.iter().map(|&e| 2f64.powi(i32::from(e) - 127)));
        }
        let weight = |row: usize, k: usize| {
            let at = k * bits as usize;
            let start = row * axis * bits as usize / 8 + at / 8;
            let byte = |i: usize| u32::from(packed.get(start + i).copied().unwrap_or(0));
            let q = (byte(0) | byte(1) << 8) >> (at % 8) & ((1 << bits) - 1);
            let group = row * (axis / group) + k / group;
            match mode {
                Mode::Affine => of_group[group] * f64::from(q) + f64::from(biases[group].to_f32()),
                Mode::KQuant => of_group[group] * f64::from(q) + of_bias[group],
                Mode::Mxfp8 => of_group[group] * fp8(q),
                _ => of_group[group] * fp4(q),
            }
        };
        let dense = (0..columns * axis).map(|i| weight(i / axis, i % axis)).collect();
        Self { packed, scales, biases, dense, columns }
    }

    fn weights(&self) -> Weights {
        let biases =
            if self.biases.is_empty() { std::ptr::null() } else { self.biases.as_ptr().cast() };
        let (packed, scales) = (self.packed.as_ptr(), self.scales.as_ptr());
        Weights { packed, scales, biases, columns: self.columns }
    }

    fn times(&self, x: &[f64], axis: usize) -> Sums {
        let pairs = x
            .chunks_exact(axis)
            .flat_map(|x| self.dense.chunks_exact(axis).map(move |w| dot(x, w)));
        pairs.unzip()
    }
}

fn element<T: Sample>() -> Element {
    match (size_of::<T>(), T::EPSILON) {
        (4, _) => Element::F32,
        (_, epsilon) if epsilon == F16::EPSILON => Element::F16,
        _ => Element::BF16,
    }
}

/// A call that computes a product without any further step.
fn plain<'a, T: Sample>(
    format: (Mode, u32),
    group: usize,
    x: &[T],
    axis: usize,
    weights: &'a [Weights],
    out: &mut [T],
) -> Call<'a> {
    Call {
        element: element::<T>(),
        of_scales: element::<T>(),
        mode: format.0,
        bits: format.1,
        group,
        x: x.as_ptr().cast(),
        rows: x.len() / axis,
        axis,
        norm: None,
        weights,
        join: Join::Concatenate,
        bias: std::ptr::null(),
        residual: std::ptr::null(),
        low_rank: None,
        int8: false,
        centered: false,
        order: RowOrder::ByCount,
        out: out.as_mut_ptr().cast(),
    }
}

/// Multiplies the rows of x by the matrices.
fn multiplied<T: Sample>(
    on: Machine,
    format: (Mode, u32),
    group: usize,
    x: &[T],
    axis: usize,
    weights: &[Weights],
) -> Vec<T> {
    let columns: usize = weights.iter().map(|weights| weights.columns).sum();
    let mut out = vec![T::default(); x.len() / axis * columns];
    let call = plain(format, group, x, axis, weights, &mut out);
    // SAFETY: the call's buffers are the vectors of this function and its arguments.
    unsafe { quantized_matmul_on(on, &call) };
    out
}

/// Checks results against the error of f32 sums. A lane adds at most axis / 16 terms. The kernel
/// adds codes and biases in separate sums, whose magnitudes together are at most a few times the
/// sum of the terms' magnitudes. It rounds the result once to the element type. With many rows of
/// bf16, it also rounds the weights.
fn check<T: Sample>(got: &[T], (want, reach): (&[f64], &[f64]), rows: usize, what: &str) {
    let decoded = rows > FEW_ROWS && T::EPSILON == Bf16::EPSILON;
    let relative = if decoded { f64::from(T::EPSILON) / 2.0 } else { 0.0 } + 4e-6;
    for (i, got) in got.iter().enumerate() {
        let got = f64::from(got.to_f32());
        let bound = want[i].abs() * f64::from(T::EPSILON) / 2.0 * 1.01 + reach[i] * relative;
        assert!((got - want[i]).abs() <= bound, "{what}: {got} at {i}, expected {}", want[i]);
    }
}

fn products<T: Sample>() {
    for format in FORMATS {
        let short = [(32, 32), (32, 96), (64, 256), (64, 1088), (128, 384), (32, 1056)];
        for (group, axis) in short.into_iter().chain([(32, 4096), (32, 4128)]) {
            if format.0 != Mode::Affine && group != 32 {
                continue;
            }
            let group = if format.0 == Mode::Nvfp4 { 16 } else { group };
            products_of::<T>(format, group, axis);
        }
    }
}

fn products_of<T: Sample>(format: (Mode, u32), group: usize, axis: usize) {
    for rows in [1, 2, 5, 9, 40] {
        let matrices = [19, 3].map(|columns| Matrix::<T>::random(format, columns, axis, group));
        let x: Vec<T> = values(rows * axis, 2.0);
        let parts = matrices.each_ref().map(|m| m.times(&wide(&x), axis));
        let join = |of: fn(&Sums) -> &Vec<f64>| -> Vec<f64> {
            let row = |m: usize| {
                let first = &of(&parts[0])[19 * m..][..19];
                first.iter().chain(&of(&parts[1])[3 * m..][..3]).copied()
            };
            (0..rows).flat_map(row).collect()
        };
        let (want, reach) = (join(|p| &p.0), join(|p| &p.1));
        let weights = matrices.each_ref().map(Matrix::weights);
        for machine in machines_and_tiles() {
            let out = multiplied(machine, format, group, &x, axis, &weights);
            let what = format!("{format:?} {group} {axis} {rows} {:?}", machine.level);
            check(&out, (&want, &reach), rows, &what);
        }
    }
}

each_type!(products);

/// Checks that an x of f32 gives the bits of scales and biases that were converted to f32.
fn scales_of_another_type<T: Sample>() {
    for (format, group, axis) in [(0, 32, 96), (2, 32, 1088), (4, 64, 1088), (5, 128, 384)]
        .map(|(at, group, axis)| (FORMATS[at], group, axis))
    {
        let matrix = Matrix::<T>::random(format, 37, axis, group);
        let groups = matrix.biases.len();
        let scale = |group: usize| {
            let at = matrix.scales.as_ptr().cast::<T>().wrapping_add(group);
            // SAFETY: the matrix has a scale of type T for each group, at any alignment.
            unsafe { at.read_unaligned() }.to_f32()
        };
        let scales: Vec<f32> = (0..groups).map(scale).collect();
        let biases: Vec<f32> = matrix.biases.iter().map(|bias| bias.to_f32()).collect();
        let [scales, biases] = [&scales, &biases].map(|of| of.as_ptr().cast());
        let all = [[Weights { scales, biases, ..matrix.weights() }], [matrix.weights()]];
        for (rows, int8) in
            [(1, false), (3, false), (8, false), (9, false), (40, false), (1, true), (40, true)]
        {
            let x = values::<f32>(rows * axis, 2.0);
            for machine in machines_and_tiles() {
                let [expected, got] = [(Element::F32, &all[0]), (element::<T>(), &all[1])].map(
                    |(of_scales, weights)| {
                        let mut out = vec![0.0; rows * matrix.columns];
                        let call = plain(format, group, &x, axis, weights, &mut out);
                        let call = Call { of_scales, int8, ..call };
                        // SAFETY: the call's buffers are the vectors of this function.
                        unsafe { quantized_matmul_on(machine, &call) };
                        out
                    },
                );
                let what = format!("{format:?} {axis} {rows} {int8} {:?}", machine.level);
                assert_same(&got, &expected, &what);
            }
        }
    }
}

each_type!(scales_of_another_type);

/// Multiplies rows of the identity by all 256 values of 8-bit floats.
fn floats_of_eight_bits<T: Sample>() {
    const K: usize = 32;
    let packed: Vec<u8> = (0..=255).collect();
    let scales = [127u8; 8];
    let (packed, scales) = (packed.as_ptr(), scales.as_ptr());
    let weights = [Weights { packed, scales, biases: std::ptr::null(), columns: 8 }];
    let mut x = [T::default(); K * K];
    for i in 0..K {
        x[i * K + i] = T::from_f32(1.0);
    }
    for machine in machines() {
        for rows in [1, 8, K] {
            for top in (0..K).step_by(rows) {
                let x = &x[top * K..][..rows * K];
                let out = multiplied(machine, (Mode::Mxfp8, 8), K, x, K, &weights);
                for (i, got) in out.iter().enumerate() {
                    let (row, column) = (top + i / 8, i % 8);
                    // In two of the columns, the last weight is NaN, so all products of these
                    // columns are NaN.
                    let row = if column % 4 == 3 { K - 1 } else { row };
                    let want = fp8((column * K + row) as u32) as f32;
                    let got = got.to_f32();
                    let same = got == want || got.is_nan() && want.is_nan();
                    assert!(same, "{:?}: {got} of {rows} rows, expected {want}", machine.level);
                }
            }
        }
    }
}

each_type!(floats_of_eight_bits);

#[test]
fn a_product_foresees_the_one_that_followed_it() {
    const AXIS: usize = 1024;
    const COLUMNS: usize = 2048;
    let format = (Mode::Affine, 4);
    let packed = || random_bytes(COLUMNS * AXIS / 2, 3);
    let (packed, scales) = ([packed(), packed(), packed()], vec![0u16; COLUMNS * AXIS / 64]);
    let x = [Bf16::from_f32(1.0); AXIS];
    let mut out = [Bf16::default(); COLUMNS];
    let pool = Pool::leak_on(2, 2);
    let mut run = |which: usize| {
        let (packed, scales) = (packed[which].as_ptr(), scales.as_ptr().cast());
        let weights = [Weights { packed, scales, biases: scales, columns: COLUMNS }];
        let call = plain(format, 64, &x, AXIS, &weights, &mut out);
        // SAFETY: the call's buffers are the vectors of this function.
        unsafe { quantized_matmul_on(Machine { pool, ..Machine::current() }, &call) };
        pool.coming().of_share(0).next()
    };
    for round in 0..2 {
        for which in 0..3 {
            let foreseen = run(which);
            if round > 0 {
                assert_eq!(foreseen, Some(packed[(which + 1) % 3].as_ptr().addr()));
            }
        }
    }
}
