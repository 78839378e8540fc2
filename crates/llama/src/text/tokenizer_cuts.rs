//! Finds positions at which a long text can be cut so that its parts encode to the same tokens as
//! the whole text. Also computes a lower bound for the number of tokens of a text.
//!
//! This works with the tokenizers of most Llama models, which use byte-pair encoding (BPE) and have
//! a token for each byte. A text may be cut before a space or a line break that has a letter or
//! digit on both sides, if
//!
//! - no token of the vocabulary, and no added token, contains a letter or digit that is followed by
//!   a space or a line break. Then no merge joins the two sides, even if the pre-tokenizer does not
//!   split the text there.
//! - no expression of the pre-tokenizer has a match that spans the cut or depends on the text
//!   around the match. Then the matches on both sides stay the same.
//! - the tokenizer adds nothing before the part after the cut, except a space that the whole text
//!   has at this position.

use std::collections::HashMap;

use regex::Regex;
use serde_json::Value;
use tokenizers::{AddedToken, ModelWrapper};

use super::byte_level::bytes_of;
use super::cut_patterns;

/// The minimum size in bytes of a part, except the last. The search for a cut begins after this
/// number of bytes.
pub(crate) const PART: usize = 1 << 16;

/// Cuts long texts for one tokenizer, and computes lower bounds for their numbers of tokens.
pub(crate) struct Cuts {
    /// Matches a position at which a text may be cut: a letter or digit, then a space or line
    /// break, then a letter or digit. `None` if the tokenizer allows no cut.
    place: Option<Regex>,
    /// Whether the tokenizer adds a space before a text. If so, `parts` removes the space at the
    /// start of each part after a cut, since the tokenizer adds it again.
    prepends: bool,
    /// For each ASCII character, the smallest fraction of a token that one such character can fill,
    /// as `shares` computes it.
    shares: [f64; 128],
}

/// How a tokenizer's normalizer and pre-tokenizer treat spaces and line breaks.
struct Rules {
    prepends: bool,
    /// Whether a text may be cut before a line break.
    breaks: bool,
    /// Whether an earlier component has replaced spaces by other characters. Then this module
    /// allows only some pre-tokenizers.
    replaces: bool,
    byte_level: bool,
    /// Whether the pre-tokenizer may remove characters.
    removes: bool,
}

impl Cuts {
    /// Examines a tokenizer. Returns `None` if the tokenizer has a component that this module does
    /// not support.
    pub fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        let plain = model.dropout.is_none_or(|dropout| dropout == 0.0)
            && model.continuing_subword_prefix.is_none()
            && model.end_of_word_suffix.is_none();
        let mut rules = Rules {
            prepends: false,
            breaks: true,
            replaces: false,
            byte_level: false,
            removes: false,
        };
        let normalizer = serde_json::to_value(tokenizer.get_normalizer()).ok()?;
        let pre_tokenizer = serde_json::to_value(tokenizer.get_pre_tokenizer()).ok()?;
        let known =
            rules.allow_normalizer(&normalizer) && rules.allow_pre_tokenizer(&pre_tokenizer);
        let vocabulary = model.get_vocab();
        let complete = match rules.byte_level {
            true => vocabulary.keys().filter(|token| token.chars().count() == 1).count() >= 256,
            false => {
                model.byte_fallback
                    && (0..=255u8).all(|byte| vocabulary.contains_key(&format!("<{byte:#04X}>")))
            }
        };
        if !plain || !known || !complete {
            return None;
        }
        let added: Vec<AddedToken> = tokenizer.get_added_tokens_decoder().into_values().collect();
        let place = place(&vocabulary, &added, &rules);
        let shares = match rules.removes {
            true => [0.0; 128],
            false => shares(&vocabulary, &added, rules.byte_level),
        };
        Some(Self { place, prepends: rules.prepends, shares })
    }

    /// Cuts a text into parts that can be encoded separately.
    pub fn parts<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut parts = Vec::new();
        let mut rest = text;
        if let Some(place) = &self.place {
            while let Some(from) = (PART..rest.len()).find(|at| rest.is_char_boundary(*at))
                && let Some(found) = place.find_at(rest, from)
            {
                let width = found.as_str().chars().next().map_or(0, char::len_utf8);
                let (part, after) = rest.split_at(found.start() + width);
                parts.push(part);
                rest = if self.prepends { after.strip_prefix(' ').unwrap_or(after) } else { after };
            }
        }
        parts.push(rest);
        parts
    }

    /// Returns a lower bound for the number of tokens of a text.
    pub fn fewest(&self, text: &str) -> usize {
        // Normalization may combine an ASCII character with a following non-ASCII character, so an
        // ASCII character before a non-ASCII character is not counted.
        let bytes = text.as_bytes();
        let next = bytes.iter().skip(1).chain(b" ");
        let counted = bytes.iter().zip(next).filter(|(_, next)| next.is_ascii());
        let shares = counted.filter_map(|(byte, _)| self.shares.get(usize::from(*byte)));
        let sum: f64 = shares.sum();
        // The rounding error of the sum is less than a thousandth of the sum.
        (sum * 0.999) as usize
    }
}

