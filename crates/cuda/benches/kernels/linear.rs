//! Times products of one and eight rows with 16-bit matrices. Also times the gate and up products
//! of a normalized row.

use anyhow::{Result, ensure};
use mlx_primitives_cuda::Cubin;

use crate::driver::{Driver, Function, Launch, Memory};
use crate::numbers::{self, Random};
use crate::{EPS, SIMD, bytes_of, compiled};

/// The columns of x and the rows of weights in an 8B model: for the matrices of a layer, and for
/// the output head.
const SHAPES: [[u32; 2]; 5] =
    [[4096, 6144], [4096, 4096], [4096, 28_672], [14_336, 4096], [4096, 128_256]];
/// The total size of the matrices in a graph. It is larger than the GPU's caches.
const BYTES: u64 = 1 << 30;

/// A kernel and the number of SIMD groups in its threadgroups.
pub struct Form {
    source: &'static str,
    pub kernel: &'static str,
    simds: u32,
    /// The number of weight rows for each threadgroup.
    rows_of_weights: u32,
    /// The rows of x.
    rows: u32,
}

const fn tiles(rows: u32, simds: u32) -> Form {
    let kernel = "mlxp_linear_tiles_bfloat16";
    Form { source: "nvidia/linear_tiles.metal", kernel, simds, rows_of_weights: 16, rows }
}

const fn few(rows: u32, kernel: &'static str) -> Form {
    Form { source: "linear.metal", kernel, simds: 8, rows_of_weights: 32, rows }
}

pub const FORMS: [Form; 6] = [
    few(1, "mlxp_linear_few1_bfloat16"),
    tiles(1, 4),
    tiles(1, 8),
    tiles(1, 16),
    few(8, "mlxp_linear_few8_bfloat16"),
    tiles(8, 8),
];

impl Form {
    pub fn compiled(&self, architecture: u32) -> Result<Cubin> {
        compiled(self.source, self.kernel, 5, 28, architecture)
    }
}

pub fn times(driver: &Driver) -> Result<()> {
    for [k, n] in SHAPES {
        let mut random = Random::new(u64::from(n));
        let bytes = u64::from(k) * u64::from(n) * 2;
        let layers = (BYTES / bytes).clamp(2, 64);
        let some = random.elements(61 * k as usize);
        let x = random.elements(8 * k as usize);
        let weights = driver.filled((layers * bytes) as usize, &some)?;
        let values = driver.filled(x.len(), &x)?;
        let out = driver.filled(8 * n as usize * 2, &[])?;
        let all = numbers::numbers(&some);
        for form in FORMS {
            let function = driver.load(&form.compiled(driver.architecture)?)?;
            let rows = form.rows;
            let mut launches: Vec<_> = (0..layers)
                .map(|layer| {
                    let w = weights.at + layer * bytes;
                    let arrays = [values.at, w, values.at, values.at, out.at];
                    let mut buffers: Vec<Vec<u8>> =
                        arrays.iter().map(|at| at.to_le_bytes().to_vec()).collect();
                    buffers.push(bytes_of(&[rows, n, k, 0, 0, 0, 0]));
                    let grid = [n.div_ceil(form.rows_of_weights), 1, 1];
                    let shared = (form.simds * 128 * 4).max(4096 * 4);
                    let threads = form.simds * SIMD;
                    Driver::prepared(&function, &Launch { grid, threads, shared, buffers })
                })
                .collect();
            let time =
                driver.time_graph(layers as usize, &mut |call| driver.run(&mut launches[call]))?;
            let got = Memory { at: out.at, bytes: (rows * n) as usize * 2 };
            let got = numbers::numbers(&driver.read(got)?);
            // The memory of all matrices repeats the same 61 rows. The result is the product with
            // the last matrix. `first` is the index of this matrix's first row among the 61 rows.
            let first = ((layers - 1) * u64::from(n) % 61) as usize;
            let mut worst = 0f64;
            for (row, x) in numbers::numbers(&x).chunks(k as usize).take(rows as usize).enumerate()
            {
                let sums: Vec<f64> = all
                    .chunks(k as usize)
                    .map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum())
                    .collect();
                let want: Vec<f64> =
                    (0..n as usize).map(|column| sums[(first + column) % 61]).collect();
                let got = &got[row * n as usize..][..n as usize];
                worst = worst.max(numbers::error(got, &want));
            }
            let bandwidth = bytes as f64 / time / 1e6;
            println!(
                "| product, {rows} rows, {k} to {n} | {}, {} SIMD groups | {time:.1} | {bandwidth:.2} TB/s | {worst:.3} |",
                form.kernel, form.simds
            );
            ensure!(worst < 1.0, "an error of {worst}");
        }
        [weights, values, out].into_iter().try_for_each(|all| driver.free(all))?;
    }
    Ok(())
}

