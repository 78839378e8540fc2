//! Reads the tokens of a file, its special tokens, and the tokens at which generation stops.

use std::collections::HashSet;

use serde_json::{Map, Value as Json, json};

use mlx_primitives::Result;
use mlx_primitives::io::gguf::{Entries, List, Value, brief};

use super::keys::{flag, refused, text, whole};

/// The maximum number of tokens. No known model has more, and a tokenizer with this number of
/// tokens takes little time and memory.
const MOST_TOKENS: usize = 300_000;

/// The maximum number of special tokens, which the tokenizer finds in a text before it splits the
/// rest into pieces. This is several times the number in any known model.
const MOST_SPECIAL: usize = 1 << 14;

/// The maximum length of a token in bytes, several times the longest token of any known model. The
/// tokenizer's tries are dropped recursively, so the limit bounds the depth of the recursion.
const MOST_BYTES: usize = 1024;

/// llama.cpp stops generation at tokens with these texts, whatever the entries of the file say.
/// Some of them are padding tokens, and some mark the start of the next file of a repository.
const ENDS: [&str; 33] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<reponame>",
    "<|file_sep|>",
    "<fim-repo>",
    "<fim-pad>",
    "<PAD>",
    "[PAD]",
    "<REPO>",
];

/// The kind of a vocabulary, by `tokenizer.ggml.model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VocabularyKind {
    /// SentencePiece's tokens, which are merged in the order of their scores.
    Spm,
    /// Byte-pair encoding with a list of merges.
    Bpe,
    /// SentencePiece's unigrams.
    Unigram,
}

/// The type of a token, by its number in `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Normal,
    Unknown,
    Control,
    /// Text that is always one token.
    UserDefined,
    Unused,
    Byte,
}

/// The tokens of a file.
pub(super) struct Vocabulary {
    pub kind: VocabularyKind,
    pub texts: Vec<String>,
    pub tokens: Vec<Token>,
}

fn list<'a>(entries: &'a Entries, key: &str) -> Result<Option<&'a List>> {
    match entries.get(key) {
        None => Ok(None),
        Some(Value::List(list)) => Ok(Some(list)),
        Some(other) => Err(refused(format_args!("a list {key}, got {}", other.brief()))),
    }
}

fn texts<'a>(
    entries: &'a Entries,
    key: &str,
) -> Result<Option<impl Iterator<Item = Option<&'a str>>>> {
    let Some(list) = list(entries, key)? else { return Ok(None) };
    let texts = list.texts();
    texts.map(Some).ok_or_else(|| refused(format_args!("a list of texts {key}, got numbers")))
}

/// Reads a list of strings, which must be UTF-8.
pub(super) fn owned_texts(entries: &Entries, key: &str) -> Result<Option<Vec<String>>> {
    let Some(texts) = texts(entries, key)? else { return Ok(None) };
    let owned = texts.map(|text| text.map(str::to_owned)).collect::<Option<_>>();
    owned.map(Some).ok_or_else(|| refused(format_args!("{key} in UTF-8, got other bytes")))
}

/// Reads the first `count` numbers of a list. A shorter list is an error.
pub(super) fn numbers(entries: &Entries, key: &str, count: usize) -> Result<Option<Vec<f64>>> {
    let Some(list) = list(entries, key)? else { return Ok(None) };
    match list.numbers() {
        Some(numbers) if list.len() >= count => Ok(Some(numbers.take(count).collect())),
        Some(_) => {
            let got = list.len();
            Err(refused(format_args!("{count} numbers in {key}, got {got}")))
        }
        None => Err(refused(format_args!("a list of numbers {key}, got texts"))),
    }
}

/// Reads a list of bytes.
pub(super) fn bytes<'a>(entries: &'a Entries, key: &str) -> Result<Option<&'a [u8]>> {
    let Some(list) = list(entries, key)? else { return Ok(None) };
    let bytes = list.bytes();
    bytes.map(Some).ok_or_else(|| refused(format_args!("a list of bytes {key}, got another list")))
}

/// Returns the number of tokens; `None` for a file without a vocabulary.
pub(super) fn count(entries: &Entries) -> Result<Option<usize>> {
    let Some(list) = list(entries, "tokenizer.ggml.tokens")? else { return Ok(None) };
    match list.len() {
        count if count > MOST_TOKENS => {
            Err(refused(format_args!("at most {MOST_TOKENS} tokens, got {count}")))
        }
        count => Ok(Some(count)),
    }
}

