//! Models in GGUF files: their tokenizers, end tokens, chat templates, metadata entries and parts.

mod entries;
mod split;
mod vocabularies;
