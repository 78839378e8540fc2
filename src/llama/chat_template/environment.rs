//! The Jinja environment of chat templates.

use std::fmt::Write as _;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};

use super::json::{self, Style};
use super::limits;
use crate::transforms::panic_message;

/// The most instructions of a template: some hundred times those for a long conversation.
const FUEL: u64 = 5_000_000;

/// The greatest depth of nested calls.
const DEPTH: usize = 100;

/// Renders at most `most` bytes, or returns the fault of the template.
pub(super) fn render(
    source: &str,
    context: serde_json::Map<String, serde_json::Value>,
    most: usize,
) -> Result<String, String> {
    let mut output = Limited { bytes: Vec::new(), most, exceeded: false };
    let source = without_generation_tags(source);
    let rendered = catch_unwind(AssertUnwindSafe(|| {
        let environment = environment()?;
        let template = environment.template_from_str(&source)?;
        template.render_captured_to(Serde(&context), &mut output).map(|_| ())
    }));
    // minijinja panics, for instance, for the remainder of a division by zero.
    let rendered = match rendered {
        Ok(rendered) => rendered,
        Err(payload) => return Err(format!("a panic: {}", panic_message(&*payload))),
    };
    match rendered {
        _ if output.exceeded => Err(format!("more than {most} bytes")),
        Ok(()) => String::from_utf8(output.bytes).map_err(|e| e.to_string()),
        Err(error) if error.kind() == ErrorKind::OutOfFuel => {
            Err("one that does not end".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

fn environment<'a>() -> Result<Environment<'a>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(DEPTH);
    limits::add_to(&mut environment);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", strftime_now);
    Ok(environment)
}

/// Writes JSON as Python's `json.dumps` does with the defaults of transformers: without HTML
/// escapes and ASCII escapes.
fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "an undefined value has no JSON"));
    }
    let indent: Option<Value> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let style = Style {
        indent: match indent.filter(|indent| !indent.is_none()) {
            None => None,
            Some(indent) if indent.kind() == ValueKind::String => Some(indent.to_string()),
            Some(indent) => {
                let count = indent.as_usize().filter(|count| *count <= 64).ok_or_else(|| {
                    Error::new(ErrorKind::InvalidOperation, "an indent of at most 64 spaces")
                })?;
                Some(" ".repeat(count))
            }
        },
        separators: match separators.as_deref() {
            None => None,
            Some([item, key]) => Some([item.clone(), key.clone()]),
            Some(_) => {
                return Err(Error::new(ErrorKind::InvalidOperation, "two separators are expected"));
            }
        },
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let value = serde_json::to_value(value)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    Ok(json::dumps(&value, &style))
}

fn strftime_now(format: String) -> Result<String, Error> {
    let mut text = String::new();
    write!(text, "{}", chrono::Local::now().format(&format))
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("not a date: {format}")))?;
    Ok(text)
}

/// Replaces `{% generation %}` of transformers, which marks the text of a model, by tags that
/// render the text between them.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        text.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let inner = tag.trim_start_matches("{%").trim_end_matches("%}");
        let name = inner.trim_matches(['-', '+', ' ', '\t', '\r', '\n']);
        let replaced = match name {
            "generation" => inner.replace("generation", "if true"),
            "endgeneration" => inner.replace("endgeneration", "endif"),
            _ => inner.to_owned(),
        };
        text.push_str("{%");
        text.push_str(&replaced);
        text.push_str("%}");
        rest = after;
    }
    text.push_str(rest);
    text
}

/// A writer of a limited number of bytes.
struct Limited {
    bytes: Vec<u8>,
    most: usize,
    exceeded: bool,
}

impl io::Write for &mut Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.most - self.bytes.len() {
            self.exceeded = true;
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
