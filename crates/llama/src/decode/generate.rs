mod steps;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Instant;

use mlx_primitives::{Array, Error, Result, memory};

use super::draw::{Draw, Drawn};
use super::options::{FinishReason, Options, Statistics, Token};
use super::prompt_cache::PromptCache;
use super::speculative::Draft;
use crate::cache::Cache;
use crate::model::Llama;

/// An iterator over the tokens that follow a prompt; drop it to stop early.
///
/// The model runs only when the first token is requested, or when [`prefill`](Self::prefill) is
/// called. The iterator ends before an end token, or after an error.
///
/// ```
/// use mlx_primitives_llama::{Checkpoint, Options};
///
/// let checkpoint = Checkpoint::demo()?;
/// let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
/// let options = Options { max_tokens: 4, logprobs: Some(2), ..Options::default() };
/// let mut generation = checkpoint.generate(&prompt, &options)?;
/// while let Some(token) = generation.next_token()? {
///     assert_eq!(token.top_logprobs[0], (token.id, token.logprob.unwrap()));
/// }
/// assert_eq!(generation.finish_reason().map(|reason| reason.name()), Some("length"));
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub struct Generation<'a> {
    model: &'a Llama,
    cache: Cache,
    /// The prompt and the tokens drawn after it. The cache contains a prefix of them.
    tokens: Vec<u32>,
    draw: Draw<'a>,
    eos: Vec<u32>,
    max_tokens: usize,
    prefill_step: usize,
    /// The token that MLX is computing.
    next: Option<Drawn>,
    draft: Option<Draft<'a>>,
    /// Tokens at the end of `tokens` that one pass drew but that the iterator has not yielded yet.
    ready: VecDeque<Token>,
    started: Instant,
    first: Option<Instant>,
    statistics: Statistics,
    finish: Option<FinishReason>,
    failed: bool,
}

impl Llama {
    /// Prepares to run the prompt, and returns an iterator over the tokens that follow it.
    ///
    /// # Errors
    ///
    /// Returns an error for an empty prompt, a prompt longer than `max_position_embeddings` unless
    /// the cache rotates, tokens outside the vocabulary, or options out of their range.
    pub fn generate(&self, prompt: &[u32], options: &Options) -> Result<Generation<'_>> {
        let max_tokens = self.check_prompt(prompt, options)?;
        memory::reset_peak_memory();
        let mut cache =
            self.new_cache_for(options.cache, prompt.len().saturating_add(max_tokens))?;
        cache.set_text_len(prompt.len());
        Ok(Generation {
            model: self,
            cache,
            tokens: prompt.to_vec(),
            draw: Draw::new(options, self.vocab())?,
            eos: options.eos.clone(),
            max_tokens,
            prefill_step: options.prefill_step,
            next: None,
            draft: None,
            ready: VecDeque::new(),
            started: Instant::now(),
            first: None,
            statistics: Statistics { prompt_tokens: prompt.len(), ..Statistics::default() },
            finish: None,
            failed: false,
        })
    }
}

impl<'a> Generation<'a> {
    /// Starts from a cache. Positions of the cache that match the start of the prompt are not
    /// computed again. The cache keeps its kind, and the option `cache` is ignored. If the length
    /// of the sequence makes the cache unusable, the generation starts from an empty cache.
    ///
    /// # Errors
    ///
    /// Returns an error for a cache of another model, or if the generation has started. With a
    /// [draft](Self::with_draft), a rotating cache is an error too.
    pub fn with_cache(mut self, prompt_cache: PromptCache) -> Result<Self> {
        self.check_unstarted()?;
        let positions = self.tokens.len().saturating_add(self.max_tokens);
        let (cache, common) = prompt_cache.for_prompt(self.model, &self.tokens, positions)?;
        self.cache = cache.unwrap_or_else(|| self.cache.clone());
        self.cache.set_text_len(self.tokens.len());
        self.statistics.cached_tokens = common;
        if let Some(draft) = &self.draft {
            draft.check(&self.cache)?;
        }
        Ok(self)
    }

