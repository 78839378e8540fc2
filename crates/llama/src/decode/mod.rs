//! Prompts, sampling and generation of tokens, and the scores and embedding vectors of texts.

mod batch;
mod draw;
mod embedding;
mod engine;
mod generate;
mod options;
mod penalties;
mod prompt;
mod prompt_cache;
mod sampling;
mod scheduler;
mod score;
mod speculative;
mod text_generation;

pub use batch::BatchGeneration;
pub use embedding::{Embedding, Pooling};
pub use engine::{Engine, EngineOptions, Generated};
pub use generate::Generation;
pub use options::{FinishReason, Options, Statistics, Token};
pub use penalties::Penalties;
pub use prompt_cache::PromptCache;
pub use sampling::{Sampler, Sampling};
pub use score::Score;
pub use text_generation::{Piece, TextGeneration, Tokens};
