use mlx_primitives::Result;

use super::byte_level::bytes_of;
use super::tokenizer::{Decoding, Tokenizer};

/// The most tokens to hold back while their text ends in a replacement character.
const MOST_HELD: usize = 8;

/// Turns tokens into text as they come, whole characters at a time.
///
/// The pieces, followed by the result of [`finish`](Self::finish), are the text that
/// [`Tokenizer::decode`] makes of all tokens. Bytes that are not UTF-8 become U+FFFD.
///
/// Where tokens such as `<0xE2>` are bytes, as in Llama 2, `decode` replaces all bytes of such
/// tokens in a row if any of them is not UTF-8. Their text is therefore held back until another
/// token or the end comes.
///
/// ```
/// use mlx_primitives_llama::Checkpoint;
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
    /// The bytes of an incomplete character, of byte-level tokens.
    bytes: Vec<u8>,
    /// The last tokens that were shown, if any, and the tokens held back after them.
    window: Vec<u32>,
    /// The number of tokens of the window that were shown.
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
                Ok(self.complete())
            }
            Decoding::ByteFallback if is_byte(&written) => {
                self.window.push(token);
                Ok(String::new())
            }
            Decoding::ByteFallback => {
                self.window.push(token);
                self.release()
            }
            Decoding::Other => {
                self.window.push(token);
                self.release_whole()
            }
        }
    }

    /// Returns the text that was held back. Call this once, after the last token.
    ///
    /// # Errors
    ///
    /// Returns an error if the tokenizer cannot decode the tokens that were held back.
    pub fn finish(&mut self) -> Result<String> {
        let incomplete = !std::mem::take(&mut self.bytes).is_empty();
        let bytes = if incomplete { "\u{fffd}" } else { "" };
        Ok(bytes.to_owned() + &self.release()?)
    }

    /// The text of the bytes up to an incomplete character.
    fn complete(&mut self) -> String {
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
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.bytes = rest.iter().skip(invalid).copied().collect();
                }
            }
        }
    }

    /// The text that was held back, unless it ends in what may be a part of a character.
    fn release_whole(&mut self) -> Result<String> {
        let text = self.unseen()?;
        let held = self.window.len() - self.shown;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && held < MOST_HELD {
            return Ok(String::new());
        }
        self.keep_last()?;
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

    /// The text of the tokens held back, which is shown from now on.
    fn release(&mut self) -> Result<String> {
        if self.window.len() == self.shown {
            return Ok(String::new());
        }
        let text = self.unseen()?;
        self.keep_last()?;
        Ok(text)
    }

    /// Keeps the last tokens that have a text, by which the decoder knows that the next token is
    /// not the first one.
    fn keep_last(&mut self) -> Result<()> {
        let most = self.window.len().min(MOST_HELD);
        for count in 1..=most {
            let last = self.window.split_off(self.window.len() - count);
            let empty = self.tokenizer.decode(&last)?.is_empty();
            if !empty || count == most {
                self.window = last;
                break;
            }
            self.window.extend(last);
        }
        self.shown = self.window.len();
        Ok(())
    }
}

/// Whether a token is a byte, such as `<0x0A>`.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}
