//! Fine-tunes the demo model with a focal loss ([Lin et al.
//! 2017](https://arxiv.org/abs/1708.02002)), written with operators on arrays:
//! `-(1 - p)^gamma * log(p)`, where p is the probability of the target.
//!
//! ```sh
//! cargo run --example custom_loss
//! ```

use std::process::ExitCode;

use mlx_primitives::ops::{CrossEntropy, Lora};
use mlx_primitives::prelude::*;
use mlx_primitives::random;
use mlx_primitives_llama::{Adapters, Checkpoint};

const TEXT: &str =
    "Log of the ship: wind from the north, sea calm. Log of the ship: wind from the west.";
const PROJECTION: &str = "model.layers.3.mlp.down_proj";
const SCALE: f32 = 2.0;
const STEPS: usize = 12;
const RATE: f32 = 0.3;

/// The mean loss over all targets. With gamma = 0 the loss is the cross-entropy.
fn focal_loss(logits: &Array, targets: &Array, gamma: f32) -> Result<Array> {
    let log_p =
        ops::log_softmax(logits)?.take_along_axis(&targets.expand_dims(-1)?, -1)?.squeeze(-1)?;
    let miss = (1.0 - log_p.exp()?)?;
    (-(miss.power(gamma)? * log_p)?)?.mean(..)
}

/// Trains the model for a few steps. Returns the loss before each step and after the last step.
fn fine_tune() -> Result<Vec<f32>> {
    let checkpoint = Checkpoint::demo()?;
    let llama = &checkpoint.llama;
    let tokens = checkpoint.tokenizer.encode(TEXT)?;
    let shape = (1, tokens.len() as i32 - 1);
    let inputs = Array::from_slice(&tokens[..tokens.len() - 1], shape)?;
    let targets = Array::from_slice(&tokens[1..], shape)?;

    let plain = llama.forward(&inputs, &mut llama.new_cache())?;
    let expected = ops::cross_entropy(&plain, &targets, CrossEntropy::default())?.mean(..)?;
    let difference = (focal_loss(&plain, &targets, 0.0)? - expected)?.item::<f32>()?;
    assert!(difference.abs() < 1e-4, "gamma = 0 is off the cross-entropy by {difference}");

    let loss = |(a, b): (Array, Array)| {
        let adapters: Adapters =
            [(PROJECTION.to_owned(), Lora::new(a, b, SCALE)?)].into_iter().collect();
        let logits = llama.forward_adapted(&inputs, &mut llama.new_cache(), Some(&adapters))?;
        focal_loss(&logits, &targets, 2.0)
    };
    random::seed(0)?;
    let initial = Lora::initial(llama.projection_shape(PROJECTION)?, 8, SCALE)?;
    let (mut a, mut b) = (initial.a().clone(), initial.b().clone());
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let (value, (slope_a, slope_b)) = transforms::value_and_grad(loss, (&a, &b))?;
        a = (a - (slope_a * RATE)?)?;
        b = (b - (slope_b * RATE)?)?;
        eval([&value, &a, &b])?;
        losses.push(value.item()?);
    }
    losses.push(loss((a, b))?.item()?);
    Ok(losses)
}

fn main() -> ExitCode {
    match fine_tune() {
        Ok(losses) => {
            println!("focal loss: {losses:.3?}");
            if losses[STEPS] < 0.9 * losses[0] {
                return ExitCode::SUCCESS;
            }
            eprintln!("error: {STEPS} steps did not lower the loss by a tenth");
        }
        Err(error) => eprintln!("error: {error}"),
    }
    ExitCode::FAILURE
}
