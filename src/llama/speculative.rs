use crate::array::{Array, concatenate};
use crate::error::{Error, Result};

use super::cache::Cache;
use super::generate::{Generation, row, run};
use super::model::Llama;
use super::options::Token;

/// A smaller model that proposes tokens.
pub(super) struct Draft<'a> {
    model: &'a Llama,
    cache: Cache,
    count: usize,
}

/// The most tokens that may be proposed at a time: more are never worth their pass.
const MOST: usize = 64;

/// Tokens of a cached prompt run at a time.
const STEP: usize = 512;

impl<'a> Generation<'a> {
    /// Lets a smaller model of the same vocabulary propose `count` tokens at a time, all of which
    /// this model then judges in one pass. Every token is drawn by this model as it would be
    /// without the draft, from the same random numbers; a draft that guesses well only saves time.
    ///
    /// A pass over several tokens rounds in other places than one over each, so that tokens whose
    /// logits are equal but for rounding may come out otherwise.
    ///
    /// Errors: a count that is not within 1 to 64, a rotating cache, which cannot be taken back,
    /// a draft made for shorter sequences than prompt and `max_tokens`, or after the first token
    /// was asked for.
    ///
    /// ```
    /// use mlx_primitives::llama::{Checkpoint, Options, Quantization};
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
    pub fn with_draft(mut self, draft: &'a Llama, count: usize) -> Result<Self> {
        if self.cache.len() as usize > self.statistics.cached_tokens {
            return Err(Error::argument("speculative", "this before the first token is asked for"));
        }
        if !(1..=MOST).contains(&count) {
            return Err(Error::argument(
                "speculative",
                format_args!("1 to {MOST} draft tokens, got {count}"),
            ));
        }
        let needed = self.tokens.len().saturating_add(self.max_tokens).saturating_sub(1);
        if let Some(limit) = draft.config().max_position_embeddings
            && needed > limit as usize
        {
            return Err(Error::argument(
                "speculative",
                format_args!("a draft model for {needed} positions, got one for {limit}"),
            ));
        }
        let draft = Draft { model: draft, cache: draft.new_cache(), count };
        draft.check(&self.cache)?;
        self.draft = Some(draft);
        Ok(self)
    }

    /// One round: tokens proposed, judged, and those that stand added to what is ready.
    pub(super) fn speculate(&mut self) -> Result<()> {
        let Some(draft) = &mut self.draft else { return Ok(()) };
        let left = self.max_tokens - self.statistics.generated_tokens;
        let proposals = draft.propose(&self.tokens, draft.count.min(left.saturating_sub(1)))?;
        let last = self.tokens.last().copied().unwrap_or_default();
        let mut inputs = vec![Array::from_slice(&[last], &[1])?];
        inputs.extend(proposals);
        let inputs = concatenate(&inputs.iter().collect::<Vec<_>>(), 0)?;
        let logits = self.model.forward(&inputs.expand_dims(&[0])?, &mut self.cache)?;

        let best = match self.draw.is_argmax() {
            true => Some(logits.argmax(-1, false)?.to_vec::<u32>()?),
            false => None,
        };
        let inputs = inputs.to_vec::<u32>()?;
        let proposed = inputs.get(1..).unwrap_or_default();
        let mut accepted = 0;
        for (i, at) in (0..inputs.len()).zip(0..) {
            let mut token = match best.as_ref().and_then(|best| best.get(i)) {
                Some(&id) => Token { id, ..Token::default() },
                None => {
                    let logits = logits.slice_axis(1, at..at + 1)?.squeeze(&[1])?;
                    self.draw.draw(&self.tokens, &logits)?.read()?
                }
            };
            token.from_draft = proposed.get(i) == Some(&token.id);
            let stands = token.from_draft;
            self.tokens.push(token.id);
            self.ready.push_back(token);
            if !stands {
                break;
            }
            accepted += 1;
        }
        self.statistics.draft_tokens += proposed.len();
        self.statistics.accepted_tokens += accepted;
        // The last token drawn has not been run.
        let wrong = proposed.len() - accepted;
        self.cache.trim(i32::try_from(wrong).unwrap_or(i32::MAX))?;
        if let Some(draft) = &mut self.draft {
            draft.keep(self.tokens.len() - 1)?;
        }
        Ok(())
    }
}

impl Draft<'_> {
    /// An error for a cache whose last positions cannot be taken back.
    pub fn check(&self, cache: &Cache) -> Result<()> {
        match cache.forgets() {
            false => Ok(()),
            true => Err(Error::argument(
                "speculative",
                "a cache whose last positions can be taken back, got a rotating one",
            )),
        }
    }

    /// Runs those of `tokens[..end]` that it has not run.
    pub fn catch_up(&mut self, tokens: &[u32], end: usize, step: usize) -> Result<()> {
        run(self.model, &mut self.cache, tokens, end, step)
    }

    /// The `count` likeliest tokens, `[1]` each, one after the other; lazy.
    fn propose(&mut self, tokens: &[u32], count: usize) -> Result<Vec<Array>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        // A prompt whose beginning was cached is new to the draft.
        let behind = tokens.len() - self.cache.len() as usize;
        if behind > MOST {
            self.catch_up(tokens, tokens.len() - 1, STEP)?;
        }
        let rest = tokens.get(self.cache.len() as usize..).unwrap_or_default();
        let mut input = row(rest)?;
        let mut proposals = Vec::with_capacity(count);
        for _ in 0..count {
            let logits = self.model.forward(&input, &mut self.cache)?;
            let best = logits.slice_axis(1, -1..)?.argmax(-1, false)?; // [1, 1]
            proposals.push(best.squeeze(&[0])?);
            input = best;
        }
        Ok(proposals)
    }

    /// Takes back what is beyond `len` positions.
    fn keep(&mut self, len: usize) -> Result<()> {
        let extra = (self.cache.len() as usize).saturating_sub(len);
        self.cache.trim(i32::try_from(extra).unwrap_or(i32::MAX))
    }
}
