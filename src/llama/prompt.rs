//! Prompts: what is refused, and how they are run.

use crate::array::{Array, eval};
use crate::error::{Error, Result};

use super::cache::Cache;
use super::linear::Fusion;
use super::model::Llama;
use super::options::Options;

impl Llama {
    /// Checks the prompt and returns the length of the longest sequence.
    pub(super) fn check_prompt(&self, prompt: &[u32], options: &Options) -> Result<usize> {
        let limit = self.check_tokens("generate", "a prompt", prompt)?;
        if options.prefill_step == 0 {
            let expected = "a prefill step of at least 1 token, got 0";
            return Err(Error::argument("generate", expected));
        }
        Ok(limit)
    }

    /// The length of the longest sequence, or an error for a text that is empty, longer than that, or
    /// has tokens outside the vocabulary.
    pub(super) fn check_tokens(&self, op: &str, text: &str, tokens: &[u32]) -> Result<usize> {
        let limit = self
            .config()
            .max_position_embeddings
            .map_or(i32::MAX as usize - 1, |limit| limit as usize);
        let refuse = |expected: std::fmt::Arguments| Err(Error::argument(op, expected));
        if tokens.is_empty() || tokens.len() > limit {
            return refuse(format_args!("{text} of 1 to {limit} tokens, got {}", tokens.len()));
        }
        if let Some(token) = tokens.iter().find(|&&t| t as usize >= self.vocab()) {
            return refuse(format_args!("tokens below {}, got {token}", self.vocab()));
        }
        Ok(limit)
    }

    pub(super) fn vocab(&self) -> usize {
        self.config().vocab_size.unsigned_abs() as usize
    }

    /// Runs the tokens of `tokens[..end]` that the cache does not have, `step` at a time.
    pub(super) fn prefill(
        &self,
        tokens: &[u32],
        end: usize,
        step: usize,
        cache: &mut Cache,
    ) -> Result<()> {
        let rest = tokens.get(cache.len() as usize..end).unwrap_or_default();
        for chunk in rest.chunks(step.max(1)) {
            let _ = self.forward(&row(chunk)?, cache)?;
            eval(cache.arrays())?;
        }
        Ok(())
    }

    /// The logits `[batch, 1, vocab]` of the token after the last of `tokens`, integers
    /// `[batch, time]`: the last ones of [`forward`](Self::forward), without computing the others.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`forward`](Self::forward).
    ///
    /// ```
    /// use mlx_primitives::{Array, llama::Checkpoint};
    ///
    /// let llama = Checkpoint::demo()?.llama;
    /// let mut cache = llama.new_cache();
    /// let tokens = Array::from_slice(&[423u32, 424, 7], &[1, 3])?;
    /// assert_eq!(llama.forward_last(&tokens, &mut cache)?.shape(), [1, 1, 512]);
    /// assert_eq!(cache.len(), 3);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn forward_last(&self, tokens: &Array, cache: &mut Cache) -> Result<Array> {
        let mut h = self.decoded(tokens, cache)?;
        if h.dim(1)? > 1 {
            h = h.slice_axis(1, -1..)?;
        }
        self.logits(&h, Fusion::norm(&self.norm))
    }
}

/// The tokens of one text as an array `[1, time]`.
pub(super) fn row(tokens: &[u32]) -> Result<Array> {
    Array::from_slice(tokens, [1, i32::try_from(tokens.len()).unwrap_or(i32::MAX)])
}
