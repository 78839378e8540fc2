use std::collections::HashMap;
use std::sync::LazyLock;

use crate::error::Result;

use super::tokenizer::{Decoding, Tokenizer};

/// The most tokens to hold back while their text ends in a replacement character.
const MOST_HELD: usize = 8;

/// Turns tokens into text as they come, whole characters at a time.
///
/// The pieces, followed by the result of [`finish`](Self::finish), are the text that
/// [`Tokenizer::decode`] makes of all tokens. Bytes that are not UTF-8 become U+FFFD. Only where
/// tokens such as `<0xE2>` are bytes, as in Llama 2, and such tokens in a row are not UTF-8 as a whole,
/// does `decode` replace all of these bytes, while the pieces keep the characters among them that are
/// whole: a stream cannot know what follows a character that it has shown.
///
/// ```
/// use mlx_primitives::llama::Checkpoint;
///
/// let tokenizer = Checkpoint::demo()?.tokenizer;
/// let tokens = tokenizer.encode("a 🦊")?;
/// let mut stream = tokenizer.stream();
/// let mut text = String::new();
/// for token in tokens {
///     text += &stream.push(token)?;
/// }
/// text += &stream.finish()?;
/// assert_eq!(text, "a 🦊");
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    decoding: Decoding,
    /// The bytes of an incomplete character.
    bytes: Vec<u8>,
    /// The last token that was shown, if any, and the tokens held back after it.
    window: Vec<u32>,
    /// The number of tokens of the window that were shown: 0 or 1.
    shown: usize,
}

impl Tokenizer {
    /// A decoder of tokens one by one.
    pub fn stream(&self) -> TextStream<'_> {
        let decoding = self.decoding();
        TextStream { tokenizer: self, decoding, bytes: Vec::new(), window: Vec::new(), shown: 0 }
    }
}

impl TextStream<'_> {
    /// Adds a token and returns the text that it completes; empty while a character is incomplete.
    ///
    /// # Errors
    ///
    /// Returns an error if the tokenizer cannot decode the token.
    pub fn push(&mut self, token: u32) -> Result<String> {
        let Some(written) = self.tokenizer.token(token) else { return Ok(String::new()) };
        if self.tokenizer.is_special(token) {
            return Ok(String::new());
        }
        match self.decoding {
            Decoding::ByteLevel => {
                self.bytes.extend(bytes_of(&written));
                Ok(self.complete(false))
            }
            Decoding::ByteFallback => match fallback_byte(&written) {
                Some(byte) => {
                    let mut text = self.release()?;
                    self.bytes.push(byte);
                    text += &self.complete(true);
                    (self.window, self.shown) = (vec![token], 1);
                    Ok(text)
                }
                None => Ok(self.incomplete(true) + &self.decoded(token)?),
            },
            Decoding::Other => self.decoded(token),
        }
    }

    /// Returns the text that was held back. Call this once, after the last token.
    ///
    /// # Errors
    ///
    /// Returns an error if the tokenizer cannot decode the tokens that were held back.
    pub fn finish(&mut self) -> Result<String> {
        let bytes = self.incomplete(self.decoding == Decoding::ByteFallback);
        Ok(bytes + &self.release()?)
    }

    /// The text of the bytes up to an incomplete character.
    fn complete(&mut self, each: bool) -> String {
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.bytes) {
                Ok(rest) => {
                    text += rest;
                    self.bytes.clear();
                    return text;
                }
                Err(error) => {
                    let (valid, rest) = self.bytes.split_at(error.valid_up_to());
                    text += &String::from_utf8_lossy(valid);
                    let Some(invalid) = error.error_len() else {
                        self.bytes = rest.to_vec();
                        return text;
                    };
                    text += &replacements(invalid, each);
                    self.bytes = rest.iter().skip(invalid).copied().collect();
                }
            }
        }
    }

    /// The replacement of the bytes of a character that will never be complete.
    fn incomplete(&mut self, each: bool) -> String {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.is_empty() { String::new() } else { replacements(bytes.len(), each) }
    }

    /// Decodes a token by the tokenizer's own decoder, which may look at the token before it.
    fn decoded(&mut self, token: u32) -> Result<String> {
        self.window.push(token);
        let text = self.unseen()?;
        let held = self.window.len() - self.shown;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && held < MOST_HELD {
            return Ok(String::new());
        }
        (self.window, self.shown) = (vec![token], 1);
        Ok(text)
    }

    /// The text of the tokens held back.
    fn unseen(&self) -> Result<String> {
        let all = self.tokenizer.decode(&self.window)?;
        let seen = match self.window.get(..self.shown) {
            None | Some([]) => return Ok(all),
            Some(seen) => self.tokenizer.decode(seen)?,
        };
        // A decoder that cleans up texts may have changed the end of the text that was shown.
        let same = all.chars().zip(seen.chars()).take_while(|(a, b)| a == b);
        let same: usize = same.map(|(c, _)| c.len_utf8()).sum();
        Ok(all.get(same..).unwrap_or_default().to_owned())
    }

    fn release(&mut self) -> Result<String> {
        if self.window.len() == self.shown {
            return Ok(String::new());
        }
        let text = self.unseen()?;
        self.window = self.window.last().copied().into_iter().collect();
        self.shown = self.window.len();
        Ok(text)
    }
}

/// The replacement characters for `count` bytes that are not UTF-8: one for all, as by
/// [`String::from_utf8_lossy`], or one for each, as by the `tokenizers` crate where bytes are
/// tokens.
fn replacements(count: usize, each: bool) -> String {
    let count = if each { count } else { 1 };
    std::iter::repeat_n(char::REPLACEMENT_CHARACTER, count).collect()
}

/// The byte of a token such as `<0x0A>`, or `None` for other tokens.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 { None } else { u8::from_str_radix(digits, 16).ok() }
}

/// The bytes that a token of a byte-level vocabulary stands for, or those of its text for another
/// token.
fn bytes_of(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(|c| BYTES.get(&c).copied()).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The bytes of the characters by which GPT-2's vocabulary writes them: printable bytes as
/// themselves, the others as characters from U+0100 on.
static BYTES: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255u8).filter(|byte| !printable(byte));
    let others = ('\u{100}'..).zip(others);
    let own = (0..=255u8).filter(printable).map(|byte| (char::from(byte), byte));
    own.chain(others).collect()
});
