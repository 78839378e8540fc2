//! Checks a `tokenizer.json` before the `tokenizers` crate reads it: tables must have the length
//! that they state, and the parts must not lengthen a text until it fills the memory.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use serde_json::Value;

use mlx_primitives::{Error, Result};

/// The greatest factor by which a text may become longer. Real tokenizers stay below 100.
const MOST_GROWTH: f64 = 4096.0;

/// The most characters and classes of a regular expression, where `a{50}` counts as 50. Real
/// tokenizers have less than a tenth of this number.
const MOST_ATOMS: u64 = 2_000;

/// The most tokens and texts of a `TemplateProcessing`. Real tokenizers have fewer than ten.
const MOST_PIECES: usize = 1_000;

/// Base64 as the `tokenizers` crate decodes it, with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The parts of a file that process texts and tokens.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
}

/// Returns an error for parts that must not be run. The `tokenizers` crate reports other faults of
/// a file.
pub(crate) fn check(json: &[u8]) -> Result<()> {
    // This reads the JSON to its end. The crate would refuse a faulty end only after it has built
    // the parts.
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
    // Each part may lengthen the result of the previous part.
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

/// Checks the tables of SentencePiece. A table begins with the length of its data, and the crate
/// allocates memory of that length.
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

/// Checks the regular expressions of a part. The time to process a text grows with the length of an
/// expression, after its repetitions have been written out.
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

/// The number of characters and classes of a regular expression, with counted repetitions written
/// out. The result may be too large for an odd expression, but never too small.
fn atoms(pattern: &str) -> u64 {
    // The size of each open group so far, and the size of the last element of the innermost group.
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

/// The greatest factor by which a part may lengthen a text.
fn growth(part: &Value) -> f64 {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    let own = match kind {
        // A byte may become a character of two bytes.
        "ByteLevel" => 2.0,
        // One character may become eighteen.
        "NFKC" | "NFKD" | "Precompiled" => 18.0,
        _ => replacement_growth(part).max(template_growth(part)),
    };
    inner(part).into_iter().fold(own, |all, part| all * growth(part))
}

/// The factor by which `Replace` or `Metaspace` may lengthen a text.
fn replacement_growth(part: &Value) -> f64 {
    let length = |name: &str| part.get(name).and_then(Value::as_str).map(str::len);
    let Some(content) = length("content").or(length("replacement")) else { return 1.0 };
    let pattern = match part.get("pattern").and_then(|pattern| pattern.get("String")) {
        Some(Value::String(pattern)) => pattern.len(),
        // `Metaspace` replaces one character. A regular expression may match the empty text between
        // two characters.
        _ => usize::from(part.get("pattern").is_none()),
    };
    match pattern {
        0 => 1.0 + content as f64,
        length => (content as f64 / length as f64).max(1.0),
    }
}

/// The factor by which `TemplateProcessing`, which may repeat the text, may lengthen it.
fn template_growth(part: &Value) -> f64 {
    let template = part.get("single").and_then(Value::as_array).map(Vec::as_slice);
    template.unwrap_or_default().iter().filter(|item| item.get("Sequence").is_some()).count().max(1)
        as f64
}
