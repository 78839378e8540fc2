//! `cargo bench --features cuda --bench nvidia`: times our kernels and MLX's CUDA ops on shapes
//! that fill an NVIDIA GPU. Also times decoding with a Llama that has the 8B shape and 4-bit
//! weights. Prints Markdown.
//!
//! All contestants take turns in this process. An op's time is the time of a graph of several
//! calls, divided by the number of calls; each call takes the result of the previous call. A copy
//! is MLX's `negative`. Its time is scaled to the number of bytes that the op moves. An argument
//! selects the rows of the table whose names contain it.

use std::rc::Rc;
use std::time::Instant;

use mlx_primitives::device::{Device, with_device};
use mlx_primitives::ops::{self, QuantizedLinear, QuantizedMode, QuantizedWeight};
use mlx_primitives::tune::{Choices, Key, with_choices};
use mlx_primitives::{Array, Dtype, Error, Result, async_eval, memory, random};
use mlx_primitives_llama::{Config, Llama, Quantization};

const EPS: f32 = 1e-5;
/// The number of times that each contestant is measured; the median is printed.
const ROUNDS: usize = 15;
/// The smallest number of weight matrices in a chain of products. Successive calls use different
/// matrices.
const MATRICES: usize = 16;

type Step = Rc<dyn Fn(&Array, usize) -> Result<Array>>;

/// A chain of calls of an op.
struct Work {
    name: String,
    start: Array,
    step: Step,
    calls: usize,
    /// The number of bytes that a call has to move. The time of copying `copied` is scaled to it.
    bytes: usize,
    copied: Array,
}

impl Work {
    fn seconds(&self, from: &Array, step: &dyn Fn(&Array, usize) -> Result<Array>) -> Result<f64> {
        let start = Instant::now();
        let mut y = step(from, 0)?;
        for call in 1..self.calls {
            y = step(&y, call)?;
        }
        y.eval()?;
        Ok(start.elapsed().as_secs_f64() / self.calls as f64)
    }

