//! Times the attention of one token over the keys of a cache. There are eight key heads, and four
//! query heads for each key head.

use anyhow::{Result, ensure};
use mlx_primitives_cuda::Cubin;

use crate::driver::{Driver, Launch, Memory};
use crate::numbers::{self, Random};
use crate::{bytes_of, compiled};

const GROUP: u32 = 4;
const KV_HEADS: u32 = 8;
const DIM: u32 = 128;
const SIMD: u32 = 32;
/// The number of key/value caches that a step reads. Together they are larger than the caches of
/// the GPU, except with a few hundred keys.
const LAYERS: usize = 32;

/// A kernel, its number of threads, and the length of the parts ("splits") into which it divides
/// the keys.
pub struct Form {
    source: &'static str,
    pub kernel: &'static str,
    threads: u32,
    /// The number of keys in a split.
    chunk: u32,
    few: bool,
}

const fn vector(threads: u32) -> Form {
    let kernel = "mlxp_attention_vector_128_4_bfloat16";
    Form { source: "attention.metal", kernel, threads, chunk: 256, few: false }
}

const fn few(threads: u32, chunk: u32) -> Form {
    let kernel = "mlxp_attention_few_128_bfloat16";
    Form { source: "nvidia/attention_few.metal", kernel, threads, chunk, few: true }
}

pub const FORMS: [Form; 5] =
    [few(128, 128), few(256, 128), few(128, 256), few(256, 256), vector(256)];

impl Form {
    pub fn compiled(&self, architecture: u32) -> Result<Cubin> {
        compiled(self.source, self.kernel, if self.few { 6 } else { 10 }, 400, architecture)
    }

    /// The bytes of threadgroup memory that the kernel needs.
    fn shared(&self) -> u32 {
        let simds = self.threads / SIMD;
        let floats = match self.few {
            true => 16 * simds + 24 + simds * GROUP * DIM,
            false => (GROUP * DIM).max(simds * (2 * GROUP + DIM) + 2),
        };
        floats * 4
    }
}

/// Returns the bytes of the kernel's parameters. `capacity` is the number of keys that the cache
/// has room for.
fn parameters(keys: u32, capacity: u32, chunk: u32) -> Vec<u8> {
    let (row, heads) = (i64::from(DIM), i64::from(KV_HEADS));
    let head = row * i64::from(capacity);
    let queries = [0, heads * i64::from(GROUP) * row, row, row, 1];
    let stored = [0, heads * head, head, row, 1];
    let none = [0i64; 5];
    let views = [queries, stored, none, none, stored, none, none, none].concat();
    let splits = keys.div_ceil(chunk);
    let scale = (DIM as f32).sqrt().recip().to_bits();
    let words = [
        1, KV_HEADS, GROUP, 1, keys, DIM, DIM, 0, keys, chunk, splits, 0, 0, 0, 0, 0, 0, scale, 0,
        0,
    ];
    let mut bytes: Vec<u8> = views.iter().flat_map(|number| number.to_le_bytes()).collect();
    bytes.extend(bytes_of(&words));
    bytes
}

pub fn times(driver: &Driver, keys: u32) -> Result<()> {
    let capacity = keys.next_multiple_of(256);
    let mut random = Random::new(u64::from(keys));
    let elements = (KV_HEADS * capacity * DIM) as usize;
    let [k, v] = [(); 2].map(|()| random.elements(elements));
    let q = random.elements((GROUP * KV_HEADS * DIM) as usize);
    let rows = GROUP * KV_HEADS;
    let all_k = driver.filled(LAYERS * k.len(), &k)?;
    let all_v = driver.filled(LAYERS * v.len(), &v)?;
    let queries = driver.filled(q.len(), &q)?;
    let most = FORMS.iter().map(|form| keys.div_ceil(form.chunk)).max().unwrap_or(1);
    let partials = driver.filled((most * rows * (DIM + 2)) as usize * 4, &[])?;
    let out = driver.filled(q.len(), &[])?;
    let want = reference(&q, &k, &v, keys as usize);
    for form in FORMS {
        let splits = keys.div_ceil(form.chunk);
        let bytes = parameters(keys, capacity, form.chunk);
        let function = driver.load(&form.compiled(driver.architecture)?)?;
        driver.allow(&function, form.shared())?;
        let to = if splits > 1 { partials } else { out };
        let mut launches: Vec<_> = (0..LAYERS)
            .map(|layer| {
                let (k, v) =
                    (all_k.at + (layer * k.len()) as u64, all_v.at + (layer * v.len()) as u64);
                let arrays = match form.few {
                    true => vec![queries.at, k, v, queries.at, queries.at, to.at],
                    false => vec![queries.at, k, k, k, v, v, v, queries.at, queries.at, to.at],
                };
                let mut buffers: Vec<Vec<u8>> =
                    arrays.iter().map(|at| at.to_le_bytes().to_vec()).collect();
                buffers.push(bytes.clone());
                let grid = [splits, KV_HEADS, 1];
                Driver::prepared(
                    &function,
                    &Launch { grid, threads: form.threads, shared: form.shared(), buffers },
                )
            })
            .collect();
        let mut buffers: Vec<Vec<u8>> =
            [partials.at, queries.at, out.at].iter().map(|at| at.to_le_bytes().to_vec()).collect();
        buffers.push(bytes.clone());
        let (source, kernel, blocks, threads) = match form.few {
            true => (form.source, "mlxp_attention_few_combine_bfloat16", rows, 256),
            false => (form.source, "mlxp_attention_combine_bfloat16", rows / 8, 256),
        };
        let combine = driver.load(&compiled(source, kernel, 3, 400, driver.architecture)?)?;
        let (grid, shared) = ([blocks, 1, 1], (16 + 4 * threads) * 4);
        let mut last = Driver::prepared(&combine, &Launch { grid, threads, shared, buffers });
        let alone = driver.time_graph(LAYERS, &mut |call| driver.run(&mut launches[call]))?;
        let both = driver.time_graph(LAYERS, &mut |call| {
            driver.run(&mut launches[call])?;
            if splits > 1 { driver.run(&mut last) } else { Ok(()) }
        })?;
        let got = numbers::numbers(&driver.read(Memory { at: out.at, bytes: out.bytes })?);
        let error = numbers::error(&got[..want.len()], &want);
        let bandwidth = f64::from(2 * keys * KV_HEADS * DIM * 2) / alone / 1e6;
        println!(
            "| attention, {keys} keys | {}, {} threads, {} keys a split | {alone:.1}; {both:.1} with the sum of splits | {bandwidth:.2} TB/s | {error:.3} |",
            form.kernel, form.threads, form.chunk
        );
        ensure!(error < 1.0, "an error of {error}");
    }
    [all_k, all_v, queries, partials, out].into_iter().try_for_each(|all| driver.free(all))
}

/// Computes the expected results for the query heads of the first key head.
fn reference(q: &[u8], k: &[u8], v: &[u8], keys: usize) -> Vec<f64> {
    let dim = DIM as usize;
    let [q, k, v] = [q, k, v].map(numbers::numbers);
    let mut all = Vec::new();
    for row in q.chunks_exact(dim).take(GROUP as usize) {
        let scores: Vec<f64> = k
            .chunks_exact(dim)
            .take(keys)
            .map(|key| row.iter().zip(key).map(|(a, b)| a * b).sum::<f64>() / (dim as f64).sqrt())
            .collect();
        let weights = numbers::softmax(&scores);
        let mut sums = vec![0.0; dim];
        for (weight, value) in weights.iter().zip(v.chunks_exact(dim)) {
            sums.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight * value);
        }
        all.extend(sums);
    }
    all
}