/// The kernels of the separate ops, and the joined kernel. Each has a source, a name, the number of
/// arrays, and the bytes of parameters.
const OF_GATED: [(&str, &str, u32, u32); 4] = [
    ("rms_norm.metal", "mlxp_rms_norm_row_weighted_bfloat16", 3, 12),
    ("nvidia/linear_tiles.metal", "mlxp_linear_tiles_bfloat16", 5, 28),
    ("activation.metal", "mlxp_activation_swiglu_bfloat16", 3, 8),
    ("nvidia/linear_gated.metal", "mlxp_linear_gated_bfloat16", 5, 20),
];

pub fn gated_cubins(architecture: u32) -> Result<Vec<Cubin>> {
    let of =
        |(source, kernel, arrays, bytes)| compiled(source, kernel, arrays, bytes, architecture);
    OF_GATED.into_iter().map(of).collect()
}

/// Times the gate and up products for one normalized row of an 8B model. The first measurement runs
/// separate kernels one after the other. The others run the joined kernel, each with a different
/// limit on the threadgroups per core.
pub fn gated(driver: &Driver) -> Result<()> {
    let (k, n, layers) = (4096u32, 14_336u32, 8u64);
    let cubins = gated_cubins(driver.architecture)?;
    let functions: Vec<Function> =
        cubins.iter().map(|cubin| driver.load(cubin)).collect::<Result<_>>()?;
    let mut random = Random::new(1);
    let bytes = u64::from(k) * u64::from(n) * 2;
    let some = random.elements(61 * k as usize);
    let weights = driver.filled((2 * layers * bytes) as usize, &some)?;
    let [x, norm] = [(); 2].map(|()| driver.filled(2 * k as usize, &random.elements(k as usize)));
    let (x, norm, normed) = (x?, norm?, driver.filled(2 * k as usize, &[])?);
    let of_row = 2 * n as usize;
    let [gate, up, out] = [(); 3].map(|()| driver.filled(of_row, &[]));
    let (gate, up, out) = (gate?, up?, out?);
    let launch = |kernel: usize, arrays: &[Memory], words: &[u32], groups: u32, shared: u32| {
        let mut buffers: Vec<Vec<u8>> =
            arrays.iter().map(|memory| memory.at.to_le_bytes().to_vec()).collect();
        buffers.push(bytes_of(words));
        let threads = if kernel == 0 { 512 } else { 8 * SIMD };
        let grid = [groups, 1, 1];
        Driver::prepared(&functions[kernel], &Launch { grid, threads, shared, buffers })
    };
    let eps = EPS.to_bits();
    let mut want = Vec::new();
    for of_core in [0, 2, 3, 4] {
        let mut all = Vec::new();
        for layer in 0..layers {
            let [a, b] = [0, 1].map(|which| Memory {
                at: weights.at + (2 * layer + which) * bytes,
                bytes: bytes as usize,
            });
            if of_core > 0 {
                let groups = (n / 8).min(of_core * driver.cores);
                let shared = 64 * 4 + 2 * 8 * 16 * 4 + 2 * k * 2;
                let words = [n, k, 512, n / 8, eps];
                all.push(launch(3, &[x, a, b, norm, out], &words, groups, shared));
                continue;
            }
            all.push(launch(0, &[x, norm, normed], &[1, k, eps], 1, 1024));
            for (w, to) in [(a, gate), (b, up)] {
                let words = [1, n, k, 0, 0, 0, 0];
                all.push(launch(1, &[normed, w, x, x, to], &words, n / 16, 8 * 128 * 4));
            }
            all.push(launch(2, &[gate, up, out], &[n, 0], n.div_ceil(1024), 0));
        }
        driver.copy(out, Memory { at: weights.at, bytes: of_row })?; // shows missing results
        let time = driver.time_graph(all.len(), &mut |call| driver.run(&mut all[call]))?;
        let time = time * all.len() as f64 / layers as f64;
        let got = driver.read(out)?;
        let form = match of_core {
            0 => "separate kernels".to_owned(),
            of_core => format!("one kernel, {of_core} a core"),
        };
        println!("| gate and up, {k} to {n} | {form} | {time:.1} | | |");
        if of_core == 0 {
            want = got;
        } else {
            ensure!(got == want, "other bits than those of separate kernels");
        }
    }
    let all = [weights, x, norm, normed, gate, up, out];
    all.into_iter().try_for_each(|memory| driver.free(memory))
}
