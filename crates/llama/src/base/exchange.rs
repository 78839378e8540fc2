//! How several processes share one model: the part that this process holds, and its exchanges with
//! the other processes.

use std::ops::{Deref, Range};
use std::sync::Arc;

use serde_json::Value;

use mlx_primitives::{Array, Dtype, Result};

use super::heads::Heads;

/// An axis of an activation that can be divided among processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// The features of all query heads together.
    Heads,
    /// The features of the residual stream.
    Hidden,
    /// The inner features of the feed-forward layer.
    Inner,
    /// The tokens of the vocabulary.
    Vocab,
}

/// The named arrays of a saved cache, and the JSON description of its layers.
pub type SavedCache = (Vec<(String, Array)>, Value);

/// Says which part of a model this process holds, and exchanges data with the processes that hold
/// the other parts. The default methods describe a process that holds the complete model and
/// exchanges nothing. [`Weights::held_by`](super::Weights::held_by) loads only the part of this
/// process.
///
/// The crate `mlx-primitives-ranks` implements the trait for ranks that MLX connects. Every process
/// must call the same functions of a model in the same order.
#[allow(unused_variables)]
pub trait Exchange: Send + Sync {
    /// The rows of the matrix `[outputs, ...]` at `path` that this process holds.
    fn rows(&self, path: &str, outputs: i32) -> Range<i32> {
        0..outputs
    }

    /// The rows of the matrix at `path` that this process holds and that no process before it
    /// holds. So the processes count each row once.
    fn fresh_rows(&self, path: &str, outputs: i32) -> Range<i32> {
        0..outputs
    }

    /// The layers that this process holds. The model has `all` layers.
    fn layers(&self, all: i32) -> Range<i32> {
        0..all
    }

    /// The heads that this process holds. The complete model has the heads `whole`.
    fn heads(&self, whole: Heads) -> Heads {
        whole
    }

    /// Whether this process writes files, and counts the parts that every process holds.
    fn is_first(&self) -> bool {
        true
    }

    /// Returns the hidden states of `tokens` before the first layer of this process, with `hidden`
    /// features. `embed` computes the hidden states before the first layer of the model.
    ///
    /// # Errors
    ///
    /// Returns an error of `embed`, and if the process with the previous layers does not respond.
    fn input(
        &self,
        tokens: &Array,
        hidden: i32,
        embed: &mut dyn FnMut() -> Result<Array>,
    ) -> Result<Array> {
        embed()
    }

    /// Returns the hidden states after the last layer of the model. `h` are the hidden states after
    /// the last layer of this process. `caches` are the arrays that the layers updated.
    ///
    /// # Errors
    ///
    /// Returns an error if another process does not respond.
    fn output(&self, h: Array, caches: &[&Array]) -> Result<Array> {
        Ok(h)
    }

    /// Looks up the rows of `tokens` in the embedding. `own` looks up the rows that this process
    /// holds.
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

    /// Returns the slice of `x`, `[..., hidden]`, whose features this process computes.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX cannot build the slice.
    fn own_features(&self, x: &Array) -> Result<Array> {
        Ok(x.clone())
    }

    /// Gathers the features of the last axis from all processes. `x` has the features of this
    /// process.
    ///
    /// # Errors
    ///
    /// Returns an error if another process does not respond.
    fn gather(&self, x: Array, axis: Axis) -> Result<Array> {
        Ok(x)
    }

    /// Counts the query heads that belong to this process's key heads but that other processes
    /// hold: first in the processes before this one, then in the processes after it. Returns
    /// `None` if this process holds all query heads of its key heads.
    fn absent_queries(&self) -> Option<(i32, i32)> {
        None
    }

    /// Tells the processes the types of hidden states. `first` is the type before the first layer
    /// of the model. `after` computes the type after this process's last layer from the type before
    /// its first layer.
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

    /// Adds up the numbers `own` of all processes, modulo 2^64.
    ///
    /// # Errors
    ///
    /// Returns an error if another process does not respond.
    fn sum(&self, own: u64) -> Result<u64> {
        Ok(own)
    }

    /// Checks that all processes pass the same string. `what` names it in the error.
    ///
    /// # Errors
    ///
    /// Returns an error if the strings differ, and an error of `text`.
    fn agree(&self, what: &str, text: &mut dyn FnMut() -> Result<String>) -> Result<()> {
        Ok(())
    }

    /// Joins the caches of all processes. `own` has the layers and heads of this process.
    ///
    /// # Errors
    ///
    /// Returns an error if another process does not respond.
    fn whole_cache(&self, own: SavedCache) -> Result<SavedCache> {
        Ok(own)
    }

    /// Takes the keys or values of this process's heads from `all`, `[1, n * heads, ...]`. There
    /// are `heads` key heads in the model; n is 1, or 2 if the values follow the keys.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX cannot build them.
    fn own_heads(&self, all: &Array) -> Result<Array> {
        Ok(all.clone())
    }
}

/// A single process, which holds the complete model.
struct Alone;

impl Exchange for Alone {}

/// The exchanges of this process, or `None` if the process holds the complete model.
#[derive(Clone, Default)]
pub(crate) struct Share(Option<Arc<dyn Exchange>>);

impl Share {
    pub fn new(exchange: impl Exchange + 'static) -> Self {
        Self(Some(Arc::new(exchange)))
    }

    /// Whether this process holds the complete model.
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
