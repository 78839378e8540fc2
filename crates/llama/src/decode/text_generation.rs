use std::ops::ControlFlow;

use mlx_primitives::{Array, Result};

use super::engine::Generated;
use super::generate::Generation;
use super::options::{FinishReason, Options, Statistics, Token};
use super::prompt_cache::PromptCache;
use crate::files::Checkpoint;
use crate::model::Llama;
use crate::text::{StopStrings, TextStream, Tokenizer};

/// The text that a token adds, or the end of the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The token that was drawn, or `None` in the final piece.
    pub token: Option<Token>,
    /// Text that can be shown: complete characters that cannot be the start of a stop string. The
    /// text may be empty, and may include characters of earlier tokens that were held back for this
    /// reason.
    pub text: String,
    /// In the final piece, the reason why the text ended.
    pub finish_reason: Option<FinishReason>,
}

/// A source that yields the tokens of a text while they are generated.
pub trait Tokens {
    /// Returns the next token, or `None` at the end.
    ///
    /// # Errors
    ///
    /// Returns an error if a step of the model fails.
    fn next_token(&mut self) -> Result<Option<Token>>;

    /// The reason why the text ended, or `None` until it ends.
    fn finish_reason(&self) -> Option<FinishReason>;
}

impl Tokens for Generation<'_> {
    fn next_token(&mut self) -> Result<Option<Token>> {
        Generation::next_token(self)
    }

    fn finish_reason(&self) -> Option<FinishReason> {
        Generation::finish_reason(self)
    }
}

impl Tokens for Generated {
    fn next_token(&mut self) -> Result<Option<Token>> {
        self.next().transpose()
    }

    fn finish_reason(&self) -> Option<FinishReason> {
        Generated::finish_reason(self)
    }
}

/// An iterator over a text while it is generated. It yields a piece for each token, and then a
/// final piece with the remaining text and the reason for the end. Dropping the iterator cancels
/// the generation.
///
/// ```
/// use mlx_primitives_llama::{Checkpoint, Options, decode::FinishReason};
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
pub struct TextGeneration<'a, G = Generation<'a>> {
    generation: G,
    tokenizer: &'a Tokenizer,
    stream: TextStream<'a>,
    stop: StopStrings,
    finish: Option<FinishReason>,
    ended: bool,
}

impl Checkpoint {
    /// Runs the tokens of a prompt and yields the tokens that follow it, up to an end token of the
    /// checkpoint or of the options.
    ///
    /// # Errors
    ///
    /// Returns an error for prompts and options that [`Llama::generate`] rejects.
    pub fn generate(&self, prompt: &[u32], options: &Options) -> Result<Generation<'_>> {
        let mut options = options.clone();
        options.eos.extend(&self.eos);
        self.llama.generate(prompt, &options)
    }

    /// Runs the prompt's tokens and yields the text that follows. The text ends at an end token of
    /// the checkpoint or of the options, or at one of the options' stop strings.
    ///
    /// # Errors
    ///
    /// Returns an error for prompts and options that [`generate`](Self::generate) rejects, and for
    /// a stop string that is empty.
    pub fn generate_text(&self, prompt: &[u32], options: &Options) -> Result<TextGeneration<'_>> {
        TextGeneration::new(self.generate(prompt, options)?, &self.tokenizer, &options.stop)
    }
}

impl<'a> TextGeneration<'a> {
    /// Starts from a cache that contains the start of the prompt; see [`Generation::with_cache`].
    ///
    /// # Errors
    ///
    /// Returns an error for a cache of another model, or if the first token was requested already.
    pub fn with_cache(self, cache: PromptCache) -> Result<Self> {
        Ok(Self { generation: self.generation.with_cache(cache)?, ..self })
    }

    /// Lets a smaller model propose `count` tokens at a time; see [`Generation::with_draft`].
    ///
    /// # Errors
    ///
    /// Returns an error for counts, drafts and caches that [`Generation::with_draft`] rejects, or
    /// if the first token was requested already.
    pub fn with_draft(self, draft: &'a Llama, count: usize) -> Result<Self> {
        Ok(Self { generation: self.generation.with_draft(draft, count)?, ..self })
    }

    /// Proposes up to `count` tokens at a time, without a draft model; see
    /// [`Generation::with_prompt_lookup`].
    ///
    /// # Errors
    ///
    /// Returns an error for counts and caches that [`Generation::with_prompt_lookup`] rejects, or
    /// if the first token was requested already.
    pub fn with_prompt_lookup(self, count: usize) -> Result<Self> {
        Ok(Self { generation: self.generation.with_prompt_lookup(count)?, ..self })
    }

    /// Calls `processor` to change the logits before each token is drawn; see
    /// [`Generation::with_logits_processor`].
    ///
    /// # Errors
    ///
    /// Returns an error if the first token was requested already.
    pub fn with_logits_processor(
        self,
        processor: impl FnMut(&[u32], &Array) -> Result<Array> + 'a,
    ) -> Result<Self> {
        Ok(Self { generation: self.generation.with_logits_processor(processor)?, ..self })
    }

    /// Runs all tokens of the prompt except the last, in steps; see [`Generation::prefill`].
    ///
    /// # Errors
    ///
    /// Returns an error if a step of the model fails.
    pub fn prefill(
        &mut self,
        progress: impl FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        self.generation.prefill(progress)
    }

    /// The statistics of the generation so far.
    pub fn statistics(&self) -> Statistics {
        self.generation.statistics()
    }

    /// The prompt and the tokens that were yielded so far.
    pub fn tokens(&self) -> &[u32] {
        self.generation.tokens()
    }

    /// Ends the generation and returns its cache together with the tokens in it. A later generation
    /// can continue from the cache.
    ///
    /// # Errors
    ///
    /// Returns an error if the last positions cannot be removed from the cache, for example from a
    /// full rotating cache.
    pub fn into_prompt_cache(self) -> Result<PromptCache> {
        self.generation.into_prompt_cache()
    }
}

impl<'a, G: Tokens> TextGeneration<'a, G> {
    /// Creates an iterator over the text of a generation, up to one of the stop strings.
    ///
    /// # Errors
    ///
    /// Returns an error for a stop string that is empty.
    pub fn new(generation: G, tokenizer: &'a Tokenizer, stop: &[String]) -> Result<Self> {
        let stop = StopStrings::new(stop)?;
        let stream = tokenizer.stream();
        Ok(Self { generation, tokenizer, stream, stop, finish: None, ended: false })
    }

    /// The reason why the text ended, or `None` until it ends.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// Adds a token. Returns the text that can be shown, and whether it ends at a stop string.
    fn pushed(&mut self, token: u32) -> Result<(String, bool)> {
        let (mut text, mut found) = self.stop.push(&self.stream.push(token)?);
        if !found
            && !self.stop.is_empty()
            && self.tokenizer.is_special(token)
            && let Some(special) = self.tokenizer.token(token)
        {
            let (more, ends) = self.stop.push_special(&special);
            text += &more;
            found = ends;
        }
        Ok((text, found))
    }

    fn advance(&mut self) -> Result<Piece> {
        if self.finish.is_none() {
            if let Some(token) = self.generation.next_token()? {
                let (text, found) = self.pushed(token.id)?;
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

impl<G: Tokens> Iterator for TextGeneration<'_, G> {
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
