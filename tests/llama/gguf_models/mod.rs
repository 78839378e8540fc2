//! Models in GGUF files: their tokenizers, end tokens, templates, entries and parts.

mod entries;
mod split;
mod vocabularies;