    /// Prints the median times of our kernel and of MLX's op in microseconds, their ratio, and the
    /// time of a copy of as many bytes in percent of our kernel's time.
    fn measure(&self) -> Result<()> {
        let chosen = |choices: fn() -> Choices| {
            move || with_choices(Rc::new(choices()), || self.seconds(&self.start, &*self.step))
        };
        let copy = || self.seconds(&self.copied, &|x, _| x.negative());
        let runs: [&dyn Fn() -> Result<f64>; 3] =
            [&chosen(Choices::ours), &chosen(Choices::mlx), &copy];
        let mut times: [Vec<f64>; 3] = Default::default();
        for round in 0..ROUNDS + 2 {
            for (run, times) in runs.iter().zip(&mut times) {
                let time = run()?;
                times.extend((round > 1).then_some(time)); // the first rounds warm up
            }
        }
        let [ours, mlx, copy] = times.map(|times| 1e6 * median(times));
        let copy = copy * self.bytes as f64 / (2 * self.copied.nbytes()) as f64;
        println!(
            "| {} | {ours:.1} | {mlx:.1} | {:.2} | {:.0} % |",
            self.name,
            mlx / ours,
            100.0 * copy / ours
        );
        Ok(())
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn numbers(shape: &[i32], dtype: Dtype) -> Result<Array> {
    let x = random::normal_of(shape, dtype, None)?;
    x.eval()?;
    Ok(x)
}

fn rows(dtype: Dtype, [count, axis]: [i32; 2]) -> Result<Vec<Work>> {
    let calls = if count < 1000 { 64 } else { 8 };
    let (w, b) = (numbers(&[axis], dtype)?, numbers(&[axis], dtype)?);
    let start = numbers(&[count, axis], dtype)?;
    let array = start.nbytes();
    let residual = start.clone();
    let steps: [(&str, usize, Step); 4] = [
        ("rms_norm", 2, {
            let w = w.clone();
            Rc::new(move |x, _| ops::rms_norm(x, Some(&w), EPS))
        }),
        ("softmax", 2, Rc::new(|x, _| ops::softmax(x))),
        ("layer_norm", 2, {
            let w = w.clone();
            Rc::new(move |x, _| ops::layer_norm(x, Some(&w), Some(&b), EPS))
        }),
        ("rms_norm_residual", 4, {
            Rc::new(move |x, _| Ok(ops::rms_norm_residual(x, &residual, Some(&w), EPS)?.1))
        }),
    ];
    let work = |(op, arrays, step): (&str, usize, Step)| Work {
        name: format!("{op} [{count}, {axis}], {dtype}"),
        start: start.clone(),
        step,
        calls,
        bytes: arrays * array,
        copied: start.clone(),
    };
    Ok(steps.into_iter().map(work).collect())
}

/// Returns enough packed matrices that together they are larger than the caches.
fn packed(n: i32, k: i32, bits: i32) -> Result<Vec<QuantizedWeight>> {
    let one = |_| -> Result<QuantizedWeight> {
        let w = numbers(&[n, k], Dtype::Bfloat16)?;
        let packed = QuantizedWeight::quantize(&w, 64, bits, QuantizedMode::Affine)?;
        packed.packed().eval()?;
        Ok(packed)
    };
    let count = (1 << 28) / (n as usize * k as usize);
    (0..count.clamp(MATRICES, 8 * MATRICES)).map(one).collect()
}

/// Products of a few rows with packed weights. In a chain, the result of a step is the input of the
/// next step, so it must have the length of the input. Therefore some steps cut the result of a
/// product, and others compute a second product that has this length.
fn products() -> Result<Vec<Work>> {
    let squares = [(4096, 4), (4096, 8), (2048, 4), (2048, 8)];
    let pairs = [(14_336, 4096, 4), (14_336, 4096, 8), (8192, 2048, 4), (1024, 4096, 4)];
    let mut works = Vec::new();
    let copied = numbers(&[1 << 28], Dtype::Bfloat16)?; // larger than the caches
    let mut add = |name: String, rows: i32, bits: i32, k: i32, weights: usize, step: Step| {
        works.push(Work {
            name: format!("quantized_linear {name}, {rows} rows, {bits} bits"),
            start: numbers(&[rows, k], Dtype::Bfloat16)?,
            step,
            calls: 4 * MATRICES,
            bytes: weights * (2 * bits as usize + 1) / 16, // two 16-bit numbers per 64 weights
            copied: copied.clone(),
        });
        Ok::<_, Error>(())
    };
    let product =
        |x: &Array, w: &QuantizedWeight| ops::quantized_linear(x, w, QuantizedLinear::default());
    for (k, bits) in squares {
        let all = packed(k, k, bits)?;
        let step: Step = Rc::new(move |x, call| product(x, &all[call % all.len()]));
        add(format!("{k} to {k}"), 1, bits, k, (k * k) as usize, step)?;
    }
    for (n, k, bits) in pairs {
        let weights = (n * k) as usize;
        let (up, down) = (packed(n, k, bits)?, packed(k, n, bits)?);
        if n > k {
            let up = up.clone();
            let step: Step =
                Rc::new(move |x, call| product(x, &up[call % up.len()])?.slice_axis(-1, 0..k));
            add(format!("{k} to {n}"), 1, bits, k, weights, step)?;
        }
        let step: Step = Rc::new(move |x, call| {
            product(&product(x, &up[call % up.len()])?, &down[call % down.len()])
        });
        for rows in [1, 2, 8] {
            let step = step.clone();
            add(format!("{k} to {n} and back"), rows, bits, k, 2 * weights, step)?;
        }
    }
    Ok(works)
}

const LLAMA_8B: &str = r#"{
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "max_position_embeddings": 8192, "tie_word_embeddings": false
}"#;

/// Prints the tokens per second of greedy decoding with three choices of ops: the built-in rule,
/// which chooses our kernels and MLX's attention; MLX's ops alone; and our kernels alone.
fn decode(tokens: usize) -> Result<()> {
    let config = Config::parse(LLAMA_8B)?;
    let to = Some(Quantization::affine(64, 4));
    let llama = Llama::random(config, Dtype::Bfloat16, to, 0)?;
    let key = Key::here(Device::Gpu)?;
    let choices = [Choices::built_in(&key), Choices::mlx(), Choices::ours()].map(Rc::new);
    let mut speeds: [Vec<f64>; 3] = Default::default();
    for round in 0..6 {
        for (choices, speeds) in choices.iter().zip(&mut speeds) {
            let speed = with_choices(choices.clone(), || decoded(&llama, tokens))?;
            speeds.extend((round > 0).then_some(speed));
        }
    }
    let [chosen, mlx, ours] = speeds.map(median);
    println!(
        "| the first {tokens} tokens, tokens a second | {chosen:.1} | {mlx:.1} | {:.2} | {ours:.1} |",
        chosen / mlx
    );
    Ok(())
}

fn decoded(llama: &Llama, tokens: usize) -> Result<f64> {
    let mut cache = llama.new_cache();
    let mut next = Array::from_slice(&[1u32], [1, 1])?;
    let start = Instant::now();
    for _ in 0..tokens {
        // The GPU computes the token `after` while the program waits for `next`, the token before.
        let after = llama.forward(&next.reshape([1, 1])?, &mut cache)?.argmax(-1)?;
        async_eval([&after])?;
        next.eval()?;
        next = after;
    }
    next.eval()?;
    Ok(tokens as f64 / start.elapsed().as_secs_f64())
}

fn main() -> Result<()> {
    let parts: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if !Device::Gpu.is_available()? {
        println!("not run: there is no GPU");
        return Ok(());
    }
    let wanted = |name: &str| parts.is_empty() || parts.iter().any(|part| name.contains(part));
    with_device(Device::Gpu, || {
        memory::set_cache_limit(64 << 30)?; // several times the memory of the largest graph
        println!("{}\n", Device::Gpu.name()?);
        println!("| op | ours, µs | MLX, µs | ratio | of a copy |\n|---|---:|---:|---:|---:|");
        let shapes = [
            [65_536, 4096],
            [32_768, 8192],
            [131_072, 2048],
            [262_144, 768],
            [2_097_152, 128],
            [512, 4096],
            [1, 4096],
        ];
        for (dtype, count) in [(Dtype::Bfloat16, shapes.len()), (Dtype::Float32, 1)] {
            for shape in shapes[..count].iter().filter(|_| wanted("rows")) {
                rows(dtype, *shape)?.iter().try_for_each(Work::measure)?;
                memory::clear_cache()?;
            }
        }
        if wanted("products") {
            products()?.iter().try_for_each(Work::measure)?;
        }
        if wanted("decode") {
            println!("\n| Llama 8B shape, 4 bits | chosen | MLX | ratio | ours alone |");
            println!("|---|---:|---:|---:|---:|");
            decode(128)?;
        }
        Ok(())
    })
}
