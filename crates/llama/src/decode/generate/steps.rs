//! The steps in which a generation starts the computation of a token.

use mlx_primitives::ops::{RowOrder, with_row_order};
use mlx_primitives::{Array, Result, async_eval};

use super::Generation;
use crate::decode::draw::Drawn;
use crate::decode::prompt::row;

impl Generation<'_> {
    /// Drops the last `count` tokens, which are not part of the result.
    pub(super) fn forget(&mut self, count: usize) {
        self.ready.clear();
        self.tokens.truncate(self.tokens.len().saturating_sub(count));
    }

    /// Whether the next token may start while MLX still computes the current one. If the current
    /// token turns out to be an end token, the cache must be able to remove a position.
    pub(super) fn runs_ahead(&self) -> bool {
        self.statistics.generated_tokens + 1 < self.max_tokens
            && self.draft.is_none()
            && self.draw.ignores_tokens()
            && !self.cache.forgets()
            && self.model.rotated_alike(self.tokens.len()) > 1
    }

    /// Starts computing the next token, from the tokens that are not in the cache yet.
    pub(super) fn start(&mut self) -> Result<()> {
        self.model.renew(&mut self.cache, &self.tokens, self.prefill_step)?;
        let known = (self.cache.len() as usize).min(self.tokens.len() - 1);
        let rest = row(&self.tokens[known..])?;
        let order = if self.unstarted() { RowOrder::Prompt } else { RowOrder::Tokens };
        self.next = Some(with_row_order(order, || self.start_after(&rest))?);
        Ok(())
    }

    /// Starts computing the token after `token`, whose value MLX is still computing.
    pub(super) fn start_ahead(&mut self, token: &Array) -> Result<()> {
        let token = token.reshape([1, 1])?;
        self.next = Some(with_row_order(RowOrder::Tokens, || self.start_after(&token))?);
        Ok(())
    }

    /// Starts computing the token after `rest`, uint32 `[1, time]`.
    fn start_after(&mut self, rest: &Array) -> Result<Drawn> {
        let logits = self.model.forward_last(rest, &mut self.cache)?;
        let drawn = self.draw.draw(&self.tokens, &logits.squeeze([1])?)?;
        async_eval(drawn.arrays())?;
        Ok(drawn)
    }
}
