//! `mlx-primitives bench`: measures how fast a model runs a prompt and decodes.

mod traffic;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use mlx_primitives::ops::{RowOrder, with_row_order};
use mlx_primitives::{Array, async_eval, eval, files, memory};
use mlx_primitives_llama::{Cache, CacheKind, Config, Llama, Options};
use serde_json::{Value, json};

use crate::joined;
use crate::kernels::Kernels;
use crate::model::{Float, KvArgs, Packing, Source, bytes, check_kv, progress};
use crate::output::{self, StdoutError};
use crate::ranks::Ranks;
use crate::wired::{self, Resident};
use traffic::Traffic;

const EXAMPLES: &str = "\
Each trial runs a prompt of random tokens through the model and then decodes greedily, without \
stopping at end tokens. Figures are medians of the trials, after one that does not count; peak memory \
is that of the arrays, weights included.

Examples:
  mlx-primitives bench --model ~/models/Llama-3.2-1B-Instruct-4bit
  mlx-primitives bench --config config.json --bits 4 --group-size 64 -p 512 -g 128 -n 5 --json
  mlx-primitives bench --model DIR -p 0 -g 64 --context 4096 --kv-bits 8
  mlx-primitives bench --model DIR -p 128 -g 32 --texts 16";

/// The number of prompt tokens that run through the model at a time, as in `generate`.
const PREFILL_STEP: usize = 512;

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub source: Source,
    /// A config.json whose model gets random weights, of bfloat16 without --dtype, instead of a
    /// checkpoint.
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    config: Option<PathBuf>,
    #[command(flatten)]
    packing: Packing,
    /// Tokens of the prompt; 0 measures decoding alone.
    #[arg(long, short, default_value_t = 512, value_name = "N")]
    prompt_tokens: u32,
    /// Tokens to decode; 0 measures the prompt alone.
    #[arg(long, short, default_value_t = 128, value_name = "N")]
    generation_tokens: u32,
    /// Number of trials that count.
    #[arg(long, short, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    num_trials: u32,
    /// Texts that are decoded together, each after its own prompt. Speeds count all texts.
    #[arg(long, default_value_t = 1, value_name = "N", conflicts_with = "context", value_parser = clap::value_parser!(u32).range(1..=256))]
    texts: u32,
    /// Positions in the cache before the prompt.
    #[arg(long, short, default_value_t = 0, value_name = "N")]
    context: u32,
    #[command(flatten)]
    kv: KvArgs,
    /// Print one JSON object: prompt_tps, generation_tps, peak_memory_bytes, weight_bytes, and
    /// tokens_hash, which is the same where two runs decode the same tokens.
    #[arg(long)]
    json: bool,
    /// Print the speed of each trial to stderr as soon as the trial ends.
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    ranks: Ranks,
    #[command(flatten)]
    kernels: Kernels,
}

pub fn run(args: &Args) -> Result<()> {
    ensure!(
        args.prompt_tokens > 0 || args.generation_tokens > 0,
        "expected tokens to run: -p or -g above 0"
    );
    args.kernels.set()?;
    args.ranks.join()?;
    let llama = model(args)?;
    let activations = args.kernels.activations(&llama)?;
    let llama = llama.with_activations(activations);
    if let Some(limit) = llama.config().max_position_embeddings {
        let end = u64::from(args.context)
            + u64::from(args.prompt_tokens)
            + u64::from(args.generation_tokens);
        if end > u64::from(limit.unsigned_abs()) {
            output::eprintln(format_args!("note: {end} positions, the model was made for {limit}"));
        }
    }
    check_kv(args.kv.kind(), &llama)?;
    // Count the context twice: each trial starts from a copy of the cache that holds the context.
    let positions = [args.context, args.context, args.prompt_tokens, args.generation_tokens];
    let positions = positions.into_iter().map(|tokens| tokens as usize).sum();
    let cache = wired::cache(&llama, args.kv.kind(), positions);
    let _resident = Resident::new(llama.nbytes().saturating_add(cache));
    let bench = Bench::new(&llama, args.kv.kind(), args.context)?;
    let (prompt, generation) = (args.prompt_tokens as usize, args.generation_tokens as usize);
    let bar = progress(u64::from(args.num_trials) + 1)?.with_message("trials");
    let mut trials = Vec::new();
    for trial in 0..=args.num_trials {
        let figures = match args.texts {
            1 => bench.trial(prompt, generation)?,
            texts => together(&llama, args.kv.kind(), texts, prompt, generation)?,
        };
        if args.progress {
            output::eprintln(format_args!("trial {trial}: {figures}"));
        }
        // The first trial is not counted, because it also reads the weights and compiles kernels.
        if trial > 0 {
            trials.push(figures);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let ranks = traffic::measure(&llama)?;
    Ok(report(args, &llama, &trials, &ranks)?)
}

fn model(args: &Args) -> Result<Llama> {
    let to = args.packing.quantization()?;
    let Some(path) = &args.config else {
        let llama = args.source.load()?.llama;
        return Ok(match to {
            Some(to) => llama.quantized(to)?,
            None => llama,
        });
    };
    let in_file = || path.display().to_string();
    let text = files::read_to_string(path)?;
    let config = Config::parse(&text).with_context(in_file)?;
    let dtype = args.source.dtype.unwrap_or(Float::Bfloat16).into();
    match joined::split() {
        Some(split) => split.random(config, dtype, to, 0),
        None => Llama::random(config, dtype, to, 0),
    }
    .with_context(in_file)
}

/// A model, and the key/value cache that each trial starts from.
struct Bench<'a> {
    llama: &'a Llama,
    before: Cache,
}

struct Figures {
    prompt_tps: Option<f64>,
    generation_tps: Option<f64>,
    peak_memory: u64,
    /// A hash of the decoded tokens.
    tokens: Option<u64>,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let named = [("prompt", self.prompt_tps), ("generation", self.generation_tps)];
        let speed = |(name, tps): (&str, Option<f64>)| Some(format!("{name} {:.4} tokens/s", tps?));
        f.write_str(&named.into_iter().filter_map(speed).collect::<Vec<_>>().join(", "))
    }
}

