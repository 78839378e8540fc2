//! Llama models and similar architectures on mlx-primitives: loading, text generation and training.
//! On a GPU, a layer with packed weights decodes a token in six dispatches, or in seven if
//! attention splits a long cache.
//!
//! A [`Checkpoint`] is loaded from files. It contains a [`Tokenizer`] and a [`Llama`], which has
//! the weights and the forward pass. [`Llama::generate`] runs the model with a [`Cache`] and draws
//! tokens with a [`Sampler`](decode::Sampler).
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

pub mod base;
mod cache;
pub mod decode;
mod files;
pub mod model;
pub mod text;
pub mod train;

#[doc(inline)]
pub use base::{Config, Quantization};
pub use cache::{Cache, CacheKind};
#[doc(inline)]
pub use decode::{Generation, Options, Penalties, PromptCache, Sampling, TextGeneration, Token};
pub use files::{Checkpoint, ModelFiles, hub};
#[doc(inline)]
pub use model::{Adapters, Llama, estimate};
#[doc(inline)]
pub use text::{ChatOptions, ChatTemplate, Tokenizer, message};

/// Types of the key/value cache that are public only for this crate's tests.
#[doc(hidden)]
pub mod internals {
    pub use super::base::Heads;
    pub use super::cache::{AttentionInputs, AttentionMask, KvTensor, LayerCache};
}
