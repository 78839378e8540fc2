//! JSON as Python's `json.dumps` writes it.

use std::fmt::Write as _;

use serde_json::{Number, Value};

/// The arguments of `json.dumps`.
#[derive(Default)]
pub(super) struct Style {
    /// The indentation of a level; `None` writes everything on one line.
    pub indent: Option<String>,
    /// The text between items and the text after keys.
    pub separators: Option<[String; 2]>,
    pub sort_keys: bool,
    pub ensure_ascii: bool,
}

pub(super) fn dumps(value: &Value, style: &Style) -> String {
    let [item, key] = match &style.separators {
        Some(separators) => separators.clone(),
        None if style.indent.is_some() => [",".to_owned(), ": ".to_owned()],
        None => [", ".to_owned(), ": ".to_owned()],
    };
    let mut writer = Writer { text: String::new(), style, item, key };
    writer.value(value, 1);
    writer.text
}

struct Writer<'a> {
    text: String,
    style: &'a Style,
    item: String,
    key: String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, level: usize) {
        match value {
            Value::Null => self.text += "null",
            Value::Bool(true) => self.text += "true",
            Value::Bool(false) => self.text += "false",
            Value::Number(number) => self.text += &written(number),
            Value::String(text) => self.string(text),
            Value::Array(items) => {
                let write = |writer: &mut Self, item: &&Value| writer.value(item, level + 1);
                self.items(['[', ']'], items.iter().collect(), level, write);
            }
            Value::Object(fields) => {
                let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
                if self.style.sort_keys {
                    fields.sort_by_key(|(name, _)| *name);
                }
                let write = |writer: &mut Self, (name, value): &(&String, &Value)| {
                    writer.string(name);
                    writer.text += &writer.key.clone();
                    writer.value(value, level + 1);
                };
                self.items(['{', '}'], fields, level, write);
            }
        }
    }

    fn items<T>(
        &mut self,
        [open, close]: [char; 2],
        items: Vec<T>,
        level: usize,
        write: impl Fn(&mut Self, &T),
    ) {
        self.text.push(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.text += &self.item.clone();
            }
            self.line(level);
            write(self, item);
        }
        if !items.is_empty() {
            self.line(level - 1);
        }
        self.text.push(close);
    }

    fn line(&mut self, level: usize) {
        if let Some(indent) = &self.style.indent {
            self.text.push('\n');
            self.text += &indent.repeat(level);
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for c in text.chars() {
            match c {
                '"' => self.text += "\\\"",
                '\\' => self.text += "\\\\",
                '\n' => self.text += "\\n",
                '\r' => self.text += "\\r",
                '\t' => self.text += "\\t",
                '\u{8}' => self.text += "\\b",
                '\u{c}' => self.text += "\\f",
                c if c < ' ' || (self.style.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.text, "\\u{unit:04x}");
                    }
                }
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }
}

/// The text of a number: integers in digits, floats as by Python's `repr`, in the fewest digits
/// that read back the same, with an exponent below 1e-4 and from 1e16 on.
fn written(number: &Number) -> String {
    let Some(value) = number.as_f64().filter(|_| number.is_f64()) else {
        return number.to_string();
    };
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{value:e}");
        return match text.split_once('e') {
            Some((digits, exponent)) => match exponent.strip_prefix('-') {
                Some(exponent) => format!("{digits}e-{exponent:0>2}"),
                None => format!("{digits}e+{exponent:0>2}"),
            },
            None => text,
        };
    }
    format!("{value:?}")
}
