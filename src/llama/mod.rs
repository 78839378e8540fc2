//! A Llama on our primitives: seven dispatches a layer for a decoded token of packed weights.
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

mod adapter_files;
mod adapters;
mod cache;
mod checkpoint;
mod config;
mod estimate;
mod generate;
mod linear;
mod model;
mod model_files;
mod random_weights;
mod rope_frequencies;
mod rope_scaling;
mod sampling;
mod save;
mod score;
mod tokenizer;
mod unfused;
mod weights;

pub use adapters::Adapters;
pub use cache::{Cache, CacheKind, Heads, LayerCache, Seen, Stored, Visible};
pub use checkpoint::Checkpoint;
pub use config::{Config, Quantization};
pub use estimate::{Estimate, estimate};
pub use generate::{FinishReason, Generation, Options, Statistics};
pub use model::Llama;
pub use model_files::ModelFiles;
pub use rope_frequencies::RopeFrequencies;
pub use rope_scaling::RopeScaling;
pub use sampling::{Sampler, Sampling};
pub use score::Score;
pub use tokenizer::{TextStream, Tokenizer};
pub use unfused::UnfusedCache;
pub use weights::Weights;
