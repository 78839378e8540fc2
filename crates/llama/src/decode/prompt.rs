//! Checks prompts and runs them through the model.

use mlx_primitives::ops::{RowOrder, with_row_order};
use mlx_primitives::{Array, Error, Result, eval};

use super::options::Options;
use crate::base::RopeFrequencies;
use crate::cache::{Cache, CacheKind};
use crate::model::Llama;

/// The greatest number of positions that fit in a cache's `i32` counters.
const LONGEST: usize = i32::MAX as usize - 1;

impl Llama {
    /// Checks the prompt and returns the number of tokens that may be generated. Prompt and
    /// generated tokens have at most `max_position_embeddings` positions, or any number if a
    /// rotating cache drops positions.
    pub(crate) fn check_prompt(&self, prompt: &[u32], options: &Options) -> Result<usize> {
        let limit = match options.cache {
            CacheKind::Rotating { .. } => LONGEST,
            _ => self.longest(),
        };
        self.check_up_to(limit, "generate", "a prompt", prompt)?;
        if options.prefill_step == 0 {
            let expected = "a prefill step of at least 1 token, got 0";
            return Err(Error::argument("generate", expected));
        }
        Ok(options.max_tokens.min(limit + 1 - prompt.len()))
    }

    /// The greatest number of positions that the model supports.
    pub(crate) fn longest(&self) -> usize {
        self.config().max_position_embeddings.map_or(LONGEST, |limit| limit.unsigned_abs() as usize)
    }

    /// Returns an error if there are no tokens, more tokens than the model supports, or tokens
    /// outside the vocabulary. `text` names the tokens in the error.
    pub(crate) fn check_tokens(&self, op: &str, text: &str, tokens: &[u32]) -> Result<()> {
        self.check_up_to(self.longest(), op, text, tokens)
    }

    fn check_up_to(&self, limit: usize, op: &str, text: &str, tokens: &[u32]) -> Result<()> {
        let refuse = |expected: std::fmt::Arguments| Err(Error::argument(op, expected));
        if tokens.is_empty() || tokens.len() > limit {
            return refuse(format_args!("{text} of 1 to {limit} tokens, got {}", tokens.len()));
        }
        if let Some(token) = tokens.iter().find(|&&t| t as usize >= self.vocab()) {
            return refuse(format_args!("tokens below {}, got {token}", self.vocab()));
        }
        Ok(())
    }

    pub(crate) fn vocab(&self) -> usize {
        self.config().vocab_size.unsigned_abs() as usize
    }

    /// Returns how many tokens can be drawn after the first `seen` tokens before the frequencies
    /// change for all positions.
    pub(crate) fn rotated_alike(&self, seen: usize) -> usize {
        let longest = self.rope().and_then(RopeFrequencies::longest_short);
        match longest.map(|longest| longest.unsigned_abs() as usize) {
            Some(longest) if seen <= longest => longest + 1 - seen,
            _ => usize::MAX,
        }
    }

    /// Computes the cache again, for all tokens except the last, if the sequence has grown beyond
    /// the length at which the frequencies change for all positions.
    pub(crate) fn renew(&self, cache: &mut Cache, tokens: &[u32], step: usize) -> Result<()> {
        let (before, now) = (cache.text_len(), tokens.len());
        let longest = self.rope().and_then(RopeFrequencies::longest_short);
        let outgrown = |longest: i32| before <= longest && now > longest.unsigned_abs() as usize;
        if before == 0 || !longest.is_some_and(outgrown) {
            return Ok(());
        }
        *cache = cache.emptied()?;
        cache.set_text_len(now);
        self.prefill(tokens, now - 1, step, cache)
    }

    /// Whether keys that were rotated for a sequence of `before` positions are valid for a sequence
    /// of `now` positions.
    pub(crate) fn keeps_keys(&self, before: i32, now: usize) -> bool {
        let now = i32::try_from(now).unwrap_or(i32::MAX);
        self.rope().is_none_or(|rope| rope.keeps_keys(before, now))
    }

    /// Runs the tokens of `tokens[..end]` that are not in the cache, `step` tokens at a time.
    pub(crate) fn prefill(
        &self,
        tokens: &[u32],
        end: usize,
        step: usize,
        cache: &mut Cache,
    ) -> Result<()> {
        let rest = tokens.get(cache.len() as usize..end).unwrap_or_default();
        for chunk in rest.chunks(step.max(1)) {
            let chunk = row(chunk)?;
            let _ = with_row_order(RowOrder::Prompt, || self.forward(&chunk, cache))?;
            eval(cache.arrays())?;
        }
        Ok(())
    }
}

/// Converts the tokens of one sequence to an array `[1, time]`.
pub(crate) fn row(tokens: &[u32]) -> Result<Array> {
    Array::from_slice(tokens, [1, i32::try_from(tokens.len()).unwrap_or(i32::MAX)])
}