/// Returns the kind of the vocabulary; `None` for a file without a vocabulary.
fn kind(entries: &Entries) -> Result<Option<VocabularyKind>> {
    Ok(Some(match text(entries, "tokenizer.ggml.model")? {
        None | Some("none" | "no_vocab") => return Ok(None),
        Some("llama") => VocabularyKind::Spm,
        Some("gpt2") => VocabularyKind::Bpe,
        Some("t5") => VocabularyKind::Unigram,
        Some(other) => {
            let other = brief(other);
            return Err(refused(format_args!(
                "tokenizer.ggml.model llama, gpt2 or t5 or a tokenizer.json beside the file, got \
                 {other}"
            )));
        }
    }))
}

impl Vocabulary {
    /// Reads the vocabulary of a file.
    pub fn of(entries: &Entries) -> Result<Self> {
        let (Some(kind), Some(count)) = (kind(entries)?, count(entries)?) else {
            return Err(refused(
                "a vocabulary in the file or a tokenizer.json beside it, got neither",
            ));
        };
        let mut texts = owned_texts(entries, "tokenizer.ggml.tokens")?.unwrap_or_default();
        for (id, text) in texts.iter_mut().enumerate() {
            if text.is_empty() {
                *text = format!("[EMPTY_{id}]"); // llama.cpp uses this name too
            }
        }
        if let Some(length) = texts.iter().map(String::len).find(|length| *length > MOST_BYTES) {
            return Err(refused(format_args!(
                "tokens of at most {MOST_BYTES} bytes, got one of {length}"
            )));
        }
        let mut seen = HashSet::with_capacity(count);
        if let Some(twice) = texts.iter().find(|text| !seen.insert(text.as_str())) {
            let twice = brief(twice);
            return Err(refused(format_args!("tokens of different texts, got {twice} twice")));
        }
        drop(seen);
        let numbers = numbers(entries, "tokenizer.ggml.token_type", count)?;
        let by_number = |number: f64| match number as i64 {
            2 => Token::Unknown,
            3 => Token::Control,
            4 => Token::UserDefined,
            5 => Token::Unused,
            6 => Token::Byte,
            _ => Token::Normal,
        };
        let mut tokens: Vec<Token> = match numbers {
            Some(numbers) => numbers.into_iter().map(by_number).collect(),
            None => vec![Token::Normal; count],
        };
        for (text, token) in texts.iter().zip(&mut tokens) {
            match text.as_str() {
                // llama.cpp prints these tokens as text, whatever type the file gives them.
                "<|channel|>" | "<|message|>" | "<|start|>" | "<|constrain|>" => {
                    *token = Token::UserDefined;
                }
                text if ENDS.contains(&text) => *token = Token::Control,
                _ => {}
            }
        }
        let apart =
            |token: &&Token| matches!(token, Token::Control | Token::Unknown | Token::UserDefined);
        let special = tokens.iter().filter(apart).count();
        if special > MOST_SPECIAL {
            return Err(refused(format_args!(
                "at most {MOST_SPECIAL} special tokens in tokenizer.ggml.token_type, got {special}"
            )));
        }
        Ok(Self { kind, texts, tokens })
    }
}

/// Reads a token ID from the entry `tokenizer.ggml.NAME_token_id`.
fn id(entries: &Entries, name: &str) -> Result<Option<u32>> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    // Some files write -1 if there is no such token.
    if let Some(Value::Signed(number)) = entries.get(&key)
        && *number < 0
    {
        return Ok(None);
    }
    let Some(id) = whole(entries, &key)?.filter(|id| *id != u64::from(u32::MAX)) else {
        return Ok(None);
    };
    let below = count(entries)?.map_or(1 << 31, |count| count as u64);
    match u32::try_from(id) {
        Ok(small) if id < below => Ok(Some(small)),
        _ => Err(refused(format_args!("{key} below {below}, got {id}"))),
    }
}

/// The special tokens, and whether every text begins with `bos` and ends with `eos`.
#[derive(Default)]
pub(super) struct Special {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub pad: Option<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
}

/// The values of `tokenizer.ggml.pre` whose tokenizers begin every text with `bos`, unless
/// `tokenizer.ggml.add_bos_token` is false.
const BEGINNING: [&str; 9] = [
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "tekken",
];

