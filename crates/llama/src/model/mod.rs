//! The weights of a model and its forward pass.

mod adapted;
mod adapters;
mod attention;
mod estimate;
mod fingerprint;
mod layer;
mod linear;
mod llama;
mod matrix;
mod mlp;
mod new_cache;
mod qkv_projection;
mod random_weights;
mod unfused;

pub use adapters::Adapters;
pub use estimate::{Estimate, estimate};
pub(crate) use linear::Fusion;
pub use llama::Llama;
pub use unfused::UnfusedCache;
