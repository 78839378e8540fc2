use std::time::{Duration, Instant};

use crate::array::{Array, async_eval, eval};
use crate::error::{Error, Result};
use crate::memory;

use super::cache::{Cache, CacheKind};
use super::model::Llama;
use super::sampling::{Sampler, Sampling};

/// Prompt tokens run through the model at a time.
const PREFILL_STEP: usize = 512;

/// What to generate and when to stop.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// At most this many tokens.
    pub max_tokens: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Tokens that end the text.
    pub eos: Vec<u32>,
    /// How keys and values are kept.
    pub cache: CacheKind,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// `max_tokens`, or the longest sequence the model was made for.
    Length,
}

impl FinishReason {
    /// `stop` or `length`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// How fast a generation went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated, the end token not counted.
    pub generated_tokens: usize,
    /// From the start to the first token.
    pub prompt_time: Duration,
    /// From the first token to the last.
    pub generation_time: Duration,
    /// The most memory that arrays took, in bytes.
    pub peak_memory: usize,
}

impl Statistics {
    /// Prompt tokens a second.
    pub fn prompt_tps(&self) -> f64 {
        rate(self.prompt_tokens, self.prompt_time)
    }

    /// Generated tokens a second, the first, which the prompt pays for, not counted.
    pub fn generation_tps(&self) -> f64 {
        rate(self.generated_tokens.saturating_sub(1), self.generation_time)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

/// An iterator over the tokens that follow a prompt; drop it to stop early.
///
/// Ends before an end token, or with an error, after which it yields nothing more.
pub struct Generation<'a> {
    model: &'a Llama,
    cache: Cache,
    sampler: Sampler,
    eos: Vec<u32>,
    max_tokens: usize,
    /// The token being computed, `[1]`.
    next: Option<Array>,
    started: Instant,
    first: Option<Instant>,
    statistics: Statistics,
    finish: Option<FinishReason>,
}

impl Llama {
    /// Runs the prompt and yields the tokens that follow it.
    ///
    /// Errors: an empty prompt, one longer than `max_position_embeddings`, or tokens outside the
    /// vocabulary.
    pub fn generate(&self, prompt: &[u32], options: &Options) -> Result<Generation<'_>> {
        let limit = self.position_limit();
        if prompt.is_empty() || prompt.len() > limit {
            return Err(Error::argument(
                "generate",
                format_args!("a prompt of 1 to {limit} tokens, got {}", prompt.len()),
            ));
        }
        if let Some(token) = prompt.iter().find(|&&t| t >= self.config().vocab_size as u32) {
            return Err(Error::argument(
                "generate",
                format_args!("tokens below {}, got {token}", self.config().vocab_size),
            ));
        }
        let mut generation = Generation {
            model: self,
            cache: self.new_cache_of(options.cache)?,
            sampler: Sampler::new(options.sampling)?,
            eos: options.eos.clone(),
            max_tokens: options.max_tokens.min(limit + 1 - prompt.len()),
            next: None,
            started: Instant::now(),
            first: None,
            statistics: Statistics { prompt_tokens: prompt.len(), ..Statistics::default() },
            finish: None,
        };
        if generation.max_tokens > 0 {
            memory::reset_peak_memory();
            generation.prefill(prompt)?;
        }
        Ok(generation)
    }

    fn position_limit(&self) -> usize {
        self.config().max_position_embeddings.map_or(i32::MAX as usize - 1, |limit| limit as usize)
    }
}

impl Generation<'_> {
    /// Why the text ended; none while it goes on.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// Figures up to now.
    pub fn statistics(&self) -> Statistics {
        Statistics { peak_memory: memory::peak_memory(), ..self.statistics }
    }

    /// All but the last prompt token only fill the cache.
    fn prefill(&mut self, prompt: &[u32]) -> Result<()> {
        let (rest, last) = prompt.split_at(prompt.len() - 1);
        for chunk in rest.chunks(PREFILL_STEP) {
            let tokens = Array::from_slice(chunk, &[1, chunk.len() as i32])?;
            self.model.forward(&tokens, &mut self.cache)?;
            eval(self.cache.arrays())?;
        }
        self.step(&Array::from_slice(last, &[1])?)
    }

    /// Starts computing the token that follows `token`, `[1]`.
    fn step(&mut self, token: &Array) -> Result<()> {
        let logits = self.model.forward(&token.reshape(&[1, 1])?, &mut self.cache)?;
        let next = self.sampler.sample(&logits.squeeze(&[1])?)?;
        async_eval([&next])?;
        self.next = Some(next);
        Ok(())
    }

    fn advance(&mut self) -> Result<Option<u32>> {
        let Some(current) = self.next.take() else {
            self.finish.get_or_insert(FinishReason::Length);
            return Ok(None);
        };
        let token = current.item::<u32>()?;
        let now = Instant::now();
        let first = *self.first.get_or_insert(now);
        self.statistics.prompt_time = first - self.started;
        self.statistics.generation_time = now - first;
        if self.eos.contains(&token) {
            self.finish = Some(FinishReason::Stop);
            return Ok(None);
        }
        self.statistics.generated_tokens += 1;
        if self.statistics.generated_tokens < self.max_tokens {
            self.step(&current)?;
        }
        Ok(Some(token))
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<u32>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finish.is_some() {
            return None;
        }
        let token = self.advance();
        if token.is_err() {
            self.next = None;
            self.finish = Some(FinishReason::Length);
        }
        token.transpose()
    }
}
