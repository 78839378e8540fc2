use mlx_primitives::Result;

use super::byte_level::bytes_of;
use super::tokenizer::{Decoding, Tokenizer};

/// Tokens whose text ends in a replacement character are held back only if there are fewer of them
/// than this number. Also the maximum number of tokens that `keep_last` keeps.
const MOST_HELD: usize = 8;

/// Turns tokens into text one by one. Each returned piece contains only complete characters.
///
/// The concatenated results of [`push`](Self::push) and [`finish`](Self::finish) equal the text
/// that [`Tokenizer::decode`] makes from all tokens. Bytes that are not UTF-8 become U+FFFD.
///
/// Some vocabularies, such as Llama 2's, have tokens for bytes, such as `<0xE2>`. If the bytes of
/// successive byte tokens are not valid UTF-8, `decode` replaces all of these bytes. So the stream
/// holds the text of byte tokens back until a token of another kind or the end of the text arrives.
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
    /// The bytes of an incomplete character, if the tokens are byte-level.
    bytes: Vec<u8>,
    /// The last tokens whose text was returned, if any, and then the tokens that are held back.
    window: Vec<u32>,
    /// The number of tokens in `window` whose text was returned.
    shown: usize,
}

impl Tokenizer {
    /// Makes a decoder that takes tokens one by one.
    pub fn stream(&self) -> TextStream<'_> {
        let decoding = self.decoding();
        TextStream { tokenizer: self, decoding, bytes: Vec::new(), window: Vec::new(), shown: 0 }
    }
}

impl TextStream<'_> {
    /// Adds a token and returns the text that it completes. The text is empty while a character is
    /// incomplete.
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

    /// Removes the bytes before an incomplete character at the end, and returns their text.
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

    /// Returns the text that was held back. Returns an empty string if the end may be an incomplete
    /// character and fewer than `MOST_HELD` tokens are held back.
    fn release_whole(&mut self) -> Result<String> {
        let text = self.unseen()?;
        let held = self.window.len() - self.shown;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && held < MOST_HELD {
            return Ok(String::new());
        }
        self.keep_last()?;
        Ok(text)
    }

    /// Decodes the tokens that are held back.
    fn unseen(&self) -> Result<String> {
        let all = self.tokenizer.decode(&self.window)?;
        let seen = match self.window.get(..self.shown) {
            None | Some([]) => return Ok(all),
            Some(seen) => self.tokenizer.decode(seen)?,
        };
        // Some decoders clean up spaces, so a new token may change the end of the text that was
        // already returned.
        let same = all.chars().zip(seen.chars()).take_while(|(a, b)| a == b);
        let same: usize = same.map(|(c, _)| c.len_utf8()).sum();
        Ok(all.get(same..).unwrap_or_default().to_owned())
    }

    /// Returns the text of the tokens that are held back, and marks these tokens as shown.
    fn release(&mut self) -> Result<String> {
        if self.window.len() == self.shown {
            return Ok(String::new());
        }
        let text = self.unseen()?;
        self.keep_last()?;
        Ok(text)
    }

    /// Removes all tokens from `window` except the last ones with text, at most `MOST_HELD`. With
    /// these tokens, the decoder knows that the next token is not the first token of the text.
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

/// Whether a token stands for a byte, as `<0x0A>` does.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}
