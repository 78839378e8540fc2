use std::time::Duration;

use super::penalties::Penalties;
use super::sampling::Sampling;
use crate::cache::CacheKind;

/// Options of a generation: how to draw tokens and when to stop.
#[derive(Clone, Debug)]
pub struct Options {
    /// The greatest number of tokens to generate.
    pub max_tokens: usize,
    /// The way in which tokens are drawn.
    pub sampling: Sampling,
    /// Changes to the logits before a token is drawn.
    pub penalties: Penalties,
    /// Tokens that XTC ("exclude top choices" sampling) never removes.
    pub xtc_spared: Vec<u32>,
    /// Tokens that end the generation.
    pub eos: Vec<u32>,
    /// Strings that end the generation and are not part of the text. They may contain special
    /// tokens, such as `<|im_end|>`, even though the text does not. Only
    /// [`Checkpoint::generate_text`](crate::Checkpoint::generate_text) uses them, because the other
    /// functions do not decode tokens to text.
    pub stop: Vec<String>,
    /// The kind of the key/value cache.
    pub cache: CacheKind,
    /// The number of prompt tokens that run through the model at a time, at least 1.
    pub prefill_step: usize,
    /// The number of most likely tokens whose log probabilities are returned, besides the log
    /// probability of the drawn token. `None` returns no log probabilities, which is cheaper.
    pub logprobs: Option<usize>,
}

impl Default for Options {
    /// At most 256 tokens (as in the command-line program), greedy sampling, and steps of 512
    /// prompt tokens.
    fn default() -> Self {
        Self {
            max_tokens: 256,
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

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model drew an end token.
    Stop,
    /// The generation reached `max_tokens`, or the greatest length that the model supports.
    Length,
    /// The text contained one of the stop strings.
    StopString,
}

impl FinishReason {
    /// The name of the reason: `stop`, `length` or `stop_string`.
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
    /// The id of the token in the vocabulary.
    pub id: u32,
    /// The natural logarithm of the token's probability, after penalties and logits processors, and
    /// before sampling removes tokens. It is `None` unless [`Options::logprobs`] is set.
    pub logprob: Option<f32>,
    /// The most likely tokens with their log probabilities, the most likely first.
    pub top_logprobs: Vec<(u32, f32)>,
    /// Whether speculative decoding proposed the token, from a draft model or from the text.
    pub from_draft: bool,
}

/// The counts, times and memory of a generation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// The number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// The number of prompt tokens that the cache already contained.
    pub cached_tokens: usize,
    /// The number of generated tokens, without the end token.
    pub generated_tokens: usize,
    /// The number of tokens that speculative decoding proposed, from a draft model or from the
    /// text.
    pub draft_tokens: usize,
    /// The number of proposed tokens that the model also drew.
    pub accepted_tokens: usize,
    /// The time from the start of the generation to the first token.
    pub prompt_time: Duration,
    /// The time from the first token to the last one.
    pub generation_time: Duration,
    /// The peak memory that MLX used for arrays, in bytes.
    pub peak_memory: usize,
}

impl Statistics {
    /// Prompt tokens per second. Tokens that the cache already had do not count.
    pub fn prompt_tps(&self) -> f64 {
        rate(self.prompt_tokens.saturating_sub(self.cached_tokens), self.prompt_time)
    }

    /// Generated tokens per second. The first token does not count, because its time is prompt
    /// time.
    pub fn generation_tps(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.generation_time)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}
