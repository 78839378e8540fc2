//! Parses the JSON of configurations, as Python writes it.

use serde_json::{Map, Value};

use mlx_primitives::{Error, Result};

/// Parses a JSON object. Python also writes the literals `NaN`, `Infinity` and `-Infinity`, which
/// are not JSON. This function reads them as strings. So this crate accepts them under keys that
/// it does not read, and rejects them where it expects a number.
pub(crate) fn parse_object(json: &str) -> Result<Map<String, Value>> {
    let refuse = |e: serde_json::Error| {
        Error::argument("config", format_args!("a JSON object, got {}", cut(&e.to_string())))
    };
    match serde_json::from_str(json) {
        Ok(object) => Ok(object),
        Err(error) => match without_literals(json) {
            Some(json) => serde_json::from_str(&json).map_err(refuse),
            None => Err(refuse(error)),
        },
    }
}

/// Returns the text with quotes around `NaN`, `Infinity` and `-Infinity`, or `None` if these
/// literals do not occur outside strings.
fn without_literals(json: &str) -> Option<String> {
    let (mut out, mut rest) = (String::with_capacity(json.len()), json);
    let mut found = false;
    while let Some(at) = rest.find(['"', 'N', 'I', '-']) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let literal = ["NaN", "Infinity", "-Infinity"].into_iter().find(|it| from.starts_with(it));
        let taken = match (literal, from.as_bytes().first()) {
            (Some(literal), _) => {
                found = true;
                out.extend(['"'].into_iter().chain(literal.chars()).chain(['"']));
                rest = &from[literal.len()..];
                continue;
            }
            (None, Some(b'"')) => string_length(from),
            (None, _) => 1,
        };
        out.push_str(&from[..taken]);
        rest = &from[taken..];
    }
    out.push_str(rest);
    found.then_some(out)
}

/// Returns the length in bytes of the string literal at the start of the text. If the literal does
/// not end, this is the length of the text.
fn string_length(text: &str) -> usize {
    let mut escaped = true; // the opening quote
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the start of a text, for error messages.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the start of a value's JSON, for error messages.
pub(crate) fn short(value: &Value) -> String {
    cut(&value.to_string())
}