    /// Turns on speculative decoding: a smaller model with the same vocabulary (the draft) proposes
    /// `count` tokens at a time, and this model evaluates them in one pass. This model draws every
    /// token as it would without the draft, from the same random numbers. Proposals change only the
    /// speed.
    ///
    /// On a CPU, a pass over several tokens gives the same bits as passes over single tokens; see
    /// [`RowOrder`](mlx_primitives::ops::RowOrder). On NVIDIA GPUs this is not verified.
    ///
    /// # Errors
    ///
    /// Returns an error for a count that is not within 1 to 64, or if the generation has started.
    /// It is also an error if the cache rotates, because its last positions cannot be removed. The
    /// draft must support the positions that prompt and `max_tokens` need. If it has a sliding
    /// window, the window must be at least 64 positions longer than this number of positions.
    ///
    /// ```
    /// use mlx_primitives_llama::{Checkpoint, Options, Quantization};
    ///
    /// let checkpoint = Checkpoint::demo()?;
    /// let draft = checkpoint.llama.quantized(Quantization::affine(32, 4))?;
    /// let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
    /// let options = Options { max_tokens: 12, ..Options::default() };
    /// let plain: Vec<u32> = checkpoint.generate(&prompt, &options)?.collect::<Result<_, _>>()?;
    /// let mut generation = checkpoint.generate(&prompt, &options)?.with_draft(&draft, 3)?;
    /// assert_eq!(generation.by_ref().collect::<Result<Vec<_>, _>>()?, plain);
    /// assert!(generation.statistics().accepted_tokens > 0);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn with_draft(self, draft: &'a Llama, count: usize) -> Result<Self> {
        self.with_proposals(|positions| Draft::new(draft, count, positions))
    }

    /// Proposes up to `count` tokens at a time without a draft model. It searches the prompt and
    /// the generated tokens for the last few tokens, and proposes the tokens that followed them at
    /// that place. This saves time if the text repeats itself, for example if it edits or quotes
    /// its prompt. In all other respects, the method works like [`with_draft`](Self::with_draft).
    ///
    /// # Errors
    ///
    /// Returns an error for a count that is not within 1 to 64, for a rotating cache, or if the
    /// generation has started.
    ///
    /// ```
    /// use mlx_primitives_llama::{Checkpoint, Options};
    ///
    /// let checkpoint = Checkpoint::demo()?;
    /// let options = Options { max_tokens: 40, ..Options::default() };
    /// let start = checkpoint.tokenizer.encode("Once upon a time")?;
    /// let story: Vec<u32> = checkpoint.generate(&start, &options)?.collect::<Result<_, _>>()?;
    /// let prompt = [&start[..], &story, &start].concat();
    /// let plain: Vec<u32> = checkpoint.generate(&prompt, &options)?.collect::<Result<_, _>>()?;
    /// let mut generation = checkpoint.generate(&prompt, &options)?.with_prompt_lookup(3)?;
    /// assert_eq!(generation.by_ref().collect::<Result<Vec<_>, _>>()?, plain);
    /// assert!(generation.statistics().draft_tokens > 0);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn with_prompt_lookup(self, count: usize) -> Result<Self> {
        self.with_proposals(|_| Draft::of_text(count))
    }

    /// Sets a source of proposals. `draft` receives the greatest number of positions and makes the
    /// source.
    fn with_proposals(mut self, draft: impl FnOnce(usize) -> Result<Draft<'a>>) -> Result<Self> {
        if self.cache.len() as usize > self.statistics.cached_tokens {
            return Err(started());
        }
        let positions = self.tokens.len().saturating_add(self.max_tokens).saturating_sub(1);
        let draft = draft(positions)?;
        draft.check(&self.cache)?;
        self.draft = Some(draft);
        Ok(self)
    }

    /// Calls `processor` to change the logits before each token is drawn, for example to ban or
    /// prefer tokens, or to enforce a grammar.
    ///
    /// The processor receives the prompt with the tokens drawn so far, and the logits `[1, vocab]`
    /// of the next token, to which the options' penalties were applied. It returns logits of the
    /// same shape. [`Options::sampling`] and [`Options::logprobs`] apply to the returned logits. A
    /// logit of minus infinity bans a token. The processor is called once for each token, in order,
    /// and may run one token ahead of the iterator. Several processors run in the order in which
    /// they were added.
    ///
    /// With a [draft](Self::with_draft), the processor changes the logits of every token that this
    /// model draws. These may include tokens after an end token. The processor does not change the
    /// logits of the draft, so this model accepts fewer proposals.
    ///
    /// If the processor returns an error or logits of another shape, the generation ends with an
    /// error.
    ///
    /// # Errors
    ///
    /// Returns an error if the first token was requested already.
    ///
    /// ```
    /// use mlx_primitives::Array;
    /// use mlx_primitives_llama::{Checkpoint, Options, Penalties};
    ///
    /// let checkpoint = Checkpoint::demo()?;
    /// let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
    /// let options = Options { max_tokens: 8, ..Options::default() };
    /// let greedy: Vec<u32> = checkpoint.generate(&prompt, &options)?.collect::<Result<_, _>>()?;
    /// // Bans the token that was drawn first.
    /// let logit_bias = vec![(greedy[0], f32::NEG_INFINITY)];
    /// let banned = Penalties { logit_bias, ..Default::default() };
    /// let generation = checkpoint
    ///     .generate(&prompt, &options)?
    ///     .with_logits_processor(move |tokens, logits| banned.apply(tokens, logits))?;
    /// let tokens: Vec<u32> = generation.collect::<Result<_, _>>()?;
    /// assert!(!tokens.contains(&greedy[0]));
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn with_logits_processor(
        mut self,
        processor: impl FnMut(&[u32], &Array) -> Result<Array> + 'a,
    ) -> Result<Self> {
        if self.next.is_some() || !self.ready.is_empty() || self.statistics.generated_tokens > 0 {
            return Err(started());
        }
        self.draw.process(processor);
        Ok(self)
    }

    fn check_unstarted(&self) -> Result<()> {
        if self.cache.is_empty() { Ok(()) } else { Err(started()) }
    }

    /// The reason why the generation ended, or `None` until it ends.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// The statistics of the generation so far.
    pub fn statistics(&self) -> Statistics {
        Statistics { peak_memory: memory::peak_memory(), ..self.statistics }
    }

    /// The prompt and the tokens that the iterator has yielded.
    pub fn tokens(&self) -> &[u32] {
        let count = self.tokens.len() - self.ready.len();
        self.tokens.get(..count).unwrap_or_default()
    }

    /// Ends the generation and returns its cache together with the tokens in it. A later generation
    /// can continue from the cache.
    ///
    /// # Errors
    ///
    /// Returns an error if the cache cannot drop positions of tokens that were not yielded. This is
    /// the case for a full rotating cache, for example.
    pub fn into_prompt_cache(mut self) -> Result<PromptCache> {
        // Tokens that were drawn but not yielded are not part of the result.
        let seen = self.tokens().len();
        let extra = (self.cache.len() as usize).saturating_sub(seen);
        self.cache.trim(i32::try_from(extra).unwrap_or(i32::MAX))?;
        self.tokens.truncate(self.cache.len() as usize);
        PromptCache::new(self.model, self.cache, self.tokens)
    }

    /// Fills the cache with all tokens of the prompt except the last one, in steps of
    /// [`Options::prefill_step`]. Without this call, the request for the first token runs the
    /// prompt, and the last step includes the prompt's last token. That is faster than a separate
    /// step for the last token.
    ///
    /// `progress` is called after each step with the number of tokens that have run and their
    /// total. If it returns `Break`, the remaining tokens run later.
    ///
    /// # Errors
    ///
    /// Returns an error if a step of the model fails.
    pub fn prefill(
        &mut self,
        mut progress: impl FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let total = self.tokens.len() - 1;
        while self.unstarted() && (self.cache.len() as usize) < total {
            let done = self.cache.len() as usize;
            let end = (done.saturating_add(self.prefill_step)).min(total);
            self.model.prefill(&self.tokens, end, self.prefill_step, &mut self.cache)?;
            if let Some(draft) = &mut self.draft {
                draft.catch_up(&self.tokens, end, self.prefill_step)?;
            }
            if progress(end, total).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn unstarted(&self) -> bool {
        self.statistics.generated_tokens == 0 && self.next.is_none()
    }

    /// Runs the prompt like [`prefill`](Self::prefill), except for the last step.
    fn prefill_before_last_step(&mut self) -> Result<()> {
        let rest = self.tokens.len().saturating_sub(self.cache.len() as usize);
        if self.unstarted() && rest > self.prefill_step {
            let end = self.tokens.len() - 1 - (rest - 1) % self.prefill_step;
            self.model.prefill(&self.tokens, end, self.prefill_step, &mut self.cache)?;
        }
        Ok(())
    }

    /// Returns the next token with the log probabilities of [`Options::logprobs`], or `None` at the
    /// end. The iterator yields only the token's id.
    ///
    /// # Errors
    ///
    /// Returns an error if a step of the model or the draw fails. After an error there are no more
    /// tokens.
    pub fn next_token(&mut self) -> Result<Option<Token>> {
        if self.finish.is_some() || self.failed {
            return Ok(None);
        }
        let token = self.advance();
        if token.is_err() {
            self.next = None;
            self.failed = true;
        }
        token
    }

    fn advance(&mut self) -> Result<Option<Token>> {
        if self.ready.is_empty() {
            if self.statistics.generated_tokens >= self.max_tokens {
                self.finish = Some(FinishReason::Length);
                return Ok(None);
            }
            self.prefill_before_last_step()?;
            let first = self.unstarted();
            match &mut self.draft {
                Some(draft) if !first => {
                    self.model.renew(&mut self.cache, &self.tokens, self.prefill_step)?;
                    let left = self.max_tokens - self.statistics.generated_tokens;
                    let left = left.min(self.model.rotated_alike(self.tokens.len()));
                    let (cache, draw) = (&mut self.cache, &mut self.draw);
                    let round = draft.round(self.model, cache, draw, &self.tokens, left)?;
                    self.statistics.draft_tokens += round.proposed;
                    self.statistics.accepted_tokens += round.accepted;
                    self.tokens.extend(round.tokens.iter().map(|token| token.id));
                    self.ready.extend(round.tokens);
                }
                _ => {
                    if self.next.is_none() {
                        self.start()?;
                    }
                    let Some(drawn) = self.next.take() else { return Ok(None) };
                    if self.runs_ahead() {
                        self.start_ahead(&drawn.token)?;
                    }
                    let token = drawn.read()?;
                    self.tokens.push(token.id);
                    self.ready.push_back(token);
                }
            }
            let now = Instant::now();
            let first = *self.first.get_or_insert(now);
            self.statistics.prompt_time = first - self.started;
            self.statistics.generation_time = now - first;
        }
        let Some(token) = self.ready.pop_front() else { return Ok(None) };
        if self.eos.contains(&token.id) {
            self.finish = Some(FinishReason::Stop);
            self.forget(1 + self.ready.len());
            return Ok(None);
        }
        self.statistics.generated_tokens += 1;
        let more = self.statistics.generated_tokens < self.max_tokens;
        if more && self.draft.is_none() && self.next.is_none() {
            self.start()?; // computes the next token while the caller uses this one
        }
        Ok(Some(token))
    }
}

fn started() -> Error {
    Error::argument("generate", "this before the first token is asked for")
}

impl Iterator for Generation<'_> {
    type Item = Result<u32>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_token().map(|token| token.map(|token| token.id)).transpose()
    }
}
