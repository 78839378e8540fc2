//! Times candle's quantized Llama on a GGUF file: `candle-peer FILE PROMPT GENERATION REPETITIONS`.
//! Decoding continues after the prompt. Prints one JSON object to stdout.

use std::fs::File;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, IndexOp, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use serde_json::json;

/// Loads the model and returns it with the size of its vocabulary. candle clears its key/value
/// cache when a sequence starts at position 0.
fn load(path: &str) -> Result<(ModelWeights, u32)> {
    let mut file = File::open(path).with_context(|| path.to_owned())?;
    let content = Content::read(&mut file)?;
    let key = "llama.vocab_size";
    let vocabulary = content.metadata.get(key).with_context(|| format!("no {key} in {path}"))?;
    let vocabulary = vocabulary.to_u32()?;
    Ok((ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?, vocabulary))
}

/// Returns the most likely token after `tokens`, whose first position is `at`.
fn forward(model: &mut ModelWeights, tokens: &[u32], at: usize) -> Result<u32> {
    let input = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
    let logits = model.forward(&input, at)?;
    Ok(logits.i(0)?.argmax(0)?.to_scalar()?)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    ensure!(args.len() == 4, "usage: candle-peer FILE PROMPT GENERATION REPETITIONS");
    let (prompt, generation): (usize, usize) = (args[1].parse()?, args[2].parse()?);
    let repetitions: usize = args[3].parse()?;
    ensure!(prompt > 0, "expected a prompt of one token or more");

    let (mut model, vocabulary) = load(&args[0])?;
    let tokens: Vec<u32> =
        (0..prompt).map(|i| (i as u32).wrapping_mul(2_654_435_761) % vocabulary).collect();
    forward(&mut model, &tokens[..1], 0)?;

    let (mut prompts, mut generations) = (Vec::new(), Vec::new());
    for _ in 0..repetitions {
        let start = Instant::now();
        let mut next = forward(&mut model, &tokens, 0)?;
        prompts.push(prompt as f64 / start.elapsed().as_secs_f64());
        let start = Instant::now();
        for step in 0..generation {
            next = forward(&mut model, &[next], prompt + step)?;
        }
        if generation > 0 {
            generations.push(generation as f64 / start.elapsed().as_secs_f64());
        }
    }
    println!("{}", json!({ "prompt_tps": prompts, "generation_tps": generations }));
    Ok(())
}
