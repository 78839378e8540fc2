use std::time::Duration;

use super::cache::CacheKind;
use super::penalties::Penalties;
use super::sampling::Sampling;

/// What to generate and when to stop.
#[derive(Clone, Debug)]
pub struct Options {
    /// At most this many tokens.
    pub max_tokens: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// What is done to the logits before.
    pub penalties: Penalties,
    /// Tokens that XTC never leaves out.
    pub xtc_spared: Vec<u32>,
    /// Tokens that end the text.
    pub eos: Vec<u32>,
    /// Strings that end the text and are no part of it; for
    /// [`Checkpoint::generate_text`](super::Checkpoint::generate_text), as only text has them.
    pub stop: Vec<String>,
    /// How keys and values are kept.
    pub cache: CacheKind,
    /// Prompt tokens run through the model at a time, at least 1.
    pub prefill_step: usize,
    /// Gives with each token its log probability, and those of this number of likeliest tokens. `None`,
    /// for neither, is cheaper.
    pub logprobs: Option<usize>,
}

impl Default for Options {
    /// No token at all, drawn greedily; the prompt in steps of 512.
    fn default() -> Self {
        Self {
            max_tokens: 0,
            sampling: Sampling::default(),
            penalties: Penalties::default(),
            xtc_spared: Vec::new(),
            eos: Vec::new(),
            stop: Vec::new(),
            cache: CacheKind::default(),
            prefill_step: 512,
            logprobs: None,
        }
    }
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// `max_tokens`, or the longest sequence the model was made for.
    Length,
    /// One of the options' strings.
    StopString,
}

impl FinishReason {
    /// `stop`, `length` or `stop_string`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::StopString => "stop_string",
        }
    }
}

/// A token that was drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Token {
    /// Its number.
    pub id: u32,
    /// The logarithm of its probability, after penalties and before anything is left out; if
    /// [`Options::logprobs`] asks.
    pub logprob: Option<f32>,
    /// The likeliest tokens with theirs, likeliest first.
    pub top_logprobs: Vec<(u32, f32)>,
    /// Whether a draft model had proposed it.
    pub from_draft: bool,
}

/// How fast a generation went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were in a cache before.
    pub cached_tokens: usize,
    /// Tokens generated, the end token not counted.
    pub generated_tokens: usize,
    /// Tokens that a draft model proposed.
    pub draft_tokens: usize,
    /// Those of them that the model drew too.
    pub accepted_tokens: usize,
    /// From the start to the first token.
    pub prompt_time: Duration,
    /// From the first token to the last.
    pub generation_time: Duration,
    /// The most memory that arrays took, in bytes.
    pub peak_memory: usize,
}

impl Statistics {
    /// Prompt tokens a second, those in the cache before not counted.
    pub fn prompt_tps(&self) -> f64 {
        rate(self.prompt_tokens.saturating_sub(self.cached_tokens), self.prompt_time)
    }

    /// Generated tokens a second, the first, which the prompt pays for, not counted.
    pub fn generation_tps(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.generation_time)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}
