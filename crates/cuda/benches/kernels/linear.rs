//! Products of one and eight rows with matrices of 16 bits.

use anyhow::{Result, ensure};
use mlx_primitives_cuda::Cubin;

use crate::driver::{Driver, Launch, Memory};
use crate::numbers::{self, Random};
use crate::{SIMD, bytes_of, compiled};

/// The columns of x and the rows of weights of an 8B shape's layer and head.
const SHAPES: [[u32; 2]; 5] =
    [[4096, 6144], [4096, 4096], [4096, 28_672], [14_336, 4096], [4096, 128_256]];
/// The matrices of a graph together are larger than the GPU's caches.
const BYTES: u64 = 1 << 30;

/// A kernel with a number of SIMD groups of a threadgroup.
pub struct Form {
    source: &'static str,
    pub kernel: &'static str,
    simds: u32,
    /// The rows of weights of a threadgroup.
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
            // The rows of all matrices together repeat after 61; the last matrix wrote the result.
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