impl<'a> Bench<'a> {
    fn new(llama: &'a Llama, kind: CacheKind, context: u32) -> Result<Self> {
        let mut before = llama.new_cache_of(kind)?;
        fill(llama, &tokens(llama, context as usize, 1), &mut before)?;
        Ok(Self { llama, before })
    }

    fn trial(&self, prompt: usize, generation: usize) -> Result<Figures> {
        let mut cache = self.before.clone();
        if !cache.is_empty() || prompt == 0 {
            // Run one step that is not timed. It allocates buffers, or copies the buffers that all
            // trials share.
            step(self.llama, &Array::from_slice(&[0u32], [1])?, &mut cache)?.eval()?;
        }
        memory::reset_peak_memory();
        let prompt_tokens = tokens(self.llama, prompt, 2);
        let mut next = Array::from_slice(&[0u32], [1])?;
        let mut prompt_tps = None;
        if prompt > 0 {
            let start = Instant::now();
            let (rest, last) = prompt_tokens.split_at((prompt - 1) / PREFILL_STEP * PREFILL_STEP);
            fill(self.llama, rest, &mut cache)?;
            next = step(self.llama, &Array::from_slice(last, [last.len() as i32])?, &mut cache)?;
            next.eval()?;
            prompt_tps = Some(prompt as f64 / start.elapsed().as_secs_f64());
        }
        let mut generation_tps = None;
        let mut hash = HASH;
        if generation > 0 {
            let start = Instant::now();
            for _ in 0..generation {
                // As in `generate`, MLX computes the next token while the program waits for `next`.
                let after = step(self.llama, &next, &mut cache)?;
                hash = with_token(hash, next.item::<u32>()?);
                next = after;
            }
            hash = with_token(hash, next.item::<u32>()?);
            generation_tps = Some(generation as f64 / start.elapsed().as_secs_f64());
        }
        // Subtract the memory of the context, because only the trials need a second copy of it.
        let kept: usize = self.before.arrays().map(Array::nbytes).sum();
        let peak_memory = memory::peak_memory().saturating_sub(kept) as u64;
        Ok(Figures { prompt_tps, generation_tps, peak_memory, tokens: Some(hash) })
    }
}

/// Decodes several sequences as a batch. The time of decoding counts from the moment at which all
/// prompts have been processed.
fn together(
    llama: &Llama,
    cache: CacheKind,
    texts: u32,
    prompt: usize,
    generation: usize,
) -> Result<Figures> {
    memory::reset_peak_memory();
    let prompts: Vec<Vec<u32>> =
        (0..texts).map(|text| tokens(llama, prompt.max(1), u64::from(text) + 2)).collect();
    // The first sequence must still have tokens to decode when the last prompt has been processed.
    let max_tokens = generation.saturating_add(2 * prompts.len()).saturating_add(2);
    let mut batch = llama
        .generate_batch(&prompts, &Options { max_tokens, cache, ..Options::default() })?
        .map(|step| step.map(|(text, _)| text));
    let start = Instant::now();
    let mut seen = BTreeSet::new();
    while seen.len() < prompts.len() {
        seen.insert(batch.next().context("texts that go on")??);
    }
    let prompt_tps = (prompts.len() * prompt) as f64 / start.elapsed().as_secs_f64();
    let start = Instant::now();
    let count = prompts.len() * generation;
    for text in batch.take(count) {
        text?;
    }
    let generation_tps = count as f64 / start.elapsed().as_secs_f64();
    Ok(Figures {
        prompt_tps: (prompt > 0).then_some(prompt_tps),
        generation_tps: (generation > 0).then_some(generation_tps),
        peak_memory: memory::peak_memory() as u64,
        tokens: None,
    })
}

