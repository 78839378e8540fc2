//! Model configurations and architectures, rotary embeddings, tensors by name, and the division of
//! a model among processes. All other modules use this module.

mod activation;
mod config;
mod config_json;
mod config_keys;
mod exchange;
mod heads;
mod model_type;
mod rope_frequencies;
mod rope_scaling;
mod weights;

pub(crate) use activation::Activation;
pub(crate) use config::TokenIds;
pub use config::{Config, Quantization};
pub(crate) use config_json::{cut, parse_object, short};
pub(crate) use exchange::Share;
pub use exchange::{Axis, Exchange, SavedCache};
pub use heads::Heads;
pub use model_type::ModelType;
pub use rope_frequencies::RopeFrequencies;
pub use rope_scaling::RopeScaling;
pub use weights::{Progress, Weights};
pub(crate) use weights::{WeightSource, layer_of};
