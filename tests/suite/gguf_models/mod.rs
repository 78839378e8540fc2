//! Models in GGUF files: their tokenizers, end tokens, templates, entries and parts, in the library
//! and in every command.

mod commands;
mod entries;
mod split;
mod vocabularies;
