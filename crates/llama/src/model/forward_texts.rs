//! A forward pass over several sequences at once. The code calls a sequence of tokens a text.

use mlx_primitives::{Array, Result};

use super::llama::Llama;
use super::texts::{Texts, number};
use crate::cache::Cache;

/// The next tokens of a sequence.
pub(crate) struct Step<'a> {
    pub tokens: &'a [u32],
    pub cache: &'a mut Cache,
    /// Whether to compute the logits after the last token.
    pub logits: bool,
}

impl Llama {
    /// Appends tokens to several sequences. One product with each matrix serves all sequences, and
    /// each sequence attends to its own cache. Returns the logits `[wanted, vocab]` of the
    /// sequences whose step requests logits, or `None` if no step requests them.
    pub(crate) fn forward_texts(&self, steps: &mut [Step]) -> Result<Option<Array>> {
        let (mut tokens, mut last) = (Vec::new(), Vec::new());
        for step in steps.iter() {
            tokens.extend_from_slice(step.tokens);
            if step.logits {
                last.push(number(tokens.len()) - 1);
            }
        }
        let count = number(tokens.len());
        let texts = steps.iter_mut().map(|Step { tokens, cache, .. }| (tokens.len(), &mut **cache));
        let mut texts = Texts::apart(texts);
        let h = self.decoded(&Array::from_slice(&tokens, [1, count])?, &mut texts)?;
        let wanted = number(last.len());
        let h = match wanted {
            0 => return Ok(None),
            wanted if wanted == count => h,
            _ => h.take(&Array::from_slice(&last, [wanted])?, 1)?,
        };
        self.last_logits(&h)?.squeeze([0]).map(Some)
    }
}
