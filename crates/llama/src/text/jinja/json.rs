//! Writes JSON as Python's `json.dumps` does with the defaults of transformers: HTML characters and
//! non-ASCII characters are not escaped.

use super::arguments::{Arguments, count, text};
use super::budget::{Budget, Buffer, Outcome, fault};
use super::iteration::values;
use super::python::{described, float, order, sorted};
use super::value::{SequenceKind, Value};

/// The maximum number of spaces of one indentation level.
const MOST_SPACES: usize = 64;

struct Style {
    /// The indentation of one level. With `None`, everything is on one line.
    indent: Option<String>,
    /// The separator between items, and the separator between a key and its value.
    separators: [String; 2],
    sort_keys: bool,
    ensure_ascii: bool,
}

/// The filter `tojson`.
pub fn tojson(budget: &Budget, value: &Value, arguments: Arguments) -> Outcome<Value> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sort] = arguments.bind("tojson", names, 0)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Text(indent)) if indent.text.len() <= MOST_SPACES => Some(indent.text.clone()),
        Some(other) => match count(Some(&other), 0)? {
            spaces @ ..=MOST_SPACES => Some(" ".repeat(spaces)),
            _ => return fault(format_args!("an indent of at most {MOST_SPACES} spaces")),
        },
    };
    let separators = match separators {
        None | Some(Value::None) => {
            [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()]
        }
        Some(given) => match &*values(budget, &given)? {
            [item, key] => {
                let part = |value: &Value| {
                    let value = Some(value.clone());
                    Ok(text(&value, "separators")?.unwrap_or_default().to_owned())
                };
                [part(item)?, part(key)?]
            }
            _ => return fault("two separators"),
        },
    };
    let truth = |value: Option<Value>| value.is_some_and(|value| value.truth());
    let style = Style { indent, separators, sort_keys: truth(sort), ensure_ascii: truth(ascii) };
    let mut to = Buffer::new(budget)?;
    write(budget, &mut to, value, &style, 1)?;
    Ok(Value::of(to))
}

fn write(
    budget: &Budget,
    to: &mut Buffer,
    value: &Value,
    style: &Style,
    level: usize,
) -> Outcome<()> {
    budget.steps(1)?;
    match value {
        Value::None => to.push("null"),
        Value::Bool(true) => to.push("true"),
        Value::Bool(false) => to.push("false"),
        Value::Int(value) => to.push(&value.to_string()),
        Value::Float(value) => to.push(&number(*value)),
        Value::Text(value) => string(to, &value.text, style),
        Value::Sequence(s)
            if matches!(s.kind, SequenceKind::List | SequenceKind::Tuple | SequenceKind::Group) =>
        {
            to.push("[")?;
            for (i, item) in s.items.iter().enumerate() {
                to.push(if i > 0 { &style.separators[0] } else { "" })?;
                line(to, style, level)?;
                write(budget, to, item, style, level + 1)?;
            }
            if !s.items.is_empty() {
                line(to, style, level - 1)?;
            }
            to.push("]")
        }
        Value::Dict(dict) => {
            let mut fields: Vec<&(Value, Value)> = dict.fields.iter().collect();
            if style.sort_keys {
                fields = sorted(budget, &fields, &|a, b| {
                    Ok(order(budget, &a.0, &b.0)?.is_some_and(|order| order.is_lt()))
                })?;
            }
            to.push("{")?;
            for (i, (key, value)) in fields.iter().enumerate() {
                to.push(if i > 0 { &style.separators[0] } else { "" })?;
                line(to, style, level)?;
                match key {
                    Value::Text(key) => string(to, &key.text, style)?,
                    Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                        to.push("\"")?;
                        write(budget, to, key, style, level)?;
                        to.push("\"")?;
                    }
                    other => return fault(format_args!("JSON with {} as a key", described(other))),
                }
                to.push(&style.separators[1])?;
                write(budget, to, value, style, level + 1)?;
            }
            if !fields.is_empty() {
                line(to, style, level - 1)?;
            }
            to.push("}")
        }
        other => fault(format_args!("JSON of {}, which has none", described(other))),
    }
}

fn line(to: &mut Buffer, style: &Style, level: usize) -> Outcome<()> {
    match &style.indent {
        Some(indent) => {
            to.push("\n")?;
            to.repeat(indent, level)
        }
        None => Ok(()),
    }
}

fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        value => float(value),
    }
}

fn string(to: &mut Buffer, text: &str, style: &Style) -> Outcome<()> {
    to.push("\"")?;
    let mut from = 0;
    for (at, c) in text.char_indices() {
        let escaped = match c {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            '\u{8}' => "\\b".to_owned(),
            '\u{c}' => "\\f".to_owned(),
            c if c < ' ' || (style.ensure_ascii && (!c.is_ascii() || c == '\u{7f}')) => {
                let mut units = [0; 2];
                c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect()
            }
            _ => continue,
        };
        to.push(text.get(from..at).unwrap_or_default())?;
        to.push(&escaped)?;
        from = at + c.len_utf8();
    }
    to.push(text.get(from..).unwrap_or_default())?;
    to.push("\"")
}
