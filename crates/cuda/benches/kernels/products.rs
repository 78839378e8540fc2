//! Times products of one, two and eight rows with packed weights in groups of 64.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use mlx_primitives_cuda::Cubin;

use crate::driver::{Driver, Launch, Memory};
use crate::numbers::{self, Random};
use crate::{EPS, SIMD, bytes_of, compiled};

/// The number of SIMD groups of a walking kernel that fit on a core. In such a kernel, a
/// threadgroup processes several tiles of weights.
const WALKING: u32 = 24;

/// The size of a product's matrix, and the ops before and after the product.
struct Shape {
    k: u32,
    n: u32,
    normed: bool,
    swiglu: bool,
}

const fn shape(k: u32, n: u32) -> Shape {
    Shape { k, n, normed: false, swiglu: false }
}

/// The products of a layer and of the output head of an 8B model, and of a layer of a 1B model.
const SHAPES: [Shape; 8] = [
    Shape { normed: true, ..shape(4096, 6144) },
    shape(4096, 4096),
    Shape { normed: true, swiglu: true, ..shape(4096, 28_672) },
    shape(14_336, 4096),
    shape(4096, 128_256),
    Shape { normed: true, ..shape(2048, 3072) },
    shape(2048, 2048),
    Shape { normed: true, swiglu: true, ..shape(2048, 16_384) },
];

/// A kernel, and how its SIMD groups share the work. If `of` is not 0, each SIMD group multiplies
/// `of` rows of weights. Otherwise, the columns are split into `splits` parts. A team of `splits /
/// turns` SIMD groups processes these parts for sixteen rows of weights.
struct Form {
    kernel: &'static str,
    rows: u32,
    simds: u32,
    of: u32,
    splits: u32,
    turns: u32,
}

impl Form {
    fn compiled(&self, bits: u32, architecture: u32) -> Result<Cubin> {
        let (source, group) = match self.of {
            0 => ("nvidia/quantized_matmul_few.metal", "_g64"),
            _ => ("quantized_matmul.metal", ""),
        };
        let kernel = format!("mlxp_quantized_{}_b{bits}{group}_bfloat16", self.kernel);
        compiled(source, &kernel, 14, 72, architecture)
    }

    fn walks(&self) -> bool {
        self.kernel.ends_with("walk")
    }

    fn rows_of_weights(&self) -> u32 {
        if self.of > 0 { self.simds * self.of } else { self.simds * self.turns / self.splits * 16 }
    }

    /// The bytes of threadgroup memory that the kernel needs.
    fn shared(&self, k: u32) -> u32 {
        if self.of > 0 {
            let staged = k.next_multiple_of(512).min(8192 / self.rows);
            return (self.rows * staged / 16 + 8 + 32) * 4 + self.rows * staged * 2;
        }
        let (band, step) = (if self.rows <= 2 { 2 } else { 8 }, 128 * self.splits);
        let count = k.next_multiple_of(128).min(16384 / self.rows / step * step);
        let sums = self.simds * self.turns * 16 * band * if self.walks() { 2 } else { 1 };
        (64 + 8 + 64 + sums + band * count / 16) * 4 + self.rows * (count + 16) * 2
    }
}

fn forms() -> Vec<Form> {
    let mut all = Vec::new();
    for (kernel, rows, of) in [("matmul_row", 1, 4), ("matmul_band8", 8, 2)] {
        all.push(Form { kernel, rows, simds: 8, of, splits: 0, turns: 1 });
    }
    for splits in [2, 4, 8, 16] {
        for rows in [1, 2] {
            let simds = splits.max(4);
            all.push(Form { kernel: "few_band2", rows, simds, of: 0, splits, turns: 1 });
            all.push(Form { kernel: "few_walk", rows, simds: splits, of: 0, splits, turns: 1 });
        }
        for (kernel, turns) in
            [("few_band8_turns1", 1), ("few_band8_turns2", 2), ("few_band8_turns4", 4)]
        {
            all.push(Form { kernel, rows: 8, simds: 16, of: 0, splits, turns });
        }
    }
    all.retain(|form| form.splits % form.turns == 0);
    all
}

/// Compiles the kernels without splits and with 16 splits, and prints the resources that they need,
/// such as registers.
pub fn reports(architecture: u32) -> Result<()> {
    for form in forms().iter().filter(|form| form.splits % 16 == 0) {
        for bits in [4, 8] {
            let report = form.compiled(bits, architecture)?.report;
            println!("{}, {bits} bits: {report:?}", form.kernel);
        }
    }
    Ok(())
}

pub fn times(driver: &Driver) -> Result<()> {
    for bits in [4, 8] {
        for shape in &SHAPES {
            of_shape(driver, shape, bits)?;
        }
    }
    Ok(())
}