impl Rules {
    fn allow_normalizer(&mut self, part: &Value) -> bool {
        let is = |name: &str, value: &str| part.get(name).and_then(Value::as_str) == Some(value);
        match kind(part) {
            "" => part.is_null(),
            "NFC" | "NFD" | "NFKC" | "NFKD" => true,
            "Prepend" => {
                self.prepends = true;
                self.breaks = false;
                is("prepend", "▁")
            }
            "Replace" => {
                self.replaces = true;
                let pattern = part.get("pattern").and_then(|pattern| pattern.get("String"));
                pattern.and_then(Value::as_str) == Some(" ") && is("content", "▁")
            }
            "Sequence" => members(part, "normalizers").all(|part| self.allow_normalizer(part)),
            _ => false,
        }
    }

    fn allow_pre_tokenizer(&mut self, part: &Value) -> bool {
        let own = part.get("add_prefix_space").and_then(Value::as_bool);
        self.removes |= part.get("behavior").and_then(Value::as_str) == Some("Removed");
        match kind(part) {
            "" => part.is_null(),
            // `ByteLevel` replaces spaces by letters, so this module allows no pre-tokenizer after
            // it.
            _ if self.byte_level => false,
            "ByteLevel" => {
                self.byte_level = true;
                self.breaks &= own == Some(false);
                !self.replaces
            }
            "Metaspace" => {
                self.replaces = true;
                self.breaks &= part.get("prepend_scheme").and_then(Value::as_str) == Some("never");
                part.get("replacement").and_then(Value::as_str) == Some("▁")
            }
            "Split" => {
                let pattern = part.get("pattern");
                let text = |kind: &str| pattern.and_then(|p| p.get(kind)).and_then(Value::as_str);
                match (text("Regex"), text("String")) {
                    (Some(pattern), _) => !self.replaces && cut_patterns::allows(pattern),
                    (_, Some(text)) => text.chars().count() == 1,
                    _ => false,
                }
            }
            "Digits" | "Punctuation" => true,
            "Sequence" => members(part, "pretokenizers").all(|part| self.allow_pre_tokenizer(part)),
            _ => false,
        }
    }

    /// Returns the text of a token, with spaces in place of the characters that stand for spaces.
    fn text(&self, token: &str) -> String {
        match self.byte_level {
            true => String::from_utf8_lossy(&bytes_of(token)).into_owned(),
            false => token.replace('▁', " "),
        }
    }
}

fn kind(part: &Value) -> &str {
    part.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn members<'v>(part: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    part.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// Makes the regular expression for the positions at which a text may be cut; `None` if the
/// tokenizer allows no cut.
fn place(vocabulary: &HashMap<String, u32>, added: &[AddedToken], rules: &Rules) -> Option<Regex> {
    let word = |c: char| c.is_alphanumeric() || c == char::REPLACEMENT_CHARACTER;
    let letters = |text: &str| text.chars().next().is_some_and(word);
    let ends = |text: &str| text.chars().next_back().is_some_and(word);
    let unclear = |token: &AddedToken| {
        token.rstrip && ends(&token.content) || rules.prepends && letters(&token.content)
    };
    if added.iter().any(unclear) {
        return None;
    }
    // `joined[i][j]` is true if some token contains a letter or digit followed by a space (`i` = 0)
    // or a line break (`i` = 1). The letter or digit is ASCII (`j` = 0) or not (`j` = 1).
    let mut joined = [[false; 2]; 2];
    let texts = vocabulary.keys().map(|token| rules.text(token));
    for text in texts.chain(added.iter().map(|token| token.content.replace('▁', " "))) {
        for (before, after) in text.chars().zip(text.chars().skip(1)) {
            if word(before) && (after == ' ' || after == '\n') {
                joined[usize::from(after == '\n')][usize::from(!before.is_ascii())] = true;
            }
        }
    }
    let places = [(" ", joined[0]), ("\n", [joined[1][0] || !rules.breaks, joined[1][1]])];
    let places = places.into_iter().filter(|(_, joined)| !joined[0]).map(|(space, joined)| {
        let before = if joined[1] { "[A-Za-z0-9]" } else { r"[\p{L}\p{N}]" };
        format!(r"{before}{space}[\p{{L}}\p{{N}}]")
    });
    let places: Vec<String> = places.collect();
    if places.is_empty() { None } else { Regex::new(&places.join("|")).ok() }
}

/// For each ASCII character, returns 1 divided by the length in bytes of the longest token that
/// contains the character. For all characters of a token, these fractions add up to at most 1. So
/// their sum over a text is a lower bound for the number of its tokens.
fn shares(vocabulary: &HashMap<String, u32>, added: &[AddedToken], byte_level: bool) -> [f64; 128] {
    let mut longest = [1usize; 128];
    let text = |token: &String| match byte_level {
        true => bytes_of(token),
        false => token.replace('▁', " ").into_bytes(),
    };
    let takes_spaces = added.iter().any(|token| token.lstrip || token.rstrip);
    let added = added.iter().map(|token| token.content.clone().into_bytes());
    for text in vocabulary.keys().map(text).chain(added) {
        for byte in &text {
            if let Some(longest) = longest.get_mut(usize::from(*byte)) {
                *longest = text.len().max(*longest);
            }
        }
    }
    let mut shares = longest.map(|longest| 1.0 / longest as f64);
    if takes_spaces {
        // An added token with `lstrip` or `rstrip` includes any number of spaces beside it, so
        // spaces do not count.
        for (byte, share) in (0u8..).zip(&mut shares) {
            if byte.is_ascii_whitespace() || byte == 0x0b {
                *share = 0.0;
            }
        }
    }
    shares
}
