//! What a `tokenizer.json` is checked for before the tokenizer's crate reads it: tables that are as long as
//! they say, and parts that do not multiply a text until it fills the memory.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};

/// How many times as long a text may become, at most. Real tokenizers stay below 100.
const MOST_GROWTH: f64 = 4096.0;

/// As the tokenizer's crate decodes: with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The parts of a file that texts and tokens go through.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
}

/// An error for parts that cannot be; what else is wrong with a file the tokenizer's crate says.
pub(super) fn check(json: &[u8]) -> Result<()> {
    // A file that ends in no JSON is refused for that, but only after its parts have been made.
    let Parts { normalizer, pre_tokenizer, post_processor, decoder } = serde_json::from_slice(json)
        .map_err(|e| refused(format_args!("a usable tokenizer in JSON, got {e}")))?;
    for part in [&normalizer, &pre_tokenizer, &post_processor, &decoder] {
        check_tables(part)?;
    }
    // Each makes more of what the one before it has made.
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

/// The values within one that is a list or an object.
fn inner(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

/// The tables of SentencePiece start with the length of what follows, for which memory is taken.
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

/// How many times as long a part may make what goes through it.
fn growth(part: &Value) -> f64 {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    let own = match kind {
        // Bytes become characters of two bytes.
        "ByteLevel" => 2.0,
        // One character may become eighteen.
        "NFKC" | "NFKD" | "Precompiled" => 18.0,
        _ => replacement_growth(part).max(template_growth(part)),
    };
    inner(part).into_iter().fold(own, |all, part| all * growth(part))
}

/// Of `Replace` and `Metaspace`.
fn replacement_growth(part: &Value) -> f64 {
    let length = |name: &str| part.get(name).and_then(Value::as_str).map(str::len);
    let Some(content) = length("content").or(length("replacement")) else { return 1.0 };
    let pattern = match part.get("pattern").and_then(|pattern| pattern.get("String")) {
        Some(Value::String(pattern)) => pattern.len(),
        // An expression may match a character, or the nothing between two.
        _ => usize::from(part.get("pattern").is_none()),
    };
    match pattern {
        0 => 1.0 + content as f64,
        length => (content as f64 / length as f64).max(1.0),
    }
}

/// Of `TemplateProcessing`, which may name the text more than once.
fn template_growth(part: &Value) -> f64 {
    let template = part.get("single").and_then(Value::as_array).map(Vec::as_slice);
    template.unwrap_or_default().iter().filter(|item| item.get("Sequence").is_some()).count().max(1)
        as f64
}
