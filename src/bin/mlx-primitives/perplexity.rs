//! `mlx-primitives perplexity`: how well a model foresees a text.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use crate::model::{Source, progress};

const EXAMPLES: &str = "\
The text is tokenised whole, with the special tokens that the tokenizer adds, and every token after \
the first is scored in the context of all before it.

Examples:
  mlx-primitives perplexity --model ~/models/Llama-3.2-1B-4bit --file wiki.test.txt
  cat story.txt | mlx-primitives perplexity --file - --json
  mlx-primitives perplexity --model DIR --adapter-path adapters --file held_out.txt";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    source: Source,
    /// The text to score, UTF-8; `-` reads it from standard input.
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object: tokens (scored), mean_nll (nats), perplexity.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let text = read(&args.file)?;
    let checkpoint = args.source.load()?;
    let tokens = checkpoint.tokenizer.encode(&text)?;
    if let Some(limit) = checkpoint.llama.config().max_position_embeddings
        && tokens.len() > limit.unsigned_abs() as usize
    {
        eprintln!("note: {} tokens, the model was made for {limit} positions", tokens.len());
    }
    let bar = progress(tokens.len().saturating_sub(1) as u64)?.with_message("tokens");
    let score = checkpoint
        .llama
        .score(&tokens, |scored| bar.set_position(scored as u64))
        .with_context(|| args.file.display().to_string())?;
    bar.finish_and_clear();
    if args.json {
        let object = json!({
            "tokens": score.tokens,
            "mean_nll": score.mean_nll,
            "perplexity": score.perplexity(),
        });
        println!("{object}");
    } else {
        println!("tokens      {}", score.tokens);
        println!("mean NLL    {:.4} nats", score.mean_nll);
        println!("perplexity  {:.4}", score.perplexity());
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("reading the text from stdin")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}