/// Times the kernels on one shape, and checks their results. Consecutive launches of a graph use
/// different matrices, which together are larger than the caches. The first row must have the same
/// bits for all kernels with the same number of splits.
fn of_shape(driver: &Driver, shape: &Shape, bits: u32) -> Result<()> {
    let Shape { k, n, normed, swiglu } = *shape;
    let mut random = Random::new(u64::from(n));
    let (columns, parts) = if swiglu { (n / 2, 2) } else { (n, 1) };
    let (weights, groups) = (n as usize * k as usize, n as usize * k as usize / 64);
    let codes: Vec<u8> = (0..weights * bits as usize / 8).map(|_| random.bits() as u8).collect();
    let copies = (512usize << 20).div_ceil(codes.len()).min(64);
    let [scales, biases] = [(); 2].map(|()| random.elements(groups));
    let (x, norm) = (random.elements(8 * k as usize), random.elements(k as usize));
    let packed = driver.filled(copies * codes.len(), &codes)?;
    let of_scales = driver.filled(copies * scales.len(), &scales)?;
    let of_biases = driver.filled(copies * biases.len(), &biases)?;
    let (rows_of_x, of_norm) = (driver.filled(x.len(), &x)?, driver.filled(norm.len(), &norm)?);
    let out = driver.filled(16 * n as usize, &[])?;
    let bytes_of_scales = scales.len();
    let [x, norm, scales, biases] =
        [&x, &norm, &scales, &biases].map(|bytes| numbers::numbers(bytes));
    let mut alone: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for form in forms() {
        let cubin = form.compiled(bits, driver.architecture)?;
        let (threads, shared) = (form.simds * SIMD, form.shared(k));
        let whole = form.rows * k.next_multiple_of(128 * form.splits.max(1)) <= 16_384;
        if cubin.report.registers * threads > 65_536 || form.walks() && !whole {
            continue; // too many registers, or x does not fit in shared memory
        }
        let function = driver.load(&cubin)?;
        driver.allow(&function, shared)?;
        let of_block = form.rows_of_weights() / parts;
        let blocks = columns.div_ceil(of_block);
        let most = if form.walks() { driver.cores * (WALKING / form.splits) } else { blocks };
        let words = [
            form.rows,
            k,
            columns,
            parts,
            columns,
            if swiglu { columns } else { 0 },
            0,
            0,
            0,
            0,
            6,
            u32::from(swiglu),
            u32::from(normed),
            0,
            0,
            EPS.to_bits(),
            form.splits,
            blocks,
        ];
        let launch = |call: usize| {
            let part = |bytes: usize, all: Memory, part: usize| {
                all.at + (call * bytes + part * bytes / parts as usize) as u64
            };
            let mut arrays = vec![rows_of_x.at];
            for i in [0, parts as usize - 1, 0] {
                arrays.push(part(codes.len(), packed, i));
                arrays.push(part(bytes_of_scales, of_scales, i));
                arrays.push(part(bytes_of_scales, of_biases, i));
            }
            arrays.extend([rows_of_x.at, rows_of_x.at, of_norm.at, out.at]);
            let mut buffers: Vec<Vec<u8>> =
                arrays.iter().map(|at| at.to_le_bytes().to_vec()).collect();
            buffers.push(bytes_of(&words));
            Launch { grid: [blocks.min(most), 1, 1], threads, shared, buffers }
        };
        let mut launches: Vec<_> =
            (0..copies).map(|call| Driver::prepared(&function, &launch(call))).collect();
        let mut call = 0;
        let time = driver.time_graph(100, &mut |_| {
            call += 1;
            driver.run(&mut launches[call % copies])
        })?;
        let bytes = driver.read(out)?;
        let got = numbers::numbers(&bytes);
        let row = form.rows as usize - 1;
        let values = &x[row * k as usize..][..k as usize];
        let values =
            if normed { numbers::rms_norm(values, &norm, f64::from(EPS)) } else { values.to_vec() };
        let product = |column: usize| -> f64 {
            let term = |(j, x): (usize, &f64)| {
                let i = column * k as usize + j;
                let code = match bits {
                    4 => codes[i / 2] >> (i % 2 * 4) & 15,
                    _ => codes[i],
                };
                x * (scales[i / 64] * f64::from(code) + biases[i / 64])
            };
            values.iter().enumerate().map(term).sum()
        };
        let want = |column: usize| {
            let y = product(column);
            if swiglu { y / (1.0 + (-y).exp()) * product(column + columns as usize) } else { y }
        };
        let some: Vec<usize> = (0..columns as usize).step_by(columns as usize / 50).collect();
        let want: Vec<f64> = some.iter().map(|&column| want(column)).collect();
        let got: Vec<f64> = some.iter().map(|at| got[row * columns as usize + at]).collect();
        let error = numbers::error(&got, &want);
        let bandwidth = (codes.len() + 4 * groups) as f64 / time / 1e6;
        let steps = format!(
            "{}{}",
            if normed { ", norm" } else { "" },
            if swiglu { ", SwiGLU" } else { "" }
        );
        let Form { kernel, rows, simds, splits, .. } = form;
        println!(
            "| {k} to {n}, {bits} bits{steps} | {kernel}, {rows} rows, {simds} SIMD groups, \
             {splits} splits | {time:.1} | {bandwidth:.2} TB/s | {error:.3} |"
        );
        ensure!(error < 1.0, "an error of {error}");
        if splits > 0 {
            let first = bytes[..2 * columns as usize].to_vec();
            let known = alone.entry(splits).or_insert_with(|| first.clone());
            ensure!(*known == first, "{kernel}: other bits with {rows} rows");
        }
    }
    [packed, of_scales, of_biases, rows_of_x, of_norm, out]
        .into_iter()
        .try_for_each(|all| driver.free(all))
}
