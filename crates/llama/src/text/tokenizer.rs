use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;

use tokenizers::{DecoderWrapper, Encoding, Token};

use mlx_primitives::support::files;
use mlx_primitives::support::panic_message;
use mlx_primitives::{Error, Result};

use super::special_tokens::SpecialTokens;
use super::tokenizer_cuts::{Cuts, PART};
use super::tokenizer_parts;

/// Converts text to tokens and back, as a `tokenizer.json` defines it.
///
/// ```
/// use mlx_primitives_llama::Checkpoint;
///
/// let tokenizer = Checkpoint::demo()?.tokenizer;
/// let tokens = tokenizer.encode("Zoë smiled.")?;
/// assert_eq!(tokenizer.decode(&tokens)?, "Zoë smiled.");
/// assert_eq!(tokenizer.token_id("<|endoftext|>"), Some(0));
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    eos: Option<u32>,
    /// Cuts long texts into parts. This field is computed at the first use.
    cuts: OnceLock<Option<Cuts>>,
}

/// The way in which a tokenizer converts tokens to text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decoding {
    /// Every character of a token stands for a byte, as in GPT-2 and Llama 3.
    ByteLevel,
    /// Tokens are text, except byte tokens such as `<0x0A>`, as in SentencePiece and Llama 2.
    ByteFallback,
    /// Only the tokenizer's decoder knows the text of tokens.
    Other,
}

impl Tokenizer {
    /// Reads the contents of a `tokenizer.json`. Its settings for truncation and padding are
    /// ignored, so that a prompt is never shortened or padded.
    ///
    /// # Errors
    ///
    /// Returns an error if the `tokenizers` library cannot read the contents, or if the tokenizer
    /// has components that this crate does not run.
    pub fn parse(json: &[u8]) -> Result<Self> {
        tokenizer_parts::check(json)?;
        guarded(|| {
            let mut tokenizer = tokenizers::Tokenizer::from_bytes(json)?;
            tokenizer.with_padding(None);
            tokenizer.with_truncation(None)?;
            Ok(Self::of(tokenizer))
        })
    }

    /// Makes a tokenizer by calling `make`, without a `tokenizer.json`.
    pub(crate) fn made_by(make: impl FnOnce() -> Result<tokenizers::Tokenizer>) -> Result<Self> {
        guarded(|| Ok(make().map(Self::of)))?
    }

    fn of(inner: tokenizers::Tokenizer) -> Self {
        Self { inner, eos: None, cuts: OnceLock::new() }
    }

    /// Loads the `tokenizer.json` of a directory. As in transformers, the files
    /// `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` can name
    /// additional tokens.
    ///
    /// ```
    /// use mlx_primitives_llama::Tokenizer;
    ///
    /// # let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo");
    /// let tokenizer = Tokenizer::load(demo)?;
    /// assert_eq!(tokenizer.token_id("<|endoftext|>"), Some(0));
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error that names the file if a file cannot be read, if [`parse`](Self::parse)
    /// refuses the tokenizer, or if another file gives a token a different ID than
    /// `tokenizer.json`.
    pub fn load(directory: impl AsRef<Path>) -> Result<Self> {
        Self::load_for(directory.as_ref(), None)
    }

    /// Loads a tokenizer like [`load`](Self::load), but does not add tokens whose ID would be
    /// `rows` or more. The embedding of a model with `rows` rows has no row for such tokens.
    pub(crate) fn load_for(directory: &Path, rows: Option<u32>) -> Result<Self> {
        let path = directory.join("tokenizer.json");
        let mut tokenizer = Self::parse(&files::read(&path)?).map_err(|e| match e.path() {
            Some(_) => e,
            None => Error::file(&path, e),
        })?;
        let tokens = SpecialTokens::load(directory)?;
        let mut conflict = Ok(());
        guarded(|| {
            conflict = tokens.add_to(&mut tokenizer.inner, rows);
            Ok(())
        })?;
        conflict.map_err(|got| {
            let expected = "expected the numbers that tokenizer.json gives to tokens, got";
            Error::file(directory.join("tokenizer_config.json"), format_args!("{expected} {got}"))
        })?;
        tokenizer.eos = tokens.named("eos_token").and_then(|token| tokenizer.token_id(token));
        Ok(tokenizer)
    }

