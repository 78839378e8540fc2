use tokenizers::tokenizer::DecodeStream;
use tokenizers::{
    DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
};

use crate::error::{Error, Result};

/// Text to tokens and back, from a `tokenizer.json`.
///
/// ```
/// use mlx_primitives::llama::Checkpoint;
///
/// let tokenizer = Checkpoint::demo()?.tokenizer;
/// let tokens = tokenizer.encode("Zoë smiled.")?;
/// assert_eq!(tokenizer.decode(&tokens)?, "Zoë smiled.");
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub struct Tokenizer(tokenizers::Tokenizer);

impl Tokenizer {
    /// Reads the contents of a `tokenizer.json`.
    pub fn parse(json: &[u8]) -> Result<Self> {
        tokenizers::Tokenizer::from_bytes(json).map(Self).map_err(|e| failed(&*e))
    }

    /// The tokens of a text, with the special ones that the tokenizer adds itself.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.0.encode(text, true).map_err(|e| failed(&*e))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, without special ones.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        self.0.decode(tokens, true).map_err(|e| failed(&*e))
    }

    /// Decodes token by token.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream(self.0.decode_stream(true))
    }
}

/// Turns tokens into text as they come, whole characters at a time.
pub struct TextStream<'a>(
    DecodeStream<
        'a,
        ModelWrapper,
        NormalizerWrapper,
        PreTokenizerWrapper,
        PostProcessorWrapper,
        DecoderWrapper,
    >,
);

impl TextStream<'_> {
    /// What the token adds to the text; empty while a character is incomplete.
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.0.step(token).map(Option::unwrap_or_default).map_err(|e| failed(&*e))
    }
}

fn failed(error: &(dyn std::error::Error + Send + Sync)) -> Error {
    Error::argument("tokenizer", format_args!("a usable tokenizer and tokens, got {error}"))
}
