//! The communication of a projection whose matrix is distributed over several processes.

use mlx_primitives::{Array, Result};

use crate::base::{Axis, Share, Weights};

/// The axes of a projection along which the processes of a model gather features from each other.
#[derive(Clone, Default)]
pub(super) struct Part {
    share: Share,
    /// The axis of the inputs, if each process has only a part of the inputs.
    input: Option<Axis>,
    /// The axis of the outputs, if all processes need all outputs.
    output: Option<Axis>,
}

impl Part {
    /// Returns the axes for the projection at `path`.
    pub fn of(path: &str, weights: &Weights) -> Self {
        let (input, output) = match path.rsplit('.').next() {
            Some("o_proj") => (Some(Axis::Heads), Some(Axis::Hidden)),
            Some("down_proj") => (Some(Axis::Inner), Some(Axis::Hidden)),
            Some("embed_tokens" | "lm_head") => (None, Some(Axis::Vocab)),
            _ => (None, None),
        };
        Self { share: weights.share().clone(), input, output }
    }

    /// Whether the model is distributed over several processes and this projection communicates
    /// with the other processes.
    pub fn exchanges(&self) -> bool {
        !self.share.is_whole() && self.output.is_some()
    }

    /// Computes the complete result of a projection that is distributed over several processes. `x`
    /// is this process's part of the input, `residual` is complete, and `product` multiplies by the
    /// matrix of this process.
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
