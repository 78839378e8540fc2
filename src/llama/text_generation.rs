use std::ops::ControlFlow;

use crate::error::Result;

use super::checkpoint::Checkpoint;
use super::generate::Generation;
use super::model::Llama;
use super::options::{FinishReason, Options, Statistics, Token};
use super::prompt_cache::PromptCache;
use super::stop::StopStrings;
use super::text_stream::TextStream;
use super::tokenizer::Tokenizer;

/// A step of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The token that was drawn; none in the closing piece.
    pub token: Option<Token>,
    /// What can be shown now: whole characters that are not the beginning of a stop string. It
    /// may be empty, and may be that of tokens before.
    pub text: String,
    /// Why the text ended, in the closing piece.
    pub finish_reason: Option<FinishReason>,
}

/// An iterator over a text as it is generated: a piece for each token, then a closing one with what
/// was held back and the reason for the end. Drop it, or stop asking, to cancel.
///
/// ```
/// use mlx_primitives::llama::{Checkpoint, FinishReason, Options};
///
/// let checkpoint = Checkpoint::demo()?;
/// let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
/// let options = Options { max_tokens: 40, stop: vec!["girl".to_owned()], ..Options::default() };
/// let mut text = String::new();
/// for piece in checkpoint.generate_text(&prompt, &options)? {
///     let piece = piece?;
///     text += &piece.text;
///     if let Some(reason) = piece.finish_reason {
///         assert_eq!(reason, FinishReason::StopString);
///     }
/// }
/// assert_eq!(text, ", there was a little ");
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub struct TextGeneration<'a> {
    generation: Generation<'a>,
    stream: TextStream<'a>,
    stop: StopStrings,
    finish: Option<FinishReason>,
    ended: bool,
}

impl Checkpoint {
    /// As [`generate`](Self::generate), with the text of the tokens and the options' stop strings.
    ///
    /// # Errors
    ///
    /// Returns an error for what [`generate`](Self::generate) refuses, and for a stop string that
    /// is empty.
    pub fn generate_text(&self, prompt: &[u32], options: &Options) -> Result<TextGeneration<'_>> {
        TextGeneration::new(self.generate(prompt, options)?, &self.tokenizer, &options.stop)
    }
}

impl<'a> TextGeneration<'a> {
    /// The text of a generation, up to one of the strings.
    ///
    /// # Errors
    ///
    /// Returns an error for a stop string that is empty.
    pub fn new(
        generation: Generation<'a>,
        tokenizer: &'a Tokenizer,
        stop: &[String],
    ) -> Result<Self> {
        let stop = StopStrings::new(stop)?;
        Ok(Self { generation, stream: tokenizer.stream(), stop, finish: None, ended: false })
    }

    /// As [`Generation::with_cache`].
    ///
    /// # Errors
    ///
    /// Returns an error for what [`Generation::with_cache`] refuses.
    pub fn with_cache(self, cache: PromptCache) -> Result<Self> {
        Ok(Self { generation: self.generation.with_cache(cache)?, ..self })
    }

    /// As [`Generation::with_draft`].
    ///
    /// # Errors
    ///
    /// Returns an error for what [`Generation::with_draft`] refuses.
    pub fn with_draft(self, draft: &'a Llama, count: usize) -> Result<Self> {
        Ok(Self { generation: self.generation.with_draft(draft, count)?, ..self })
    }

    /// As [`Generation::prefill`].
    ///
    /// # Errors
    ///
    /// Returns an error for what [`Generation::prefill`] refuses.
    pub fn prefill(
        &mut self,
        progress: impl FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        self.generation.prefill(progress)
    }

    /// Why the text ended; none while it goes on.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// Figures up to now.
    pub fn statistics(&self) -> Statistics {
        self.generation.statistics()
    }

    /// The prompt, and the tokens yielded so far.
    pub fn tokens(&self) -> &[u32] {
        self.generation.tokens()
    }

    /// As [`Generation::into_prompt_cache`].
    ///
    /// # Errors
    ///
    /// Returns an error for what [`Generation::into_prompt_cache`] refuses.
    pub fn into_prompt_cache(self) -> Result<PromptCache> {
        self.generation.into_prompt_cache()
    }

    fn advance(&mut self) -> Result<Piece> {
        if self.finish.is_none() {
            if let Some(token) = self.generation.next_token()? {
                let (text, found) = self.stop.push(&self.stream.push(token.id)?);
                self.finish = found.then_some(FinishReason::StopString);
                return Ok(Piece { token: Some(token), text, finish_reason: None });
            }
            self.finish = self.generation.finish_reason();
            let (text, found) = self.stop.push(&self.stream.finish()?);
            if found {
                self.finish = Some(FinishReason::StopString);
            }
            self.ended = true;
            let text = text + &self.stop.finish();
            return Ok(Piece { token: None, text, finish_reason: self.finish });
        }
        self.ended = true;
        Ok(Piece { token: None, text: String::new(), finish_reason: self.finish })
    }
}

impl Iterator for TextGeneration<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let piece = self.advance();
        self.ended |= piece.is_err();
        Some(piece)
    }
}
