//! `cargo bench -p mlx-primitives-cuda --bench kernels`: times kernels for norms and softmax, for
//! products of few rows, and for the attention of one token. It tries several variants and numbers
//! of threads. The benchmark launches kernels without MLX and measures the time with CUDA events.
//! It compares the results with references in double precision, and prints Markdown. With
//! `--compile`, it only compiles the kernels for sm_90, which needs no GPU. Any other argument
//! selects the measurements whose names contain it. The names are `layer_norm`, `rms_norm`,
//! `softmax`, `attention`, `linear` and `products`.
//!
//! `MLX_PRIMITIVES_SOURCES` can name another checkout whose `metal` and `crates` the benchmark
//! uses. The default is the checkout in which the benchmark was built.

mod attention;
mod driver;
mod linear;
mod numbers;
mod products;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use driver::{Driver, Launch, Memory};
use mlx_primitives_build::flatten;
use mlx_primitives_cuda::{Bound, Cubin, Request, compile};
use numbers::Random;

const EPS: f32 = 1e-5;
const SHARED: u32 = 1024;
/// The number of 16-bit elements that a thread reads at a time, except in kernels that read four.
const READS: u32 = 8;
const SIMD: u32 = 32;

fn metal(source: &str, reads: u32) -> Result<String> {
    let root = std::env::var_os("MLX_PRIMITIVES_SOURCES").map(PathBuf::from);
    let root = root.unwrap_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")));
    let metal = root.join("metal");
    let path = match source.contains("_forms") {
        true => root.join("crates/cuda/benches/kernels").join(source),
        false => metal.join(source),
    };
    let text = flatten(&path, &[metal]).with_context(|| path.display().to_string())?;
    Ok(format!("#define MLXP_READS {reads}\n{text}"))
}

/// Compiles a kernel of a source file. The arrays are bound to the first indices, and the
/// parameters to the next index.
fn compiled(source: &str, kernel: &str, arrays: u32, parameters: u32, to: u32) -> Result<Cubin> {
    let of_four = ["quantized", "attention", "linear_tiles", "linear.metal", "activation"];
    let four = of_four.iter().any(|part| source.contains(part));
    let reads = if four { 4 } else { READS };
    let text = metal(source, reads)?;
    let arrays = (0..arrays).map(|index| Bound { index, bytes: 0 });
    let last = Bound { index: arrays.len() as u32, bytes: parameters };
    let bound: Vec<Bound> = arrays.chain([last]).collect();
    let request = Request { source: &text, kernel, bound: &bound, ..Request::default() };
    compile(&request, to).map_err(|error| anyhow::anyhow!("{kernel}: {error}"))
}

/// A variant of a kernel for a norm or for softmax, which computes row by row.
struct Form {
    op: &'static str,
    source: &'static str,
    name: String,
    threads: u32,
    /// Rows of a threadgroup.
    together: u32,
}

/// Returns the variants of the kernels, with their numbers of threads, for rows with this number of
/// elements.
fn forms(axis: u32) -> Vec<Form> {
    let mut all = Vec::new();
    let mut add = |op, source, name: String, threads: u32, together| {
        if (SIMD..=1024).contains(&threads) {
            all.push(Form { op, source, name, threads, together });
        }
    };
    let threads = |quads: u32| axis.div_ceil(READS * quads).next_multiple_of(SIMD);
    let names = |quads: u32| if quads == 1 { "row".to_owned() } else { format!("row{quads}") };
    for quads in [1, 2, 4, 8] {
        if quads > 1 {
            let source = if quads == 8 { "layer_norm_forms.metal" } else { "layer_norm.metal" };
            add("layer_norm", source, names(quads), threads(quads), 1);
            for name in ["once", "whole"] {
                let name = format!("{name}{quads}");
                add("layer_norm", "layer_norm_forms.metal", name, threads(quads), 1);
            }
        }
        if quads < 8 {
            add("rms_norm", "rms_norm.metal", names(quads) + "_weighted", threads(quads), 1);
            add("softmax", "softmax.metal", names(quads), threads(quads), 1);
        }
    }
    for quads in [4, 8, 16] {
        if axis > SIMD * READS * quads / 2 && axis <= SIMD * READS * quads {
            for together in [2, 4, 8] {
                let (name, source) = (format!("alone{quads}"), "layer_norm_forms.metal");
                add("layer_norm", source, name, together * SIMD, together);
            }
        }
    }
    for threads in [128, 256, 512] {
        add("layer_norm", "layer_norm.metal", "looped".to_owned(), threads, 1);
        add("rms_norm", "rms_norm.metal", "looped_weighted".to_owned(), threads, 1);
        add("softmax", "softmax.metal", "looped".to_owned(), threads, 1);
    }
    all
}

