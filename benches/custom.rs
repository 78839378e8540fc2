//! `cargo bench --bench custom`: measures the overhead of a custom primitive in Rust, compared with
//! a C++ subclass of MLX's `Primitive`. The subclass is this crate's `rms_norm`. The primitive in
//! Rust calls the same kernel.

use std::time::Instant;

use mlx_primitives::custom::{CustomPrimitive, Spec, View, ViewMut, apply_one};
use mlx_primitives::{Array, Result, eval, ops};
use mlx_primitives_kernels as kernels;

const EPS: f32 = 1e-5;
const CHAIN: usize = 500;
const ROUNDS: usize = 41;

struct RmsNorm;

impl CustomPrimitive for RmsNorm {
    fn name(&self) -> &str {
        "custom_rms_norm"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    // Computes in place, like the C++ subclass.
    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let weight = inputs[1].as_slice::<f32>()?;
        let (axis, weight) = (weight.len(), weight.as_ptr().cast());
        let out = outputs[0].as_mut_slice::<f32>()?;
        let (rows, out) = (out.len() / axis, out.as_mut_ptr().cast());
        // SAFETY: the output holds the rows of the input, because the op works in place, and the
        // weight has the length of a row.
        unsafe { kernels::rms_norm(kernels::Element::F32, out, weight, out, rows, axis, EPS) };
        Ok(())
    }
}

fn custom(x: &Array, weight: &Array) -> Result<Array> {
    apply_one(RmsNorm, &[x, weight])
}

fn subclass(x: &Array, weight: &Array) -> Result<Array> {
    ops::rms_norm(x, Some(weight), EPS)
}

type Op = fn(&Array, &Array) -> Result<Array>;

/// Returns the nanoseconds per op for building a chain, and for building and evaluating it.
fn time(op: Op, x: &Array, weight: &Array) -> Result<[f64; 2]> {
    let start = Instant::now();
    let mut y = x.clone();
    for _ in 0..CHAIN {
        y = op(&y, weight)?;
    }
    let built = start.elapsed();
    y.eval()?;
    Ok([built, start.elapsed()].map(|time| time.as_nanos() as f64 / CHAIN as f64))
}

/// Returns the lower quartile of the times. Some chains take several times as long, because a
/// thread had to be woken or another program ran. They do not affect the lower quartile.
fn quartile(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

fn main() -> Result<()> {
    // `cargo test --all-targets` runs benches too, but without cargo's `--bench` flag.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    println!("ns an op, lower quartiles of {ROUNDS} interleaved chains of {CHAIN}, float32");
    println!(
        "{:>12} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "shape", "", "subclass", "custom", "extra", "ratio"
    );
    for shape in [[1, 16], [1, 1024], [1, 4096], [64, 1024]] {
        let (x, weight) = (Array::ones::<f32>(&shape)?, Array::ones::<f32>(&shape[1..])?);
        eval([&x, &weight])?;
        let mut times: [[Vec<f64>; 2]; 2] = Default::default();
        for _ in 0..ROUNDS {
            for (side, op) in [subclass as Op, custom].into_iter().enumerate() {
                let [built, all] = time(op, &x, &weight)?;
                times[side][0].push(built);
                times[side][1].push(all);
            }
        }
        let [subclass, custom] = times;
        for ((what, subclass), custom) in ["build", "in all"].iter().zip(subclass).zip(custom) {
            let (subclass, custom) = (quartile(subclass), quartile(custom));
            let (extra, ratio) = (custom - subclass, custom / subclass);
            println!(
                "{:>12} {what:>10} {subclass:>10.0} {custom:>10.0} {extra:>10.0} {ratio:>10.2}",
                format!("{shape:?}")
            );
        }
    }
    Ok(())
}