/// The FNV-1a hash of an empty list of tokens.
const HASH: u64 = 0xcbf2_9ce4_8422_2325;

fn with_token(hash: u64, token: u32) -> u64 {
    (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3)
}

/// Returns random tokens of the vocabulary.
fn tokens(llama: &Llama, count: usize, seed: u64) -> Vec<u32> {
    let vocabulary = u64::from(llama.config().vocab_size.unsigned_abs()).max(1);
    let mut state = seed;
    let draw = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((state >> 33) % vocabulary) as u32
    };
    (0..count).map(draw).collect()
}

fn fill(llama: &Llama, tokens: &[u32], cache: &mut Cache) -> Result<()> {
    for chunk in tokens.chunks(PREFILL_STEP) {
        let tokens = Array::from_slice(chunk, [1, chunk.len() as i32])?;
        let _ = with_row_order(RowOrder::Prompt, || llama.forward(&tokens, cache))?;
        eval(cache.arrays())?;
    }
    Ok(())
}

/// Starts to compute the most likely token after `tokens`, whose shape is `[time]`.
fn step(llama: &Llama, tokens: &Array, cache: &mut Cache) -> Result<Array> {
    let order = if tokens.size() == 1 { RowOrder::Tokens } else { RowOrder::Prompt };
    let tokens = tokens.expand_dims([0])?;
    let logits = with_row_order(order, || llama.forward_last(&tokens, cache))?;
    let next = logits.squeeze([1])?.argmax(-1)?;
    async_eval([&next])?;
    Ok(next)
}

/// Returns the median, and half the interquartile range.
fn median(mut samples: Vec<f64>) -> Option<(f64, f64)> {
    samples.sort_by(f64::total_cmp);
    let at = |fraction: f64| {
        let place = fraction * samples.len().checked_sub(1)? as f64;
        let (low, high) =
            (samples.get(place.floor() as usize)?, samples.get(place.ceil() as usize)?);
        Some(low + (high - low) * place.fract())
    };
    Some((at(0.5)?, (at(0.75)? - at(0.25)?) / 2.0))
}

fn report(
    args: &Args,
    llama: &Llama,
    trials: &[Figures],
    ranks: &[Traffic],
) -> Result<(), StdoutError> {
    let of =
        |figure: fn(&Figures) -> Option<f64>| median(trials.iter().filter_map(figure).collect());
    let (prompt, generation) = (of(|t| t.prompt_tps), of(|t| t.generation_tps));
    let peak = of(|t| Some(t.peak_memory as f64)).map_or(0, |(median, _)| median as u64);
    let weights = llama.nbytes() as u64;
    if args.json {
        let value = |figure: Option<(f64, f64)>| figure.map_or(Value::Null, |(m, _)| json!(m));
        let spread = |figure: Option<(f64, f64)>| figure.map_or(Value::Null, |(_, s)| json!(s));
        let object = json!({
            "prompt_tps": value(prompt),
            "generation_tps": value(generation),
            "peak_memory_bytes": peak,
            "weight_bytes": weights,
            "prompt_tps_spread": spread(prompt),
            "generation_tps_spread": spread(generation),
            "texts": args.texts,
            "prompt_tokens": args.prompt_tokens,
            "generation_tokens": args.generation_tokens,
            "context": args.context,
            "num_trials": args.num_trials,
            "parameters": llama.parameters(),
            "tokens_hash": trials.first().and_then(|first| Some(format!("{:016x}", first.tokens?))),
            "ranks": traffic::to_json(ranks),
        });
        return output::println(object);
    }
    let of_trials = format!("median of {} ± half the interquartile range", args.num_trials);
    output::println(format_args!("{:<14}{:>12}  tokens a second, {of_trials}", "", ""))?;
    for (name, tokens, figure) in
        [("prompt", args.prompt_tokens, prompt), ("generation", args.generation_tokens, generation)]
    {
        if let Some((median, spread)) = figure {
            output::println(format_args!(
                "{name:<14}{tokens:>5} tokens  {median:.1} ± {spread:.1}"
            ))?;
        }
    }
    output::println(format_args!("{:<14}{:>12}  {}", "peak memory", "", bytes(peak)))?;
    let parameters = llama.parameters() as f64 / 1e6;
    output::println(format_args!(
        "{:<14}{:>12}  {}, {parameters:.2} M parameters",
        "weights",
        "",
        bytes(weights)
    ))?;
    traffic::print(ranks, generation.map(|(median, _)| median))
}