    /// The end-of-sequence token, according to the files that [`load`](Self::load) reads.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Encodes a text, including the special tokens that the tokenizer adds.
    ///
    /// # Errors
    ///
    /// Returns an error if the tokenizer fails on the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.encoded(text, true)
    }

    /// Encodes a text without adding special tokens. Special tokens that are spelled out in the
    /// text are recognized. Use this for the output of a chat template, which already contains its
    /// special tokens.
    ///
    /// # Errors
    ///
    /// Returns an error if the tokenizer fails on the text.
    pub fn encode_verbatim(&self, text: &str) -> Result<Vec<u32>> {
        self.encoded(text, false)
    }

    /// Encodes a text. Many tokenizers need much time and memory for a long text. So a long text is
    /// encoded in parts if this is certain to give the same tokens.
    fn encoded(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let whole = |text: &str, special| {
            guarded(|| Ok(self.inner.encode_fast(text, special)?.get_ids().to_vec()))
        };
        let cuts = if text.len() > PART { self.cuts()? } else { None };
        let parts = cuts.map_or_else(|| vec![text], |cuts| cuts.parts(text));
        let around = if parts.len() > 1 { self.around(special)? } else { None };
        let Some([mut tokens, after]) = around else { return whole(text, special) };
        for part in parts {
            tokens.extend(whole(part, false)?);
        }
        tokens.extend(after);
        Ok(tokens)
    }

    /// Returns the tokens that the tokenizer adds before and after a text; `None` if the tokenizer
    /// also changes the tokens of the text itself.
    fn around(&self, special: bool) -> Result<Option<[Vec<u32>; 2]>> {
        let token = Token::new(0, String::new(), (0, 0));
        let one = Encoding::from_tokens(vec![token], 0);
        let all = guarded(|| self.inner.post_process(one, None, special))?;
        let is_added = all.get_special_tokens_mask().iter().map(|mask| *mask != 0);
        let at = is_added.clone().position(|added| !added);
        let (Some(at), 1) = (at, is_added.filter(|added| !added).count()) else { return Ok(None) };
        let [before, after] = [all.get_ids().get(..at), all.get_ids().get(at + 1..)];
        Ok(Some([before, after].map(|ids| ids.unwrap_or_default().to_vec())))
    }

    fn cuts(&self) -> Result<Option<&Cuts>> {
        if self.cuts.get().is_none() {
            let cuts = guarded(|| Ok(Cuts::of(&self.inner)))?;
            return Ok(self.cuts.get_or_init(|| cuts).as_ref());
        }
        Ok(self.cuts.get().and_then(Option::as_ref))
    }

    /// Returns a lower bound for the number of tokens of a text, or 0 if no bound is known for this
    /// tokenizer. This takes a fraction of the time of [`encode`](Self::encode).
    ///
    /// # Errors
    ///
    /// Returns an error if the tokenizer fails.
    ///
    /// ```
    /// use mlx_primitives_llama::Checkpoint;
    ///
    /// let tokenizer = Checkpoint::demo()?.tokenizer;
    /// let text = "Once upon a time, ".repeat(100_000);
    /// let fewest = tokenizer.fewest_tokens(&text)?;
    /// assert!(fewest > 50_000 && fewest <= tokenizer.encode(&text)?.len());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn fewest_tokens(&self, text: &str) -> Result<usize> {
        Ok(self.cuts()?.map_or(0, |cuts| cuts.fewest(text)))
    }

    /// Converts tokens to text, without special tokens.
    ///
    /// # Errors
    ///
    /// Returns an error if the tokenizer fails on the tokens.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        guarded(|| self.inner.decode(tokens, true))
    }

    /// The ID of a token, from its spelling in the vocabulary. Added tokens are found too.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The spelling of a token in the vocabulary. The spelling can differ from the text of the
    /// token.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Whether a token is special, so that decoded text does not contain it.
    pub fn is_special(&self, id: u32) -> bool {
        self.token(id)
            .is_some_and(|token| self.inner.get_added_vocabulary().is_special_token(&token))
    }

    pub(crate) fn decoding(&self) -> Decoding {
        match self.inner.get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => Decoding::ByteLevel,
            Some(DecoderWrapper::ByteFallback(_)) => Decoding::ByteFallback,
            Some(DecoderWrapper::Sequence(sequence)) => {
                let parts = sequence.get_decoders();
                match parts {
                    [DecoderWrapper::ByteLevel(_)] => Decoding::ByteLevel,
                    _ if parts.iter().any(|p| matches!(p, DecoderWrapper::ByteFallback(_))) => {
                        Decoding::ByteFallback
                    }
                    _ => Decoding::Other,
                }
            }
            _ => Decoding::Other,
        }
    }
}

/// Calls code of the `tokenizers` crate and turns a panic into an error. The crate panics for some
/// files, for instance if a word is empty. It is safe to continue after a panic, which can have
/// changed only the crate's caches.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::argument("tokenizer", format_args!("a usable tokenizer and tokens, got {error}"))
    };
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| failed(&error)),
        Err(payload) => Err(failed(&format_args!("a panic: {}", panic_message(&*payload)))),
    }
}
