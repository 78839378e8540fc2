//! Where the forward pass meets the processes that hold the rest of the model: the only file of the
//! model that names the exchange.

use mlx_primitives::{Array, Result};

use super::linear::{Linear, Norm};
use super::llama::Llama;
use crate::base::{Axis, Exchange, Share, Weights};
use crate::cache::Cache;

/// What a projection exchanges with the processes that hold the rest of the model.
#[derive(Clone, Default)]
pub(super) struct Part {
    share: Share,
    /// The axis of the inputs, of which each process has a part.
    input: Option<Axis>,
    /// The axis of the outputs that all processes need.
    output: Option<Axis>,
}

impl Part {
    /// The exchanges of the projection at `path`.
    pub fn of(path: &str, weights: &Weights) -> Self {
        let (input, output) = match path.rsplit('.').next() {
            Some("o_proj") => (Some(Axis::Heads), Some(Axis::Hidden)),
            Some("down_proj") => (Some(Axis::Inner), Some(Axis::Hidden)),
            Some("embed_tokens" | "lm_head") => (None, Some(Axis::Vocab)),
            _ => (None, None),
        };
        Self { share: weights.share().clone(), input, output }
    }

    /// Whether other processes hold a part of the model, and this projection exchanges something with
    /// them.
    pub fn exchanges(&self) -> bool {
        !self.share.is_whole() && self.output.is_some()
    }
}

impl Linear {
    /// [`forward`](Self::forward) of a projection of which other processes hold the rest. `x` is the
    /// part of the input that this process has, and `residual` and the result are whole.
    pub(super) fn forward_of_part(
        &self,
        x: &Array,
        norm: Option<&Norm>,
        residual: Option<&Array>,
    ) -> Result<Array> {
        let Part { share, input, output } = &self.part;
        let own = Self { part: Part::default(), ..self.clone() };
        let x = match input {
            Some(axis) => share.gather(x.clone(), *axis)?,
            None => x.clone(),
        };
        let residual = residual.map(|residual| share.own_features(residual)).transpose()?;
        let y = own.forward(&x, norm, residual.as_ref())?;
        output.map_or(Ok(y.clone()), |axis| share.gather(y, axis))
    }
}

impl Llama {
    /// The part of the model that this process holds, and its exchanges with the others.
    pub fn exchange(&self) -> &dyn Exchange {
        &**self.share()
    }

    pub(crate) fn share(&self) -> &Share {
        &self.embed_tokens.part.share
    }

    /// [`decoded`](Self::decoded) in a process that holds a part of the model.
    pub(super) fn decoded_of_part(&self, tokens: &Array, cache: &mut Cache) -> Result<Array> {
        let (exchange, hidden) = (self.exchange(), self.config().hidden_size);
        let mut embed = || {
            let rows = exchange.embedding(tokens, &mut |ids| self.embedding_rows(ids))?;
            self.scaled(rows)
        };
        let h = exchange.input(tokens, hidden, &mut embed)?;
        let h = self.through_layers(h, cache)?;
        exchange.output(h, &cache.arrays().collect::<Vec<_>>())
    }
}
