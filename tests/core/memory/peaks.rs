//! The peak memory of a training step, with and without recomputation.

use mlx_primitives::device::{Device, with_device};
use mlx_primitives::ops::{self, CrossEntropy, Linear, LinearCrossEntropy};
use mlx_primitives::transforms::{checkpoint, value_and_grad};
use mlx_primitives::{Array, Result, eval, memory};

use crate::support::input::random32;
use crate::support::memory::measures_here;
use crate::support::{Checked, EPS, simulated};

/// The peak number of bytes that a step allocates for its arrays.
fn peak(step: &dyn Fn() -> Result<Vec<Array>>) -> Result<usize> {
    memory::clear_cache()?;
    let before = memory::active_memory();
    memory::reset_peak_memory();
    eval(&step()?)?;
    Ok(memory::peak_memory().saturating_sub(before))
}

/// Measures up to three times, because the peak depends on how many ops MLX has queued.
fn assert_saves(
    name: &str,
    factor: f64,
    plain: &dyn Fn() -> Result<Vec<Array>>,
    saving: &dyn Fn() -> Result<Vec<Array>>,
) -> Checked {
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (most, less) = (peak(plain)?, peak(saving)?);
        println!("\n{name}: {most} bytes, then {less} bytes");
        if less as f64 * factor < most as f64 {
            return Ok(());
        }
        seen.push((most, less));
    }
    panic!("{name} does not save a factor of {factor}: {seen:?}");
}

#[test(simulated = once)]
fn of_checkpointed_layers() -> Checked {
    if simulated() || !measures_here("peaks::of_checkpointed_layers")? {
        return Ok(());
    }
    // On a GPU, MLX queues work until it reaches its memory limit. It would queue this whole step.
    with_device(Device::Cpu, checkpointed_layers)
}

fn checkpointed_layers() -> Checked {
    // For the backward pass, a layer keeps four arrays of 512 kB and two of 128 kB. The weights are
    // not differentiated, since their gradients take the same memory with and without checkpoints.
    let layer = |(x, up, down): (Array, Array, Array)| {
        let h = ops::matmul_nt(&ops::rms_norm(&x, None, EPS)?, &up)?;
        let h = (ops::silu(&h)? * h.sin()?)?;
        ops::matmul_nt(&h, &down)?.add(&x)
    };
    let x = random32(&[128, 256], 1)?;
    let up = random32(&[1024, 256], 2)?.multiply(0.01f32)?;
    let down = random32(&[256, 1024], 3)?.multiply(0.01f32)?;
    eval([&x, &up, &down])?;
    let step = |again: bool| {
        let loss = |mut x: Array| {
            for _ in 0..32 {
                x = match again {
                    true => checkpoint(layer, (&x, &up, &down))?,
                    false => layer((x, up.clone(), down.clone()))?,
                };
            }
            x.square()?.mean(..)
        };
        let (value, dx) = value_and_grad(loss, &x)?;
        Ok(vec![value, dx])
    };
    assert_saves("32 layers", 2.5, &|| step(false), &|| step(true))
}

#[test(simulated = once)]
fn of_linear_cross_entropy() -> Checked {
    if simulated() || !measures_here("peaks::of_linear_cross_entropy")? {
        return Ok(());
    }
    // A CUDA graph keeps the arrays of several chunks until it has run. In a program with a GPU,
    // evaluation on the CPU does not wait after each chunk either, so MLX queues up to ten tasks.
    let few = if Device::Gpu.is_available()? { 0.25 } else { 1.0 };
    with_device(Device::Cpu, || chunked_losses(few))
}

/// Checks that a loss in chunks takes less memory by a required factor. `few` scales the factor.
fn chunked_losses(few: f64) -> Checked {
    // All logits together take 64 MB, and the logits of a chunk 2 MB.
    let (rows, k, classes) = (2048, 64, 8192);
    let x = random32(&[rows, k], 1)?;
    let w = random32(&[classes, k], 2)?.multiply(0.1f32)?;
    let targets: Vec<i32> = (0..rows).map(|row| row * 7919 % classes).collect();
    let targets = Array::from_slice(&targets, [rows])?;
    eval([&x, &w, &targets])?;
    let chunk_rows = Some(64);
    let options = LinearCrossEntropy { chunk_rows, ..Default::default() };
    let ours = |x: &Array, w: &Array| ops::linear_cross_entropy(x, w, &targets, options);
    let theirs = |x: &Array, w: &Array| {
        let logits = ops::linear(x, w, Linear::default())?;
        ops::cross_entropy(&logits, &targets, CrossEntropy::default())
    };
    assert_saves("values", 8.0 * few, &|| Ok(vec![theirs(&x, &w)?]), &|| Ok(vec![ours(&x, &w)?]))?;
    let step = |fused: bool| {
        let loss = |(x, w): (Array, Array)| match fused {
            true => ours(&x, &w)?.mean(..),
            false => theirs(&x, &w)?.mean(..),
        };
        let (value, (dx, dw)) = value_and_grad(loss, (&x, &w))?;
        Ok(vec![value, dx, dw])
    };
    assert_saves("values and gradients", 6.0 * few, &|| step(false), &|| step(true))
}
