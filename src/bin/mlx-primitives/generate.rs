use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use mlx_primitives::llama::{Checkpoint, FinishReason, Options, Sampling, Statistics};
use serde_json::json;

#[derive(clap::Args)]
pub struct Args {
    /// The text to continue; `-` reads it from standard input.
    prompt: String,
    /// A checkpoint's directory; without it the small model that comes with the crate.
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Stop after this many tokens.
    #[arg(long, short, default_value_t = 256, value_name = "N")]
    max_tokens: usize,
    /// Temperature; 0 always takes the likeliest token.
    #[arg(long, default_value_t = 0.0, value_name = "T")]
    temp: f32,
    /// Draw from the likeliest tokens that together have this probability.
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    top_p: f32,
    /// Draw from tokens at least this fraction as likely as the likeliest.
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    min_p: f32,
    /// Draw from this many likeliest tokens; 0 for all.
    #[arg(long, default_value_t = 0, value_name = "K")]
    top_k: u32,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 0, value_name = "S")]
    seed: u64,
    /// Print one JSON object instead of streaming the text.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let checkpoint = match &args.model {
        Some(directory) => crate::loading::load(directory)?,
        None => Checkpoint::demo()?,
    };
    let prompt_text = prompt_text(args)?;
    let prompt = checkpoint.tokenizer.encode(&prompt_text)?;
    ensure!(!prompt.is_empty(), "expected a prompt of at least one token, got an empty one");
    let options = Options {
        max_tokens: args.max_tokens,
        sampling: Sampling {
            temp: args.temp,
            top_p: args.top_p,
            min_p: args.min_p,
            top_k: args.top_k,
            seed: args.seed,
        },
        ..Options::default()
    };

    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).context("handling Ctrl-C")?;

    let mut output = Output::start(args.json, &prompt_text)?;
    let mut stream = checkpoint.tokenizer.stream();
    let mut tokens = Vec::new();
    let mut generation = checkpoint.generate(&prompt, &options)?;
    while !stop.load(Ordering::Relaxed) {
        let Some(token) = generation.next() else { break };
        let token = token?;
        tokens.push(token);
        output.text(&stream.push(token)?)?;
    }
    let reason = generation.finish_reason().map_or("interrupted", FinishReason::name);
    output.finish(&tokens, &generation.statistics(), reason)
}

fn prompt_text(args: &Args) -> Result<String> {
    if args.prompt != "-" {
        return Ok(args.prompt.clone());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("reading the prompt from stdin")?;
    Ok(text)
}

/// Where the text goes: to the terminal as it comes, or into one object at the end.
struct Output {
    json: bool,
    text: String,
}

impl Output {
    fn start(json: bool, prompt: &str) -> Result<Self> {
        // The prompt is not part of the result, but a person reads on from it.
        if !json && std::io::stdout().is_terminal() {
            eprint!("{prompt}");
        }
        Ok(Self { json, text: String::new() })
    }

    fn text(&mut self, piece: &str) -> Result<()> {
        self.text.push_str(piece);
        if !self.json && !piece.is_empty() {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(piece.as_bytes())?;
            stdout.flush()?;
        }
        Ok(())
    }

    fn finish(self, tokens: &[u32], statistics: &Statistics, reason: &str) -> Result<()> {
        let s = statistics;
        if self.json {
            let object = json!({
                "text": self.text,
                "token_ids": tokens,
                "prompt_tokens": s.prompt_tokens,
                "generated_tokens": s.generated_tokens,
                "prompt_tps": s.prompt_tps(),
                "generation_tps": s.generation_tps(),
                "peak_memory_bytes": s.peak_memory,
                "finish_reason": reason,
            });
            println!("{object}");
            return Ok(());
        }
        println!();
        eprintln!("{}", "-".repeat(10));
        eprintln!("Prompt: {} tokens, {:.1} tokens-per-sec", s.prompt_tokens, s.prompt_tps());
        eprintln!(
            "Generation: {} tokens, {:.1} tokens-per-sec ({reason})",
            s.generated_tokens,
            s.generation_tps()
        );
        eprintln!("Peak memory: {:.1} MB", s.peak_memory as f64 / 1e6);
        Ok(())
    }
}
