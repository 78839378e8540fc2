//! Loads and saves models, tokenizers, chat templates and adapters, and downloads models.

mod adapter_files;
mod chat_template_files;
mod checkpoint;
mod gguf;
pub mod hub;
mod load;
mod model_files;
mod model_path;
mod peft_adapters;
mod save;

pub(crate) use adapter_files::{ADAPTERS, write_adapters};
pub use checkpoint::Checkpoint;
pub use model_files::ModelFiles;
