//! The JSON of configurations, as Python writes it.

use serde_json::{Map, Value};

use mlx_primitives::{Error, Result};

/// Parses an object. The literals `NaN`, `Infinity` and `-Infinity`, which Python writes and JSON
/// does not have, are read as strings. So they are accepted in keys that nobody reads, and refused
/// as numbers.
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

/// The text with quotes around `NaN`, `Infinity` and `-Infinity`, or `None` if it has none of them
/// outside of strings.
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

/// The length in bytes of the string at the beginning of the text, or of the whole text if the
/// string does not end.
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

/// The beginning of a text, to quote in errors.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The beginning of a value's JSON, to quote in errors.
pub(crate) fn short(value: &Value) -> String {
    cut(&value.to_string())
}
