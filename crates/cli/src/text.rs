//! The parts that `generate` and `chat` share: their options, and the code that loads their models
//! and templates.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use mlx_primitives_llama::{
    CacheKind, ChatOptions, ChatTemplate, Checkpoint, Options, Penalties, PromptCache, Sampling,
    TextGeneration,
};
use serde_json::Value;

use crate::cache_args::CacheArgs;
use crate::interrupt;
use crate::joined;
use crate::kernels::Kernels;
use crate::loading::{self, Hold};
use crate::model::{Source, check_kv};
use crate::output;
use crate::ranks::{self, Ranks};
pub use crate::statistics::{report, speeds};
use crate::wired::{self, Resident};

#[derive(clap::Args)]
pub struct TextArgs {
    #[command(flatten)]
    source: Source,
    /// The system message for the chat template.
    #[arg(long, value_name = "TEXT")]
    pub system_prompt: Option<String>,
    /// Stop after this many tokens; -1 for no limit.
    #[arg(long, short, default_value = "256", value_name = "N", value_parser = most_tokens, allow_negative_numbers = true)]
    max_tokens: usize,
    /// End the text before this string; may be given several times.
    #[arg(long, value_name = "TEXT", help_heading = "When to stop")]
    stop: Vec<String>,
    /// More tokens that end the text, by number or as spelled in the vocabulary.
    #[arg(long, value_name = "TOKEN", num_args = 1.., help_heading = "When to stop")]
    extra_eos_token: Vec<String>,
    /// Do not use the model's chat template: the prompt is the text to continue.
    #[arg(long)]
    ignore_chat_template: bool,
    /// Further variables of the chat template, as a JSON object.
    #[arg(long, value_name = "JSON")]
    chat_template_config: Option<String>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    cache: CacheArgs,
    /// A smaller model of the same vocabulary that proposes tokens: the same text, sooner.
    #[arg(long, value_name = "MODEL", help_heading = "Speed and memory")]
    draft_model: Option<PathBuf>,
    /// Propose tokens that followed the same ones earlier: the same text, sooner if it repeats.
    #[arg(long, conflicts_with = "draft_model", help_heading = "Speed and memory")]
    prompt_lookup: bool,
    /// Tokens that are proposed at a time.
    #[arg(long, default_value_t = 3, value_name = "N", help_heading = "Speed and memory")]
    num_draft_tokens: usize,
    #[command(flatten)]
    ranks: Ranks,
    #[command(flatten)]
    kernels: Kernels,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Sampling")]
struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token.
    #[arg(long, default_value_t = 0.0, value_name = "T")]
    temp: f32,
    /// Draw from the likeliest tokens that together have this probability.
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    top_p: f32,
    /// Draw from tokens at least this fraction as likely as the likeliest.
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    min_p: f32,
    /// Keep at least this many tokens, whatever --min-p says.
    #[arg(long, default_value_t = 1, value_name = "N")]
    min_tokens_to_keep: u32,
    /// Draw from this many likeliest tokens; 0 for all.
    #[arg(long, default_value_t = 0, value_name = "K")]
    top_k: u32,
    /// Probability of removing the likeliest tokens (XTC).
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    xtc_probability: f32,
    /// Probability above which XTC removes all tokens except the least likely.
    #[arg(long, default_value_t = 0.1, value_name = "P")]
    xtc_threshold: f32,
    /// Divide positive logits of recent tokens by this, multiply negative ones; 1 is off.
    #[arg(long, default_value_t = 0.0, value_name = "X", hide_default_value = true)]
    repetition_penalty: f32,
    /// Tokens that --repetition-penalty looks back.
    #[arg(long, default_value_t = 20, value_name = "N")]
    repetition_context_size: usize,
    /// Subtract this from the logits of recent tokens.
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Tokens that --presence-penalty looks back.
    #[arg(long, default_value_t = 20, value_name = "N")]
    presence_context_size: usize,
    /// Subtract this from the logits of recent tokens, for each occurrence.
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Tokens that --frequency-penalty looks back.
    #[arg(long, default_value_t = 20, value_name = "N")]
    frequency_context_size: usize,
    /// Add to a token's logit, `1234:-5`; may be given several times.
    #[arg(long, value_name = "ID:BIAS", value_parser = parse_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers; without one, each run draws other tokens.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once(':');
    let parsed =
        parts.and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?)));
    parsed.ok_or_else(|| format!("expected a token's number and a bias, 1234:-5, got {text}"))
}

impl TextArgs {
    pub fn models(&mut self) -> Vec<&mut PathBuf> {
        let mut models = self.source.models();
        models.extend(&mut self.draft_model);
        models
    }
}