impl Form {
    fn compiled(&self, architecture: u32) -> Result<Cubin> {
        let kernel = format!("mlxp_{}_{}_bfloat16", self.op, self.name);
        let (arrays, parameters) = match self.op {
            "layer_norm" => (4, 20),
            "rms_norm" => (3, 12),
            _ => (2, 8),
        };
        compiled(self.source, &kernel, arrays, parameters, architecture)
    }
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn rows(driver: &Driver, rows: u32, axis: u32, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    let forms: Vec<Form> = forms(axis).into_iter().filter(|form| wanted(form.op)).collect();
    if forms.is_empty() {
        return Ok(());
    }
    let mut random = Random::new(u64::from(axis));
    let bytes = 2 * rows as usize * axis as usize;
    let [weight, bias] = [(); 2].map(|()| random.elements(axis as usize));
    let some = random.elements(61 * axis as usize);
    let [x, out] = [(); 2].map(|()| driver.filled(bytes, &some));
    let (x, out) = (x?, out?);
    let at = |memory: Memory| memory.at.to_le_bytes().to_vec();
    let (w, b) = (driver.filled(weight.len(), &weight)?, driver.filled(bias.len(), &bias)?);
    let copy = driver.time(10, &mut |_| driver.copy(out, x))?;
    println!("| copy [{rows}, {axis}] | | {copy:.1} | 100 % | |");
    let [some, weight, bias] = [&some, &weight, &bias].map(|bytes| numbers::numbers(bytes));
    for form in &forms {
        let function = driver.load(&form.compiled(driver.architecture)?)?;
        let eps = EPS.to_bits();
        let (arrays, words) = match form.op {
            "layer_norm" => (vec![x, w, b, out], vec![rows, axis, eps, 1, 1]),
            "rms_norm" => (vec![x, w, out], vec![rows, axis, eps]),
            _ => (vec![x, out], vec![rows, axis]),
        };
        let mut buffers: Vec<Vec<u8>> = arrays.into_iter().map(at).collect();
        buffers.push(bytes_of(&words));
        let grid = rows.div_ceil(form.together);
        let grid = [grid, 1, 1];
        let launch = Launch { grid, threads: form.threads, shared: SHARED, buffers };
        let mut launch = Driver::prepared(&function, &launch);
        driver.copy(out, x)?; // makes missing rows visible
        let time = driver.time(10, &mut |_| driver.run(&mut launch))?;
        let mut worst = 0f64;
        for row in [0, 1, rows / 2, rows - 1] {
            let line = axis as usize * (row % 61) as usize;
            let x = &some[line..line + axis as usize];
            let want = match form.op {
                "layer_norm" => numbers::layer_norm(x, &weight, &bias, f64::from(EPS)),
                "rms_norm" => numbers::rms_norm(x, &weight, f64::from(EPS)),
                _ => numbers::softmax(x),
            };
            let start = out.at + 2 * u64::from(row) * u64::from(axis);
            let got = driver.read(Memory { at: start, bytes: 2 * axis as usize })?;
            worst = worst.max(numbers::error(&numbers::numbers(&got), &want));
        }
        let (op, name, threads, part) = (form.op, &form.name, form.threads, 100.0 * copy / time);
        println!(
            "| {op} [{rows}, {axis}] | {name}, {threads} | {time:.1} | {part:.0} % | {worst:.3} |"
        );
        ensure!(worst < 1.0, "{op} {name}: an error of {worst}");
    }
    [x, out, w, b].into_iter().try_for_each(|memory| driver.free(memory))
}

const SHAPES: [[u32; 2]; 6] = [
    [65_536, 4096],
    [32_768, 8192],
    [131_072, 2048],
    [262_144, 1024],
    [262_144, 768],
    [16_384, 16_384],
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|one| one != "--bench").collect();
    if arguments.iter().any(|one| one == "--compile") {
        for [_, axis] in SHAPES {
            for form in forms(axis) {
                let report = form.compiled(90)?.report;
                println!("{axis}: {} {}, {} threads: {report:?}", form.op, form.name, form.threads);
            }
        }
        products::reports(90)?;
        for form in linear::FORMS {
            println!("{}: {:?}", form.kernel, form.compiled(90)?.report);
        }
        for cubin in linear::gated_cubins(90)? {
            println!("{}: {:?}", cubin.symbol, cubin.report);
        }
        for form in attention::FORMS {
            println!("{}: {:?}", form.kernel, form.compiled(90)?.report);
        }
        return Ok(());
    }
    let driver = match Driver::open() {
        Ok(driver) => driver,
        Err(error) => {
            println!("not run: {error:#}");
            return Ok(());
        }
    };
    let wanted =
        |name: &str| arguments.is_empty() || arguments.iter().any(|part| name.contains(part));
    println!("{}\n", driver.name);
    println!(
        "| kernel, bfloat16 | form, threads | µs | of a copy | error |\n|---|---|---:|---:|---:|"
    );
    for [count, axis] in SHAPES {
        rows(&driver, count, axis, &wanted)?;
    }
    if wanted("attention") {
        for keys in [100, 250, 1000, 4096, 4224, 32_768] {
            attention::times(&driver, keys)?;
        }
    }
    if wanted("linear") {
        linear::times(&driver)?;
        linear::gated(&driver)?;
    }
    if wanted("products") {
        products::times(&driver)?;
    }
    Ok(())
}
