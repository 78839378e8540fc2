//! A pass over several texts at once.

use mlx_primitives::{Array, Result};

use super::llama::Llama;
use super::texts::{Texts, number};
use crate::cache::Cache;

/// The next tokens of a text.
pub(crate) struct Step<'a> {
    pub tokens: &'a [u32],
    pub cache: &'a mut Cache,
    /// Whether to compute the logits after the last token.
    pub logits: bool,
}

impl Llama {
    /// Appends tokens to several texts. One product with each matrix serves all texts, and each
    /// text attends to its cache. Returns the logits `[wanted, vocab]` of the texts that want
    /// logits, or `None` if no text does.
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
