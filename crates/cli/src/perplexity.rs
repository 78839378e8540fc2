//! `mlx-primitives perplexity`: measures how well a model predicts a text.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use mlx_primitives::files;
use mlx_primitives_llama::CacheKind;
use serde_json::json;

use crate::kernels::Kernels;
use crate::model::{Source, progress};
use crate::output;
use crate::ranks::{self, Ranks};
use crate::wired::{self, Resident};

const EXAMPLES: &str = "\
The text is tokenized as a whole, with the special tokens that the tokenizer adds, and every token \
after the first is scored in the context of all tokens before it. A text of more tokens than the model \
was made for, and of more than 8192, is scored in windows.

Examples:
  mlx-primitives perplexity --model ~/models/Llama-3.2-1B-4bit --file wiki.test.txt
  cat LICENSE-MIT | mlx-primitives perplexity --file - --json
  mlx-primitives perplexity --model DIR --adapter-path adapters --file held_out.txt";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub source: Source,
    /// The text file to score, in UTF-8; `-` reads standard input.
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object: tokens (scored), mean_nll (nats), perplexity.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    ranks: Ranks,
    #[command(flatten)]
    kernels: Kernels,
}

pub fn run(args: &Args) -> Result<()> {
    args.kernels.set()?;
    args.ranks.join()?;
    let text = ranks::from_first(|| read(&args.file))?;
    let checkpoint = args.source.load()?;
    let activations = args.kernels.activations(&checkpoint.llama)?;
    let checkpoint = checkpoint.with_activations(activations);
    let tokens = checkpoint.tokenizer.encode(&text)?;
    drop(text);
    let limit = checkpoint.llama.config().max_position_embeddings.map(i32::unsigned_abs);
    let window = checkpoint.llama.score_window();
    if tokens.len() > window {
        let tokens = tokens.len();
        output::eprintln(format_args!("note: {tokens} tokens are scored in windows of {window}"));
    } else if let Some(limit) = limit.filter(|&limit| tokens.len() > limit as usize) {
        let tokens = tokens.len();
        output::eprintln(format_args!(
            "note: {tokens} tokens, the model was made for {limit} positions"
        ));
    }
    let cache = wired::cache(&checkpoint.llama, CacheKind::Plain, tokens.len().min(window));
    let _resident = Resident::new(checkpoint.llama.nbytes().saturating_add(cache));
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
        output::println(object)?;
    } else {
        output::println(format_args!("tokens      {}", score.tokens))?;
        output::println(format_args!("mean NLL    {:.4} nats", score.mean_nll))?;
        output::println(format_args!("perplexity  {:.4}", score.perplexity()))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("reading the text from stdin")?;
        return Ok(text);
    }
    files::read_to_string(path).context("--file takes a regular file, or `-` for standard input")
}
