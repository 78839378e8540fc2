//! The exchanges of a projection with the processes that hold the rest of the model.

use mlx_primitives::{Array, Result};

use crate::base::{Axis, Share, Weights};

/// The axes of a projection along which the processes of a model exchange features.
#[derive(Clone, Default)]
pub(super) struct Part {
    share: Share,
    /// The axis of the inputs, if each process has only a part of them.
    input: Option<Axis>,
    /// The axis of the outputs, if all processes need all of them.
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

    /// Whether other processes hold a part of the model, and this projection exchanges something
    /// with them.
    pub fn exchanges(&self) -> bool {
        !self.share.is_whole() && self.output.is_some()
    }

    /// The whole result of a projection that is distributed over several processes. `x` is the part
    /// of the input in this process, `residual` is whole, and `product` multiplies by the matrix of
    /// this process.
    pub fn exchanged(
        &self,
        x: &Array,
        residual: Option<&Array>,
        product: impl FnOnce(&Array, Option<&Array>) -> Result<Array>,
    ) -> Result<Array> {
        let x = match self.input {
            Some(axis) => self.share.gather(x.clone(), axis)?,
            None => x.clone(),
        };
        let residual = residual.map(|residual| self.share.own_features(residual)).transpose()?;
        let y = product(&x, residual.as_ref())?;
        self.output.map_or(Ok(y.clone()), |axis| self.share.gather(y, axis))
    }

    pub fn share(&self) -> &Share {
        &self.share
    }
}
