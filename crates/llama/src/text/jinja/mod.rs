//! An engine for the part of Jinja that chat templates use: the language, and the filters, tests
//! and Python methods of transformers' sandboxed environment.
//!
//! A template is an untrusted program, so the engine limits every construct. Strings and lists grow
//! only through `Buffer` and `Items` of the module [`budget`], which count their bytes. Every step
//! counts against a time limit. The nesting of the source, of values and of calls is limited. The
//! template runs on a thread whose stack is large enough for the deepest nesting.

mod arguments;
mod arithmetic;
mod attributes;
mod braces;
mod budget;
mod characters;
mod checks;
mod digits;
mod escapes;
mod evaluate;
mod expressions;
mod filters;
mod functions;
mod interpreter;
mod iteration;
mod json;
mod letters;
mod lexer;
mod methods;
mod parser;
mod percent;
mod python;
mod sequences;
mod syntax;
mod text_methods;
mod token_reader;
mod value;

use std::thread;

use serde_json::Map;

use mlx_primitives::support::panic_message;

use budget::{Budget, Buffer, Fault, Items, MOST_NESTED, Outcome, fault};
use interpreter::Interpreter;
use value::{SequenceKind, Value};

/// The maximum size in bytes of a template's strings and values at a time, in addition to four
/// times the size of the input.
const MOST_BYTES: usize = 48 << 20;

/// The size of the thread's stack in bytes. Only the pages that the thread touches take memory.
const STACK: usize = 64 << 20;

/// Renders a template, or returns the reason why it cannot be rendered.
pub fn render(
    source: &str,
    variables: &Map<String, serde_json::Value>,
) -> std::result::Result<String, String> {
    let run = || rendered(source, variables).map_err(|Fault(reason)| reason);
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("chat template".to_owned()).stack_size(STACK);
        match thread.spawn_scoped(scope, run) {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|panic| Err(format!("a panic: {}", panic_message(&*panic)))),
            Err(error) => Err(format!("no thread for the template: {error}")),
        }
    })
}

fn rendered(source: &str, variables: &Map<String, serde_json::Value>) -> Outcome<String> {
    let mut input = source.len();
    for (name, value) in variables {
        input += name.len() + size(value, 0)?;
    }
    let budget = Budget::new(MOST_BYTES.saturating_add(input.saturating_mul(4)));
    let body = parser::parse(source)?;
    let mut named = Vec::new();
    for (name, value) in variables {
        named.push((name.as_str().into(), from_json(&budget, value)?));
    }
    let mut text = Buffer::new(&budget)?;
    Interpreter::new(budget).run(&body, named, &mut text)?;
    Ok(text.into_parts().0)
}

/// Returns the size of a value in bytes, or a fault if the value is nested too deeply.
fn size(value: &serde_json::Value, depth: u32) -> Outcome<usize> {
    if depth > MOST_NESTED {
        return fault(format_args!("values nested more than {MOST_NESTED} times"));
    }
    Ok(match value {
        serde_json::Value::String(text) => 64 + text.len(),
        serde_json::Value::Array(items) => {
            items.iter().try_fold(64, |all, item| Ok(all + 64 + size(item, depth + 1)?))?
        }
        serde_json::Value::Object(fields) => fields.iter().try_fold(64, |all, (name, value)| {
            Ok(all + 128 + name.len() + size(value, depth + 1)?)
        })?,
        _ => 64,
    })
}

fn from_json(budget: &Budget, value: &serde_json::Value) -> Outcome<Value> {
    Ok(match value {
        serde_json::Value::Null => Value::None,
        serde_json::Value::Bool(value) => Value::Bool(*value),
        serde_json::Value::Number(number) => {
            let int = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
            match int {
                Some(int) => Value::Int(int),
                None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            }
        }
        serde_json::Value::String(text) => Value::text(budget, text)?,
        serde_json::Value::Array(values) => {
            let mut items = Items::new(budget)?;
            for value in values {
                items.push(from_json(budget, value)?)?;
            }
            Value::sequence(SequenceKind::List, items)?
        }
        serde_json::Value::Object(values) => {
            let mut fields = Items::new(budget)?;
            for (name, value) in values {
                fields.push((Value::text(budget, name)?, from_json(budget, value)?))?;
            }
            Value::dict(fields)?
        }
    })
}
