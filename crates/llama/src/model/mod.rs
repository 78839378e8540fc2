//! The weights of a model and its forward pass.

mod adapted;
mod adapters;
mod assemble;
mod estimate;
mod fingerprint;
mod forward_texts;
mod layer;
mod linear;
mod llama;
mod matrix;
mod new_cache;
mod part;
mod random_weights;
mod texts;
mod trained;
mod update;

pub use adapters::Adapters;
pub use estimate::{Estimate, estimate};
pub(crate) use forward_texts::Step;
pub use llama::Llama;
pub(crate) use matrix::of_k_quants;
pub(crate) use trained::{LOGITS, Trained};
