//! Teaches the demo model a new kind of text by low-rank updates of its projections, through the
//! primitives' derivatives, and plots the falling loss.
//!
//! ```text
//! cargo run --release --example lora_finetune [-- STEPS [CURVE.svg [ADAPTERS]]]
//! ```
//!
//! With a directory ADAPTERS, the updates are saved there in mlx-lm's format, for `--adapter-path`.

mod plot;
mod text;
mod train;

use anyhow::{Result, ensure};
use mlx_primitives::random;
use mlx_primitives_llama::{Checkpoint, Options};

use train::Trainer;

const STEPS: usize = 200;
/// Steps between evaluations on the held-out text.
const LOOK: usize = 20;
const RANK: i32 = 8;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let steps = arguments.next().map_or(Ok(STEPS), |steps| steps.parse())?;
    let curve = arguments.next().unwrap_or_else(|| "lora_finetune.svg".to_owned());
    let adapters_path = arguments.next();
    random::seed(1)?;

    let checkpoint = Checkpoint::demo()?;
    let (train, held_out) = text::entries(320, 32);
    let mut trainer = Trainer::new(&checkpoint, &train, &held_out, RANK)?;
    println!("{} trained numbers beside {} fixed ones", trainer.trained(), trainer.fixed());

    let mut points = vec![(0, trainer.held_out_loss()?)];
    println!("step    0  held-out loss {:.3}", points[0].1);
    for step in 1..=steps {
        let loss = trainer.step()?;
        if step % LOOK == 0 || step == steps {
            points.push((step, trainer.held_out_loss()?));
            println!(
                "step {step:4}  loss {loss:.3}  held-out loss {:.3}",
                points[points.len() - 1].1
            );
        }
    }
    plot::draw(&curve, &points)?;
    println!("wrote {curve}");

    let (first, last) = (points[0].1, points[points.len() - 1].1);
    ensure!(last < first, "the held-out loss went from {first:.3} to {last:.3}");

    // The updates are merged into the weights, so that the model alone writes log entries.
    let adapters = trainer.adapters()?;
    if let Some(path) = &adapters_path {
        adapters.save(path, &checkpoint.llama)?;
        println!("wrote {path}");
    }
    let merged = checkpoint.llama.merged(&adapters)?;
    let prompt = checkpoint.tokenizer.encode("Log of the")?;
    let options = Options { max_tokens: 60, ..Options::default() };
    let tokens = merged.generate(&prompt, &options)?.collect::<mlx_primitives::Result<Vec<_>>>()?;
    println!("Log of the{}", checkpoint.tokenizer.decode(&tokens)?);
    Ok(())
}
