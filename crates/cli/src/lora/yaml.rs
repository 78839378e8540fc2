//! Parses the subset of YAML that mlx-lm's configurations use: indented mappings, lists of scalars,
//! and JSON.

use serde_json::{Map, Value};

/// The largest size of a configuration in bytes, and the largest depth of nested mappings.
const BYTES: usize = 1 << 20;
const DEPTH: usize = 8;

/// Parses a mapping. The error names the first line that is not part of a mapping.
pub fn parse(text: &str) -> Result<Map<String, Value>, String> {
    if text.len() > BYTES {
        return Err("expected a configuration of at most 1 MiB".to_owned());
    }
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|e| format!("expected a JSON object, got {e}"));
    }
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = uncommented(line).trim_end();
        let content = line.trim_start_matches(' ');
        if !content.is_empty() && content != "---" {
            lines.push((number, line.len() - content.len(), content));
        }
    }
    let (map, rest) = mapping(&lines, 0, DEPTH)?;
    rest.first().map_or(Ok(map), |line| Err(refused(line, "the indentation of its mapping")))
}

type Line<'a> = (usize, usize, &'a str);

fn refused((number, _, content): &Line, expected: &str) -> String {
    format!("line {number}: expected {expected}, got {content:.80}")
}

/// Returns the part of a line before its comment.
fn uncommented(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (at, letter) in line.char_indices() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None, '#') if before == ' ' => return &line[..at],
            _ => {}
        }
        before = letter;
    }
    line
}

/// Parses the lines with this indentation as a mapping. Also returns the lines after the mapping.
fn mapping<'a, 'b>(
    mut lines: &'b [Line<'a>],
    indent: usize,
    depth: usize,
) -> Result<(Map<String, Value>, &'b [Line<'a>]), String> {
    let mut map = Map::new();
    while let Some((line, rest)) = lines.split_first()
        && line.1 == indent
    {
        let entry = line.2.split_once(':');
        let entry = entry.filter(|(_, value)| value.is_empty() || value.starts_with(' '));
        let Some((key, value)) = entry else { return Err(refused(line, "a key and a colon")) };
        let key = key.trim().trim_matches(['"', '\'']).to_owned();
        lines = rest;
        let value = match (value.trim(), rest.first()) {
            ("", Some(next)) if next.2.starts_with("- ") && next.1 >= indent => {
                let items = rest.iter().take_while(|it| it.1 == next.1 && it.2.starts_with("- "));
                let items: Vec<Value> = items.map(|item| scalar(&item.2[2..])).collect();
                lines = &rest[items.len()..];
                Value::Array(items)
            }
            ("", Some(next)) if next.1 > indent => {
                if depth == 0 {
                    return Err(refused(next, "a mapping that is less deep"));
                }
                let (inner, after) = mapping(rest, next.1, depth - 1)?;
                lines = after;
                Value::Object(inner)
            }
            ("", _) => Value::Null,
            (value, _) if value.starts_with(['&', '*', '|', '>', '!']) => {
                return Err(refused(line, "a plain value"));
            }
            (value, _) => match scalar(value) {
                Value::String(_) if value.starts_with(['[', '{']) => {
                    return Err(refused(line, "lists and mappings in JSON"));
                }
                value => value,
            },
        };
        if map.insert(key, value).is_some() {
            return Err(refused(line, "each key once"));
        }
    }
    Ok((map, lines))
}

/// Parses a value in JSON, or Python's `True` or `False`, or `Null` or `~`. Otherwise returns the
/// text, without quotes, as a string.
fn scalar(text: &str) -> Value {
    let text = text.trim();
    match text {
        "True" => return Value::Bool(true),
        "False" => return Value::Bool(false),
        "~" | "Null" => return Value::Null,
        _ => {}
    }
    let unquoted = || Value::String(text.trim_matches(['"', '\'']).to_owned());
    serde_json::from_str(text).unwrap_or_else(|_| unquoted())
}