impl Special {
    /// Reads the special tokens, with llama.cpp's defaults for each kind of vocabulary. For
    /// byte-pair vocabularies, llama.cpp's default is token 11. This function ignores that default,
    /// since it fits only one old model.
    pub fn of(entries: &Entries) -> Result<Self> {
        let (bos, eos, unk, add_bos, add_eos) = match kind(entries).ok().flatten() {
            Some(VocabularyKind::Spm) => (Some(1), Some(2), Some(0), true, false),
            Some(VocabularyKind::Unigram) => (None, Some(1), Some(2), false, true),
            Some(VocabularyKind::Bpe) => {
                let pre = text(entries, "tokenizer.ggml.pre")?.unwrap_or_default();
                (None, None, None, BEGINNING.contains(&pre), false)
            }
            None => (None, None, None, false, false),
        };
        let known = count(entries)?.unwrap_or(0);
        let of = |name: &str, default: Option<u32>| -> Result<Option<u32>> {
            let default = default.filter(|id| (*id as usize) < known);
            Ok(id(entries, name)?.or(default))
        };
        let says = |name: &str| flag(entries, &format!("tokenizer.ggml.add_{name}_token"));
        let special = Self {
            bos: of("bos", bos)?,
            eos: of("eos", eos)?,
            unk: of("unknown", unk)?,
            pad: of("padding", None)?,
            add_bos: says("bos")?.unwrap_or(add_bos),
            add_eos: says("eos")?.unwrap_or(add_eos),
        };
        for (name, add, id) in
            [("bos", special.add_bos, special.bos), ("eos", special.add_eos, special.eos)]
        {
            if known > 0 && add && id.is_none() {
                return Err(refused(format_args!(
                    "tokenizer.ggml.{name}_token_id, which begins or ends every text, got none"
                )));
            }
        }
        Ok(special)
    }
}

/// Returns the tokens at which generation stops, sorted. They are the tokens that the entries name,
/// and the tokens whose text is in `ENDS`.
pub(super) fn end_tokens(entries: &Entries) -> Result<Vec<u32>> {
    let mut ends = vec![Special::of(entries)?.eos];
    for name in ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"] {
        ends.push(id(entries, name)?);
    }
    let mut ends: Vec<u32> = ends.into_iter().flatten().collect();
    count(entries)?; // returns an error if the list is too long
    let mut found = Vec::new();
    for (id, text) in (0u32..).zip(texts(entries, "tokenizer.ggml.tokens")?.into_iter().flatten()) {
        if let Some(text) = text.and_then(|text| ENDS.iter().find(|end| **end == text)) {
            found.push((*text, id));
        }
    }
    let has = |text: &str| found.iter().any(|(found, _)| *found == text);
    // If a vocabulary has one of these groups of tokens, `<|end|>` ends only a message, and the
    // model continues.
    let goes_on = has("<|call|>") && (has("<|return|>") || has("<|flush|>"))
        || has("<|calls|>") && has("<|flush|>");
    ends.extend(found.iter().filter(|(text, _)| !(goes_on && *text == "<|end|>")).map(|it| it.1));
    ends.sort_unstable();
    ends.dedup();
    Ok(ends)
}

/// Makes the contents of a `tokenizer_config.json`: the chat templates, and the texts of the
/// special tokens that the templates use.
pub(super) fn tokenizer_config(entries: &Entries) -> Result<Json> {
    let mut config = Map::new();
    let special = Special::of(entries)?;
    for (name, id) in [
        ("bos_token", special.bos),
        ("eos_token", special.eos),
        ("unk_token", special.unk),
        ("pad_token", special.pad),
    ] {
        let Some(id) = id else { continue };
        let found =
            texts(entries, "tokenizer.ggml.tokens")?.and_then(|mut all| all.nth(id as usize));
        if let Some(text) = found.flatten() {
            config.insert(name.to_owned(), json!(text));
        }
    }
    let mut templates = Vec::new();
    let key = "tokenizer.chat_template";
    if let Some(template) = text(entries, key)? {
        templates.push(("default", template));
    }
    let mut keys: Vec<&str> = entries.keys().collect();
    keys.sort_unstable();
    for own in keys {
        let name = own.strip_prefix(key).and_then(|rest| rest.strip_prefix('.'));
        let Some(name) = name else { continue };
        if let Some(template) = text(entries, own)? {
            templates.push((name, template));
        }
    }
    match templates[..] {
        [] => {}
        [("default", template)] => {
            config.insert("chat_template".to_owned(), json!(template));
        }
        _ => {
            let named =
                |(name, template): &(&str, &str)| json!({"name": name, "template": template});
            let named: Vec<Json> = templates.iter().map(named).collect();
            config.insert("chat_template".to_owned(), json!(named));
        }
    }
    Ok(Json::Object(config))
}
