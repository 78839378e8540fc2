//! Checks a `tokenizer.json` before the `tokenizers` crate reads it. Tables must have at least the
//! length that they state, regular expressions and templates must not be too large, and the
//! components must not lengthen a text so much that it fills the memory.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use serde_json::Value;

use mlx_primitives::{Error, Result};

/// The maximum factor by which a tokenizer may lengthen a text. Real tokenizers stay below 100.
const MOST_GROWTH: f64 = 4096.0;

/// The maximum number of characters and character classes in a regular expression. `a{50}` counts
/// as 50. Real tokenizers have less than a tenth of this number.
const MOST_ATOMS: u64 = 2_000;

/// The maximum number of items in a template of `TemplateProcessing`. Real tokenizers have fewer
/// than ten.
const MOST_PIECES: usize = 1_000;

/// Decodes base64 as the `tokenizers` crate does, with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The components in a file that process texts and tokens.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
}

/// Returns an error for components that must not be run. The `tokenizers` crate reports other
/// faults of a file.
pub(crate) fn check(json: &[u8]) -> Result<()> {
    // This reads all of the JSON. Otherwise the `tokenizers` crate would find a fault at the end of
    // the JSON only after it has built the components.
    let Parts { normalizer, pre_tokenizer, post_processor, decoder } = serde_json::from_slice(json)
        .map_err(|e| refused(format_args!("a usable tokenizer in JSON, got {e}")))?;
    for part in [&normalizer, &pre_tokenizer, &post_processor, &decoder] {
        check_tables(part)?;
        check_patterns(part)?;
    }
    let pieces =
        |name: &str| post_processor.get(name).and_then(Value::as_array).map_or(0, Vec::len);
    let pieces = pieces("single").max(pieces("pair"));
    if pieces > MOST_PIECES {
        return Err(refused(format_args!(
            "a template of at most {MOST_PIECES} pieces, got {pieces}"
        )));
    }
    // Each component may lengthen the result of the previous component.
    let encoding = growth(&normalizer) * growth(&pre_tokenizer) * growth(&post_processor);
    for growth in [encoding, growth(&decoder)] {
        if growth > MOST_GROWTH {
            return Err(refused(format_args!(
                "parts that make a text at most {MOST_GROWTH} times as long, got {growth:e}"
            )));
        }
    }
    Ok(())
}

fn refused(expected: std::fmt::Arguments) -> Error {
    Error::argument("tokenizer", expected)
}

/// The values inside a list or an object.
fn inner(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

/// Checks SentencePiece's normalization tables. A table begins with the length of its data, and the
/// `tokenizers` crate allocates memory of this length.
fn check_tables(part: &Value) -> Result<()> {
    if let Some(Value::String(table)) = part.get("precompiled_charsmap") {
        let bytes = BASE64
            .decode(table)
            .map_err(|e| refused(format_args!("a precompiled_charsmap of base64, got {e}")))?;
        let length = bytes
            .split_first_chunk::<4>()
            .map(|(length, rest)| (u64::from(u32::from_le_bytes(*length)), rest.len() as u64));
        if length.is_none_or(|(said, found)| said > found) {
            return Err(refused(format_args!("a whole precompiled_charsmap, got a part of one")));
        }
    }
    inner(part).into_iter().try_for_each(check_tables)
}

/// Checks the regular expressions of a component. The time to process a text grows with the number
/// of characters and classes in an expression, in which `a{50}` counts as 50.
fn check_patterns(part: &Value) -> Result<()> {
    if let Some(Value::String(pattern)) = part.get("Regex") {
        let atoms = atoms(pattern);
        if atoms > MOST_ATOMS {
            return Err(refused(format_args!(
                "a regular expression of at most {MOST_ATOMS} parts, got {atoms}"
            )));
        }
    }
    inner(part).into_iter().try_for_each(check_patterns)
}

/// Counts the characters and character classes of a regular expression, with counted repetitions
/// expanded. The result may be too large for an unusual expression, but never too small.
fn atoms(pattern: &str) -> u64 {
    // `sums` has the count so far for the whole expression and for each open group. `last` is the
    // count for the last element of the innermost group.
    let (mut sums, mut last) = (vec![0u64], 0u64);
    let mut chars = pattern.chars().peekable();
    let mut class = false;
    while let Some(c) = chars.next() {
        let add = match c {
            '\\' => {
                let property = chars.next().is_some_and(|c| "pPxu".contains(c));
                if property && chars.peek() == Some(&'{') {
                    chars.by_ref().find(|c| *c == '}');
                }
                1
            }
            ']' => {
                class = false;
                1
            }
            _ if class => continue,
            '?' | '*' | '+' => continue,
            '(' => {
                sums.push(0);
                continue;
            }
            ')' => {
                last = if sums.len() > 1 { sums.pop().unwrap_or(0) } else { 0 };
                if let Some(sum) = sums.last_mut() {
                    *sum = sum.saturating_add(last);
                }
                continue;
            }
            '{' => {
                let inside: String = chars.clone().take_while(|c| *c != '}').collect();
                let most = match inside.chars().all(|c| c.is_ascii_digit() || c == ',' || c == ' ')
                {
                    true => {
                        chars.nth(inside.len());
                        inside.split(',').filter_map(|n| n.trim().parse().ok()).max()
                    }
                    false => None,
                };
                let before = last;
                last = last.saturating_mul(most.unwrap_or(1).max(1));
                if let Some(sum) = sums.last_mut() {
                    *sum = sum.saturating_add(last - before);
                }
                continue;
            }
            '[' => {
                class = true;
                1
            }
            _ => 1,
        };
        last = add;
        if let Some(sum) = sums.last_mut() {
            *sum = sum.saturating_add(add);
        }
    }
    sums.into_iter().fold(0, u64::saturating_add)
}

/// Returns the maximum factor by which a component may lengthen a text.
fn growth(part: &Value) -> f64 {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    let own = match kind {
        // A byte may become a two-byte character.
        "ByteLevel" => 2.0,
        // One character may become eighteen characters.
        "NFKC" | "NFKD" | "Precompiled" => 18.0,
        _ => replacement_growth(part).max(template_growth(part)),
    };
    inner(part).into_iter().fold(own, |all, part| all * growth(part))
}

/// Returns the maximum factor by which `Replace` or `Metaspace` may lengthen a text.
fn replacement_growth(part: &Value) -> f64 {
    let length = |name: &str| part.get(name).and_then(Value::as_str).map(str::len);
    let Some(content) = length("content").or(length("replacement")) else { return 1.0 };
    let pattern = match part.get("pattern").and_then(|pattern| pattern.get("String")) {
        Some(Value::String(pattern)) => pattern.len(),
        // `Metaspace` replaces one character. A regular expression may match the empty string
        // between two characters.
        _ => usize::from(part.get("pattern").is_none()),
    };
    match pattern {
        0 => 1.0 + content as f64,
        length => (content as f64 / length as f64).max(1.0),
    }
}

/// Returns the maximum factor by which `TemplateProcessing` may lengthen a text. The template may
/// repeat the text.
fn template_growth(part: &Value) -> f64 {
    let template = part.get("single").and_then(Value::as_array).map(Vec::as_slice);
    template.unwrap_or_default().iter().filter(|item| item.get("Sequence").is_some()).count().max(1)
        as f64
}
