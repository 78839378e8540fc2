//! Llama models and their relatives on our primitives, from files to text. With packed weights, a
//! layer takes six dispatches to decode a token, or seven where attention splits a long cache.
//!
//! A [`Checkpoint`] (files) holds a [`Tokenizer`] and a [`Llama`] (weights and forward pass).
//! [`Llama::generate`] runs the model with a [`Cache`] and draws tokens with a [`Sampler`].
//!
//! ```
//! use mlx_primitives_llama::{Checkpoint, Options};
//!
//! let checkpoint = Checkpoint::demo()?;
//! let options = Options { max_tokens: 8, ..Options::default() };
//! let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
//! let mut text = checkpoint.tokenizer.stream();
//! let mut story = String::new();
//! for token in checkpoint.generate(&prompt, &options)? {
//!     story.push_str(&text.push(token?)?);
//! }
//! assert!(!story.is_empty());
//! # Ok::<(), mlx_primitives::Error>(())
//! ```
#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![deny(unsafe_op_in_unsafe_fn)]

mod activation;
mod adapted;
mod adapter_files;
mod adapters;
mod attention;
mod batch;
mod byte_level;
mod cache;
mod chat_template;
mod checkpoint;
mod config;
mod config_json;
mod config_keys;
mod cut_patterns;
mod draw;
mod embedding;
mod estimate;
mod exchange;
mod fingerprint;
mod generate;
mod gguf;
pub mod hub;
mod jinja;
mod layer;
mod linear;
mod load;
mod matrix;
mod mlp;
mod model;
mod model_files;
mod model_path;
mod model_type;
mod new_cache;
mod options;
mod peft_adapters;
mod penalties;
mod prompt;
mod prompt_cache;
mod qkv_projection;
mod random_weights;
mod recorded;
mod rope_frequencies;
mod rope_scaling;
mod sampling;
mod save;
mod score;
mod special_tokens;
mod speculative;
mod stop;
mod text_generation;
mod text_stream;
mod tokenizer;
mod tokenizer_cuts;
mod tokenizer_parts;
mod unfused;
mod weights;

pub use adapters::Adapters;
pub use batch::BatchGeneration;
pub use cache::{Cache, CacheKind, Heads};
pub use chat_template::{ChatOptions, ChatTemplate, message};
pub use checkpoint::Checkpoint;
pub use config::{Config, Quantization};
pub use embedding::{Embedding, Pooling};
pub use estimate::{Estimate, estimate};
pub use exchange::{Axis, Exchange, SavedCache, Share, ShareOf};
pub use generate::Generation;
pub use model::Llama;
pub use model_files::ModelFiles;
pub use model_type::ModelType;
pub use options::{FinishReason, Options, Statistics, Token};
pub use penalties::Penalties;
pub use prompt_cache::PromptCache;
pub use rope_frequencies::RopeFrequencies;
pub use rope_scaling::RopeScaling;
pub use sampling::{Sampler, Sampling};
pub use score::Score;
pub use text_generation::{Piece, TextGeneration};
pub use text_stream::TextStream;
pub use tokenizer::Tokenizer;
pub use unfused::UnfusedCache;
pub use weights::{Progress, Weights};

/// The parts of a cache, for the crate's tests.
#[doc(hidden)]
pub mod internals {
    pub use super::cache::{AttentionInputs, AttentionMask, Heads, KvTensor, LayerCache};
}
