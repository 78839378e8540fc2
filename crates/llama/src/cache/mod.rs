//! The key/value cache: for each layer, the keys and values of the positions so far.

mod attention_inputs;
mod edit;
mod kind;
mod kv_buffer;
mod layer;
mod layers;
mod quantized;
mod rotating;
mod saved;

pub(crate) use attention_inputs::join_heads;
pub use attention_inputs::{AttentionInputs, AttentionMask, KvTensor};
pub use kind::CacheKind;
pub(crate) use kind::STEP;
pub use layer::LayerCache;
pub use layers::Cache;
pub(crate) use saved::Expected;
