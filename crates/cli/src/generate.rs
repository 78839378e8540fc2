use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use mlx_primitives_llama::{
    PromptCache, Token,
    decode::{FinishReason, Statistics},
    message,
};
use serde_json::{Value, json};

use crate::interrupt;
use crate::output;
use crate::ranks;
use crate::text::{Session, TextArgs, report, speeds};

/// The text below the options in `--help`.
const EXAMPLES: &str = "\
The text goes to stdout as it is generated, statistics to stderr. A model with a chat template answers
the prompt as a user's message; --ignore-chat-template continues it instead. Ctrl-C ends the text.

  mlx-primitives generate \"Once upon a time\"
  mlx-primitives generate --model DIR -p \"Name three rivers.\" --temp 0.7 --top-p 0.9
  mlx-primitives generate --model DIR -p - --json < prompt.txt";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The prompt, where \n is a line break and \t a tabulator; `-` reads it from standard input.
    #[arg(required_unless_present = "prompt_option")]
    prompt: Option<String>,
    /// The prompt, as an option like mlx_lm.generate's.
    #[arg(
        long = "prompt",
        short = 'p',
        id = "prompt_option",
        value_name = "PROMPT",
        conflicts_with = "prompt"
    )]
    prompt_option: Option<String>,
    #[command(flatten)]
    pub text: TextArgs,
    /// Read keys and values from this .safetensors file, if it exists, and write them there.
    #[arg(long, value_name = "FILE", help_heading = "Speed and memory")]
    prompt_cache_file: Option<PathBuf>,
    /// Print one JSON object instead of streaming the text; speeds over fewer than 8 tokens are
    /// null.
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// With --json: add the log probability of each token and of the N likeliest.
    #[arg(long, value_name = "N", requires = "json", help_heading = "Output")]
    logprobs: Option<usize>,
    /// Whether to write statistics to stderr.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          action = clap::ArgAction::Set, value_parser = clap::builder::BoolishValueParser::new(),
          help_heading = "Output")]
    verbose: bool,
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(path) = &args.prompt_cache_file {
        PromptCache::check_path(path)?; // fail before the generation, not after it
    }
    args.text.start()?;
    let prompt_text = ranks::from_first(|| prompt_text(args))?;
    let interrupted = interrupt::handle()?;
    let mut session = Session::load(&args.text)?;
    session.stop = interrupted;
    session.options.logprobs = args.logprobs;
    let mut messages = vec![message("user", &prompt_text)];
    if let Some(text) = &args.text.system_prompt {
        messages.insert(0, message("system", text));
    }
    let prompt = session.encode(&messages)?;
    ensure!(!prompt.is_empty(), "expected a prompt of at least one token, got an empty one");
    let cache = match &args.prompt_cache_file {
        Some(path) if path.exists() => Some(PromptCache::load(path, &session.checkpoint.llama)?),
        _ => None,
    };
    if let (Some(cache), Some(path)) = (&cache, &args.prompt_cache_file) {
        let kind = session.options.cache;
        ensure!(
            cache.is_of(kind, &session.checkpoint.llama)?,
            "{}: expected a cache as the options ask for, {kind:?}, got one of another kind",
            path.display()
        );
    }
    let mut output = Output::start(args, &session, &prompt_text);
    let mut generation = session.start(&prompt, cache)?;
    while !session.interrupted() {
        let Some(piece) = generation.next() else { break };
        let piece = piece?;
        output.text(&piece.text)?;
        output.tokens.extend(piece.token);
    }
    let reason = generation.finish_reason().map_or("interrupted", FinishReason::name);
    output.finish(&generation.statistics(), reason)?;
    if let Some(path) = &args.prompt_cache_file {
        generation.into_prompt_cache()?.save(path)?;
    }
    Ok(())
}

fn prompt_text(args: &Args) -> Result<String> {
    let text = args.prompt.as_ref().or(args.prompt_option.as_ref());
    match text.map(String::as_str) {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("reading the prompt from stdin")?;
            Ok(text)
        }
        // As in mlx-lm, a person can type a line break as `\n` and a tabulator as `\t`.
        text => Ok(text.unwrap_or_default().replace("\\n", "\n").replace("\\t", "\t")),
    }
}

/// Writes the text to stdout while it is generated, or one JSON object at the end.
struct Output {
    json: bool,
    verbose: bool,
    logprobs: bool,
    text: String,
    tokens: Vec<Token>,
}

impl Output {
    fn start(args: &Args, session: &Session, prompt: &str) -> Self {
        // The prompt is not part of the result, so it does not go to stdout. On a terminal, show it
        // on stderr before the text that continues it.
        let continues = session.template.is_none();
        if !args.json && args.verbose && continues && std::io::stdout().is_terminal() {
            output::eprint(prompt);
        }
        Self {
            json: args.json,
            verbose: args.verbose,
            logprobs: args.logprobs.is_some(),
            text: String::new(),
            tokens: Vec::new(),
        }
    }

    fn text(&mut self, piece: &str) -> Result<()> {
        if self.json {
            self.text.push_str(piece);
        } else if !piece.is_empty() {
            output::print(piece)?;
        }
        Ok(())
    }

    fn finish(&self, s: &Statistics, reason: &str) -> Result<()> {
        if !self.json {
            output::println("")?;
            if self.verbose {
                output::eprintln("-".repeat(10));
                report(s, reason);
            }
            return Ok(());
        }
        let ids: Vec<u32> = self.tokens.iter().map(|token| token.id).collect();
        let [prompt_tps, generation_tps] = speeds(s);
        let mut object = json!({
            "text": self.text,
            "token_ids": ids,
            "prompt_tokens": s.prompt_tokens,
            "cached_tokens": s.cached_tokens,
            "generated_tokens": s.generated_tokens,
            "draft_tokens": s.draft_tokens,
            "accepted_tokens": s.accepted_tokens,
            // Verifying several draft tokens in a pass does not change the order in which a token's
            // sums are added. So drafts do not change the text.
            "drafts_change_text": false,
            "prompt_tps": prompt_tps,
            "generation_tps": generation_tps,
            "peak_memory_bytes": s.peak_memory,
            "finish_reason": reason,
        });
        if self.logprobs {
            object["logprobs"] = self.tokens.iter().map(logprobs).collect();
        }
        Ok(output::println(object)?)
    }
}

fn logprobs(token: &Token) -> Value {
    let top = token.top_logprobs.iter().map(|(id, logprob)| json!({"id": id, "logprob": logprob}));
    json!({"id": token.id, "logprob": token.logprob, "top": top.collect::<Vec<_>>()})
}