/// The loaded models, and the options for generating text with them.
pub struct Session {
    pub checkpoint: Checkpoint,
    pub draft: Option<Checkpoint>,
    /// The chat template. `None` if the model has no template, or if an option turns it off.
    pub template: Option<ChatTemplate>,
    pub chat: ChatOptions,
    pub options: Options,
    draft_tokens: usize,
    prompt_lookup: bool,
    /// Ctrl-C sets this flag, which ends the generation.
    pub stop: Arc<AtomicBool>,
    /// Keeps in memory the models, and the keys and values of the last generation.
    resident: Resident,
}

impl TextArgs {
    /// Sets the number of threads and then joins the other ranks. The order matters, because the
    /// number cannot change after ranks have exchanged arrays.
    pub fn start(&self) -> Result<()> {
        self.kernels.set()?;
        self.ranks.join()
    }
}

impl Session {
    pub fn load(args: &TextArgs) -> Result<Self> {
        let checkpoint = args.source.load()?;
        let activations = args.kernels.activations(&checkpoint.llama)?;
        let checkpoint = checkpoint.with_activations(activations);
        let template = match &args.source.model {
            Some(directory) if !args.ignore_chat_template => ChatTemplate::load(directory)?,
            _ => None,
        };
        ensure!(
            template.is_some() || args.system_prompt.is_none(),
            "expected a model with a chat template for --system-prompt"
        );
        let draft = args.draft_model.as_deref();
        let whole: &Hold = &|config, weights| args.source.hold(None, config, weights);
        let draft = draft.map(|path| loading::load(path, whole)).transpose()?;
        let draft = draft.map(|draft| draft.with_activations(activations));
        if let Some(draft) = &draft {
            let sizes = [&checkpoint, draft].map(|c| c.llama.config().vocab_size);
            let common = 0..sizes[0].min(sizes[1]).unsigned_abs();
            let differs = |id: &u32| checkpoint.tokenizer.token(*id) != draft.tokenizer.token(*id);
            if let Some(id) = common.into_iter().find(differs) {
                bail!("expected a draft model of the same vocabulary, got another token {id}");
            }
        }
        let mut chat = ChatOptions::default();
        if let Some(text) = &args.chat_template_config {
            let variables: Value =
                serde_json::from_str(text).context("reading --chat-template-config")?;
            match variables {
                Value::Object(variables) => chat.variables = variables,
                other => bail!("expected an object for --chat-template-config, got {other}"),
            }
        }
        // A template may read the variable `enable_thinking`. As in mlx-lm, its default is true if
        // the vocabulary contains tokens that begin and end thoughts.
        let has = |token: &str| checkpoint.tokenizer.token_id(token).is_some();
        let thinks = THOUGHTS.iter().any(|[start, end]| has(start) && has(end));
        chat.variables.entry("enable_thinking").or_insert(Value::Bool(thinks));
        let options = options(args, &checkpoint)?;
        check_kv(options.cache, &checkpoint.llama)?;
        let stop = Arc::new(AtomicBool::new(false));
        let draft_tokens = args.num_draft_tokens;
        let models = [Some(&checkpoint), draft.as_ref()].into_iter().flatten();
        let weights = models.map(|model| model.llama.nbytes()).sum();
        let resident = Resident::new(weights);
        Ok(Self {
            checkpoint,
            draft,
            template,
            chat,
            options,
            draft_tokens,
            prompt_lookup: args.prompt_lookup,
            stop,
            resident,
        })
    }

    /// Returns the tokens of a conversation or, without a template, of the text to continue.
    pub fn encode(&self, messages: &[Value]) -> Result<Vec<u32>> {
        let tokenizer = &self.checkpoint.tokenizer;
        let texts = messages.iter().filter_map(|message| message["content"].as_str());
        let text = match &self.template {
            Some(template) => template.render(messages, &self.chat)?,
            None => texts.collect(),
        };
        // Encoding takes long, so reject a text that is too long before encoding it. A text has at
        // most as many tokens as bytes, so short texts need no check.
        let limit = self.longest();
        if text.len() > limit {
            let tokens = tokenizer.fewest_tokens(&text)?;
            ensure!(tokens <= limit, TooLong { tokens, least: true, limit });
        }
        Ok(match &self.template {
            Some(_) => tokenizer.encode_verbatim(&text)?,
            None => tokenizer.encode(&text)?,
        })
    }

    /// Returns the largest allowed number of tokens in a prompt.
    pub fn longest(&self) -> usize {
        match self.checkpoint.llama.config().max_position_embeddings {
            // A rotating cache drops positions, so a prompt may be longer than the model's limit.
            Some(limit) if !matches!(self.options.cache, CacheKind::Rotating { .. }) => {
                limit.unsigned_abs() as usize
            }
            _ => usize::MAX,
        }
    }

