//! A small Llama: every norm, rotary embedding and attention softmax is one of our primitives.
//!
//! Reads from the outside in: [`Checkpoint`] (files) holds a [`Tokenizer`] and a [`Llama`]
//! (weights and forward pass), [`Llama::generate`] drives them through a [`Cache`] with a [`Sampler`].
//!
//! ```
//! use mlx_primitives::llama::{Checkpoint, Options};
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

mod cache;
mod checkpoint;
mod config;
mod estimate;
mod generate;
mod model;
mod rope_frequencies;
mod rope_scaling;
mod sampling;
mod tokenizer;
mod weights;

pub use cache::{Cache, CacheKind, Heads, LayerCache, Seen, Stored};
pub use checkpoint::Checkpoint;
pub use config::Config;
pub use estimate::{Estimate, Quantization, estimate};
pub use generate::{FinishReason, Generation, Options, Statistics};
pub use model::Llama;
pub use rope_frequencies::RopeFrequencies;
pub use rope_scaling::RopeScaling;
pub use sampling::{Sampler, Sampling};
pub use tokenizer::{TextStream, Tokenizer};
pub use weights::Weights;
