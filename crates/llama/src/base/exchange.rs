//! The part of a model that this process holds, if several processes hold one model together.

use std::ops::{Deref, Range};
use std::sync::Arc;

use serde_json::Value;

use mlx_primitives::{Array, Dtype, Result};

use super::heads::Heads;

/// An axis of an activation that may be cut into a part for each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// The features of all query heads.
    Heads,
    /// The residual stream.
    Hidden,
    /// The features of the feed-forward layer.
    Inner,
    /// The tokens of the vocabulary.
    Vocab,
}

/// The named arrays of a saved cache, and the description of its layers.
pub type SavedCache = (Vec<(String, Array)>, Value);

/// The part of a model that this process holds, and its exchanges with the processes that hold the
/// rest. By default it holds the whole model and exchanges nothing.
/// [`Weights::held_by`](super::Weights::held_by) makes a model that holds only the part.
///
/// `mlx-primitives-ranks` has the implementation for ranks that MLX connects. Every process calls
/// the same functions of a model in the same order.
#[allow(unused_variables)]
pub trait Exchange: Send + Sync {
    /// The rows of the matrix `[outputs, ...]` at `path` that this process holds.
    fn rows(&self, path: &str, outputs: i32) -> Range<i32> {
        0..outputs
    }

    /// The rows of the matrix at `path` that this process holds and no earlier process holds.
    fn fresh_rows(&self, path: &str, outputs: i32) -> Range<i32> {
        0..outputs
    }

    /// The layers that this process holds; the model has `all` layers.
    fn layers(&self, all: i32) -> Range<i32> {
        0..all
    }

    /// The heads that this process holds; the whole model has the heads `whole`.
    fn heads(&self, whole: Heads) -> Heads {
        whole
    }

    /// Whether this process is the one that writes files and counts the parts that all hold.
    fn is_first(&self) -> bool {
        true
    }

    /// The hidden states of `tokens` before the first layer of this process, with `hidden`
    /// features. `embed` computes the hidden states before the model's first layer.
    ///
    /// # Errors
    ///
    /// Returns an error of `embed`, and if the process before this one does not respond.
    fn input(
        &self,
        tokens: &Array,
        hidden: i32,
        embed: &mut dyn FnMut() -> Result<Array>,
    ) -> Result<Array> {
        embed()
    }

    /// The hidden states after the last layer of the model, given `h`, the hidden states after the
    /// last layer of this process. `caches` are the arrays that the layers updated.
    ///
    /// # Errors
    ///
    /// Returns an error if another process does not respond.
    fn output(&self, h: Array, caches: &[&Array]) -> Result<Array> {
        Ok(h)
    }

    /// The rows of `tokens` in the embedding. `own` looks up the rows that this process holds.
    ///
    /// # Errors
    ///
    /// Returns an error of `own`, and if another process does not respond.
    fn embedding(
        &self,
        tokens: &Array,
        own: &mut dyn FnMut(&Array) -> Result<Array>,
    ) -> Result<Array> {
        own(tokens)
    }

    /// The part of `x`, `[..., hidden]`, that this process computes.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX cannot build the part.
    fn own_features(&self, x: &Array) -> Result<Array> {
        Ok(x.clone())
    }

    /// The array with all features of the last axis; `x` has the features of this process.
    ///
    /// # Errors
    ///
    /// Returns an error if another process does not respond.
    fn gather(&self, x: Array, axis: Axis) -> Result<Array> {
        Ok(x)
    }

    /// The numbers of query heads that belong to this process's key heads and that earlier and
    /// later processes have; `None` if this process has all of them.
    fn absent_queries(&self) -> Option<(i32, i32)> {
        None
    }

    /// Receives the type of the hidden states before the first layer of the model. `after` returns
    /// the type after the last layer of this process, given the type before its first layer.
    ///
    /// # Errors
    ///
    /// Returns an error of `after`, and if another process does not respond.
    fn learn_types(
        &self,
        first: Dtype,
        after: &mut dyn FnMut(Dtype) -> Result<Dtype>,
    ) -> Result<()> {
        Ok(())
    }

    /// The sum of the numbers `own` of all processes, modulo 2^64.
    ///
    /// # Errors
    ///
    /// Returns an error if another process does not respond.
    fn sum(&self, own: u64) -> Result<u64> {
        Ok(own)
    }

    /// Returns an error unless all processes have the same text, which `what` names.
    ///
    /// # Errors
    ///
    /// Returns an error if the texts differ, and an error of `text`.
    fn agree(&self, what: &str, text: &mut dyn FnMut() -> Result<String>) -> Result<()> {
        Ok(())
    }

    /// The cache of all layers and heads; `own` has the layers and heads of this process.
    ///
    /// # Errors
    ///
    /// Returns an error if another process does not respond.
    fn whole_cache(&self, own: SavedCache) -> Result<SavedCache> {
        Ok(own)
    }

    /// The keys or values of this process's heads, taken from `all`, `[1, n * heads, ...]`.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX cannot build them.
    fn own_heads(&self, all: &Array) -> Result<Array> {
        Ok(all.clone())
    }
}

/// A process that holds the whole model.
struct Alone;

impl Exchange for Alone {}

/// The exchanges of this process. By default it holds the whole model.
#[derive(Clone, Default)]
pub(crate) struct Share(Option<Arc<dyn Exchange>>);

impl Share {
    pub fn new(exchange: impl Exchange + 'static) -> Self {
        Self(Some(Arc::new(exchange)))
    }

    /// Whether this process holds the whole model.
    pub fn is_whole(&self) -> bool {
        self.0.is_none()
    }
}

impl Deref for Share {
    type Target = dyn Exchange;

    fn deref(&self) -> &Self::Target {
        self.0.as_deref().unwrap_or(&Alone)
    }
}
