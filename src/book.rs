//! The Rust code of README.md and of the book's pages: `cargo test --doc` compiles and runs it.
//!
//! `docs/write-your-own-primitive.md` is missing here: `scripts/follow_guide.sh` compiles it as a
//! crate.

#[doc = include_str!("../README.md")]
mod readme {}

#[doc = include_str!("../docs/getting-started.md")]
mod getting_started {}

#[doc = include_str!("../docs/arrays.md")]
mod arrays {}

#[doc = include_str!("../docs/llama.md")]
mod llama {}

#[doc = include_str!("../docs/serve.md")]
mod serve {}

#[doc = include_str!("../docs/embeddings.md")]
mod embeddings {}

#[doc = include_str!("../docs/fine-tuning.md")]
mod fine_tuning {}

#[doc = include_str!("../docs/several-machines.md")]
mod several_machines {}
