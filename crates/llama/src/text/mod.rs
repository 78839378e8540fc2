//! Converts text to tokens and back, and conversations to text.

mod byte_level;
mod chat_template;
mod cut_patterns;
mod jinja;
mod special_tokens;
mod stop;
mod text_stream;
mod tokenizer;
mod tokenizer_cuts;
mod tokenizer_parts;

pub use chat_template::{ChatOptions, ChatTemplate, message};
pub(crate) use special_tokens::SpecialTokens;
pub(crate) use stop::StopStrings;
pub use text_stream::TextStream;
pub use tokenizer::Tokenizer;
