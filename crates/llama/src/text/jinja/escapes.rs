//! Escapes strings for HTML and for URLs.

use super::budget::{Budget, Buffer, Outcome};
use super::iteration::values;
use super::methods::items;
use super::python::text_of;
use super::value::{SequenceKind, Value};

pub fn escape(budget: &Budget, of: &str) -> Outcome<Value> {
    let mut to = Buffer::new(budget)?;
    for c in of.chars() {
        match c {
            '&' => to.push("&amp;")?,
            '<' => to.push("&lt;")?,
            '>' => to.push("&gt;")?,
            '\'' => to.push("&#39;")?,
            '"' => to.push("&#34;")?,
            c => to.character(c)?,
        }
    }
    Ok(Value::of(to))
}

pub fn urlencode(budget: &Budget, value: &Value) -> Outcome<Value> {
    let mut to = Buffer::new(budget)?;
    let quote = |to: &mut Buffer, text: &str, query: bool| -> Outcome<()> {
        for byte in text.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                    to.character(char::from(byte))?;
                }
                b'/' if !query => to.push("/")?,
                b' ' if query => to.push("+")?,
                byte => to.push(&format!("%{byte:02X}"))?,
            }
        }
        Ok(())
    };
    let pairs = match value {
        Value::Dict(_) => items(budget, value, SequenceKind::List)?,
        Value::Sequence(_) => value.clone(),
        other => {
            let text = text_of(budget, other)?;
            quote(&mut to, text.as_str().unwrap_or_default(), false)?;
            return Ok(Value::of(to));
        }
    };
    for (i, pair) in values(budget, &pairs)?.iter().enumerate() {
        to.push(if i > 0 { "&" } else { "" })?;
        for (j, part) in values(budget, pair)?.iter().enumerate() {
            to.push(if j > 0 { "=" } else { "" })?;
            let part = text_of(budget, part)?;
            quote(&mut to, part.as_str().unwrap_or_default(), true)?;
        }
    }
    Ok(Value::of(to))
}