    /// Starts a generation, from the cache if there is one, and runs the prompt. If the prompt is
    /// long, shows a progress bar on a terminal.
    pub fn start(&self, prompt: &[u32], cache: Option<PromptCache>) -> Result<TextGeneration<'_>> {
        let positions = prompt.len().saturating_add(self.options.max_tokens);
        let models = [Some(&self.checkpoint), self.draft.as_ref()].into_iter().flatten();
        let bytes = models.map(|model| wired::cache(&model.llama, self.options.cache, positions));
        self.resident.with_caches(bytes.fold(0, usize::saturating_add));
        let mut generation = self.checkpoint.generate_text(prompt, &self.options)?;
        if let Some(cache) = cache {
            generation = generation.with_cache(cache)?;
        }
        if let Some(draft) = &self.draft {
            generation = generation.with_draft(&draft.llama, self.draft_tokens)?;
        }
        if self.prompt_lookup {
            generation = generation.with_prompt_lookup(self.draft_tokens)?;
        }
        if self.options.max_tokens == 0 {
            return Ok(generation);
        }
        // A prompt that takes a single step is finished before a person could read a progress bar.
        let long =
            prompt.len() > self.options.prefill_step && joined::is_first() && !output::is_quiet();
        let bar = if long { ProgressBar::new(prompt.len() as u64) } else { ProgressBar::hidden() };
        bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} prompt tokens")?);
        let _ = generation.prefill(|done, _| {
            bar.set_position(done as u64);
            if self.interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        bar.finish_and_clear();
        Ok(generation)
    }

    pub fn interrupted(&self) -> bool {
        let interrupted = self.stop.load(Ordering::Relaxed);
        if interrupted {
            interrupt::seen();
        }
        interrupted
    }
}

/// The prompt is too long for the model.
#[derive(Debug, thiserror::Error)]
#[error("expected a prompt of 1 to {limit} tokens, got {}{tokens}", if *least { "at least " } else { "" })]
pub struct TooLong {
    pub tokens: usize,
    /// Whether `tokens` is only a lower bound.
    pub least: bool,
    pub limit: usize,
}

/// Parses the maximum number of tokens; -1 means no limit.
fn most_tokens(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(usize::MAX),
        text => {
            text.parse().map_err(|_| "expected a number of tokens, or -1 for no limit".to_owned())
        }
    }
}

/// Returns the given seed. Without one, rank 0 draws a random seed for all ranks, unless sampling
/// is greedy and needs none.
fn seed(args: &SamplingArgs) -> Result<u64> {
    match args.seed {
        Some(seed) => Ok(seed),
        None if args.temp == 0.0 => Ok(0),
        None => {
            let drawn = ranks::from_first(|| Ok(RandomState::new().hash_one(0).to_string()))?;
            drawn.parse().context("reading the seed of rank 0")
        }
    }
}

/// The pairs of tokens that begin and end a model's thoughts. mlx-lm has the same list.
const THOUGHTS: [[&str; 2]; 4] = [
    ["<think>", "</think>"],
    ["<longcat_think>", "</longcat_think>"],
    ["<|think:start|>", "<|think:end|>"],
    ["<|channel>", "<channel|>"],
];

fn options(args: &TextArgs, checkpoint: &Checkpoint) -> Result<Options> {
    let TextArgs { sampling: s, cache: c, .. } = args;
    let tokenizer = &checkpoint.tokenizer;
    let mut eos = BTreeSet::new();
    for token in &args.extra_eos_token {
        // As in mlx-lm, a number is the index of a token, even if the vocabulary has a token with
        // these digits as text.
        let known = |id: &u32| tokenizer.token(*id).is_some();
        let id = match token.parse() {
            Ok(id) => Some(id).filter(known),
            Err(_) => tokenizer.token_id(token),
        };
        eos.insert(
            id.with_context(|| format!("expected a token of the vocabulary, got {token:?}"))?,
        );
    }
    let mut xtc_spared = tokenizer.encode_verbatim("\n")?;
    xtc_spared.extend(checkpoint.eos.iter().chain(&eos));
    Ok(Options {
        max_tokens: args.max_tokens,
        sampling: Sampling {
            temp: s.temp,
            top_p: s.top_p,
            min_p: s.min_p,
            min_tokens_to_keep: s.min_tokens_to_keep,
            xtc_probability: s.xtc_probability,
            xtc_threshold: s.xtc_threshold,
            top_k: s.top_k,
            seed: seed(s)?,
        },
        penalties: Penalties {
            logit_bias: s.logit_bias.clone(),
            repetition: s.repetition_penalty,
            repetition_context_size: s.repetition_context_size,
            presence: s.presence_penalty,
            presence_context_size: s.presence_context_size,
            frequency: s.frequency_penalty,
            frequency_context_size: s.frequency_context_size,
        },
        xtc_spared,
        eos: eos.into_iter().collect(),
        stop: args.stop.clone(),
        cache: c.kind(),
        prefill_step: c.prefill_step_size,
        logprobs: None,
    })
}
