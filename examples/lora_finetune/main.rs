//! Teaches the demo model a new kind of text by low-rank updates of its projections, and prints the
//! loss as it falls.
//!
//! ```text
//! cargo run --release --example lora_finetune [-- STEPS [FOLDER]]
//! ```
//!
//! The program writes the texts, the updates in mlx-lm's format and the state of the run to the
//! folder, by default `lora_finetune`. `mlx-primitives lora --train --data FOLDER` trains on the
//! same texts.

mod text;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use mlx_primitives_llama::train::{
    Adam, Dataset, Kind, Optimizer, Schedule, Settings, Trainable, Trainer, evaluate,
};
use mlx_primitives_llama::{Checkpoint, Options};

/// The number of steps between evaluations on the held-out texts.
const LOOK: u64 = 20;
const BATCH: usize = 8;
/// Texts are cut after this number of tokens.
const LONGEST: usize = 128;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let steps = arguments.next().map_or(Ok(200), |steps| steps.parse())?;
    let folder = PathBuf::from(arguments.next().unwrap_or_else(|| "lora_finetune".to_owned()));
    std::fs::create_dir_all(&folder)?;
    let checkpoint = Checkpoint::demo()?;
    let llama = &checkpoint.llama;
    let (train, held_out) = text::entries(320, 32);
    let train = written(&folder.join("train.jsonl"), &train, &checkpoint)?;
    let held_out = written(&folder.join("valid.jsonl"), &held_out, &checkpoint)?;

    let settings = Settings {
        optimizer: Optimizer::Adam(Adam { bias_correction: true, ..Adam::default() }),
        schedule: Schedule::Constant(1e-3),
        batch_size: BATCH,
        accumulation: 1,
        max_length: LONGEST,
        max_norm: None,
        recompute: false,
        seed: 1,
    };
    let kind = Kind::Lora { rank: 8, scale: 2.0, keys: None, dropout: 0.0, dora: false };
    let trainable = Trainable::new(llama, kind, -1)?;
    let mut trainer = Trainer::new(llama, &train, trainable, settings)?;
    let trained: usize = trainer.parameters().values().map(|array| array.size()).sum();
    println!("{trained} trained numbers beside {} fixed ones", llama.parameters());

    let first = evaluate(llama, &held_out, BATCH, LONGEST, None, || {})?;
    println!("step    0  held-out loss {first:.3}");
    let mut last = first;
    while trainer.steps() < steps {
        let loss = trainer.step()?.loss;
        let step = trainer.steps();
        if step.is_multiple_of(LOOK) || step == steps {
            last = evaluate(&trainer.model()?, &held_out, BATCH, LONGEST, None, || {})?;
            println!("step {step:4}  loss {loss:.3}  held-out loss {last:.3}");
        }
    }
    ensure!(last < first, "the held-out loss went from {first:.3} to {last:.3}");
    trainer.save(folder.join("adapters"), false)?;
    println!("wrote {}", folder.display());

    // Merge the updates into the weights, so that the model writes log entries without adapters.
    let merged = llama.merged(&trainer.adapters()?)?;
    let prompt = checkpoint.tokenizer.encode("Log of the")?;
    let options = Options { max_tokens: 60, ..Options::default() };
    let tokens = merged.generate(&prompt, &options)?.collect::<mlx_primitives::Result<Vec<_>>>()?;
    println!("Log of the{}", checkpoint.tokenizer.decode(&tokens)?);
    Ok(())
}

/// Writes texts to a file of JSON lines, and encodes them as tokens.
fn written(path: &Path, texts: &[String], checkpoint: &Checkpoint) -> Result<Dataset> {
    let line = |text: &String| format!("{}\n", serde_json::json!({"text": text}));
    std::fs::write(path, texts.iter().map(line).collect::<String>())?;
    Ok(Dataset::load(path, checkpoint, None, false)?)
}
