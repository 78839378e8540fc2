//! Python's operations on values: conversion to strings, equality, ordering, and access to
//! dictionary entries.

use std::cmp::Ordering;
use std::rc::Rc;

use super::budget::{Budget, Buffer, Items, Outcome, fault};
use super::characters::printable;
use super::value::{SequenceKind, Value};

/// Converts a value to a string as Python's `str` does.
pub fn text_of(budget: &Budget, value: &Value) -> Outcome<Value> {
    match value {
        Value::Text(_) => Ok(value.clone()),
        other => {
            let mut buffer = Buffer::new(budget)?;
            write_text(&mut buffer, budget, other)?;
            Ok(Value::of(buffer))
        }
    }
}

/// Appends a value as Python's `str` formats it.
pub fn write_text(to: &mut Buffer, budget: &Budget, value: &Value) -> Outcome<()> {
    match value {
        Value::Text(text) => to.push(&text.text),
        other => write_repr(to, budget, other),
    }
}

/// Appends a value as Python's `repr` formats it.
pub fn write_repr(to: &mut Buffer, budget: &Budget, value: &Value) -> Outcome<()> {
    budget.steps(1)?;
    match value {
        Value::Undefined(_) => Ok(()),
        Value::None => to.push("None"),
        Value::Bool(true) => to.push("True"),
        Value::Bool(false) => to.push("False"),
        Value::Int(value) => to.push(&value.to_string()),
        Value::Float(value) => to.push(&float(*value)),
        Value::Text(text) => quoted(to, &text.text, false),
        Value::Bytes(text) => {
            to.push("b")?;
            quoted(to, &text.text, true)
        }
        Value::Sequence(sequence) => {
            let (open, close) = match sequence.kind {
                SequenceKind::List => ("[", "]"),
                SequenceKind::Tuple | SequenceKind::Group => ("(", ")"),
                SequenceKind::Keys => ("dict_keys([", "])"),
                SequenceKind::Values => ("dict_values([", "])"),
                SequenceKind::Items => ("dict_items([", "])"),
                SequenceKind::Generator => {
                    return fault("the text of a generator, which names no values: use `| list`");
                }
            };
            to.push(open)?;
            for (i, item) in sequence.items.iter().enumerate() {
                to.push(if i > 0 { ", " } else { "" })?;
                write_inner(to, budget, item)?;
            }
            if close == ")" && sequence.items.len() == 1 {
                to.push(",")?;
            }
            to.push(close)
        }
        Value::Dict(dict) => {
            to.push("{")?;
            for (i, (key, value)) in dict.fields.iter().enumerate() {
                to.push(if i > 0 { ", " } else { "" })?;
                write_inner(to, budget, key)?;
                to.push(": ")?;
                write_inner(to, budget, value)?;
            }
            to.push("}")
        }
        Value::Range(range) => {
            let [start, end, step] = **range;
            let step = if step == 1 { String::new() } else { format!(", {step}") };
            to.push(&format!("range({start}, {end}{step})"))
        }
        Value::Namespace(namespace) => {
            to.push("<Namespace {")?;
            for (i, (name, value)) in namespace.fields.borrow().iter().enumerate() {
                to.push(if i > 0 { ", " } else { "" })?;
                quoted(to, name, false)?;
                to.push(": ")?;
                write_inner(to, budget, value)?;
            }
            to.push("}>")
        }
        Value::Loop(state) => {
            let (at, of) = (state.index.get() + 1, state.items.items.len());
            to.push(&format!("<LoopContext {at}/{of}>"))
        }
        other => fault(format_args!("the text of a {}, which is not supported", other.kind())),
    }
}

fn write_inner(to: &mut Buffer, budget: &Budget, value: &Value) -> Outcome<()> {
    match value {
        Value::Undefined(_) => to.push("Undefined"),
        other => write_repr(to, budget, other),
    }
}

/// Formats a number as Python's `repr` does: with the fewest digits that parse as the same number,
/// and with an exponent if the absolute value is at least 1e16, or below 1e-4 but not 0.
pub fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
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

fn quoted(to: &mut Buffer, text: &str, ascii: bool) -> Outcome<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    to.character(quote)?;
    for c in text.chars() {
        match c {
            '\n' => to.push("\\n")?,
            '\r' => to.push("\\r")?,
            '\t' => to.push("\\t")?,
            '\\' => to.push("\\\\")?,
            c if c == quote => {
                to.push("\\")?;
                to.character(c)?;
            }
            ' '..='~' => to.character(c)?,
            c if ascii => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    to.push(&format!("\\x{byte:02x}"))?;
                }
            }
            c if printable(c) => to.character(c)?,
            c => to.push(&match u32::from(c) {
                code @ ..0x100 => format!("\\x{code:02x}"),
                code @ ..0x10000 => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            })?,
        }
    }
    to.character(quote)
}

/// Whether two values are equal in Python.
pub fn equal(budget: &Budget, a: &Value, b: &Value) -> Outcome<bool> {
    budget.steps(1)?;
    Ok(match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Text(a), Value::Text(b)) | (Value::Bytes(a), Value::Bytes(b)) => {
            budget.steps(a.text.len() / 64)?;
            a.text == b.text
        }
        (Value::Sequence(a), Value::Sequence(b)) => {
            let kind = |kind| if kind == SequenceKind::Group { SequenceKind::Tuple } else { kind };
            if kind(a.kind) != kind(b.kind)
                || a.kind == SequenceKind::Generator
                || a.kind == SequenceKind::Values
            {
                return Ok(Rc::ptr_eq(a, b));
            }
            if a.items.len() != b.items.len() {
                return Ok(false);
            }
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(budget, a, b)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.fields.len() != b.fields.len() {
                return Ok(false);
            }
            for (key, value) in &a.fields {
                match field(budget, &b.fields, key)? {
                    Some(other) if equal(budget, value, other)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Range(a), Value::Range(b)) => a == b,
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
        (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
        (Value::Function(a), Value::Function(b)) => a == b,
        _ => match (a.as_int(), b.as_int()) {
            (Some(a), Some(b)) => a == b,
            _ => match (a.as_float(), b.as_float()) {
                (Some(a), Some(b)) => a == b,
                _ => false,
            },
        },
    })
}

/// Compares two values. Returns a fault if Python does not order values of these types.
pub fn order(budget: &Budget, a: &Value, b: &Value) -> Outcome<Option<Ordering>> {
    budget.steps(1)?;
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => {
            budget.steps(a.text.len() / 64)?;
            Ok(Some(a.text.cmp(&b.text)))
        }
        (Value::Sequence(x), Value::Sequence(y))
            if x.kind == y.kind && matches!(x.kind, SequenceKind::List | SequenceKind::Tuple) =>
        {
            for (a, b) in x.items.iter().zip(&y.items) {
                if !equal(budget, a, b)? {
                    return order(budget, a, b);
                }
            }
            Ok(Some(x.items.len().cmp(&y.items.len())))
        }
        _ => match (a.as_int(), b.as_int()) {
            (Some(a), Some(b)) => Ok(Some(a.cmp(&b))),
            _ => match (a.as_float(), b.as_float()) {
                (Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
                _ => fault(format_args!(
                    "an order of {} and {}, which have none",
                    described(a),
                    described(b)
                )),
            },
        },
    }
}

/// Describes a value for an error message.
pub fn described(value: &Value) -> String {
    match value {
        Value::Undefined(name) => format!("the undefined {:?}", name),
        other => format!("a value of type {}", other.kind()),
    }
}

/// Sorts items with a stable sort, as Python does. `less` compares two items.
pub fn sorted<T: Clone>(
    budget: &Budget,
    items: &[T],
    less: &dyn Fn(&T, &T) -> Outcome<bool>,
) -> Outcome<Vec<T>> {
    budget.steps(items.len())?;
    if items.len() < 2 {
        return Ok(items.to_vec());
    }
    let (left, right) = items.split_at(items.len() / 2);
    let (left, right) = (sorted(budget, left, less)?, sorted(budget, right, less)?);
    let mut merged = Vec::with_capacity(items.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let from = if less(b, a)? { &mut right } else { &mut left };
        merged.extend(from.next());
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}

/// Returns the value of a key; `None` if the key is missing.
pub fn field<'a>(
    budget: &Budget,
    fields: &'a [(Value, Value)],
    key: &Value,
) -> Outcome<Option<&'a Value>> {
    if let Some(key) = key.as_str() {
        budget.steps(1 + fields.len() / 16)?;
        let found = fields.iter().find(|(name, _)| name.as_str() == Some(key));
        return Ok(found.map(|(_, value)| value));
    }
    for (name, value) in fields {
        if equal(budget, name, key)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// Adds an entry to the entries of a new dictionary. If the key exists already, replaces its value.
pub fn insert(
    budget: &Budget,
    fields: &mut Items<(Value, Value)>,
    key: Value,
    value: Value,
) -> Outcome<()> {
    if !hashable(budget, &key)? {
        return fault(format_args!("{} as a key, which cannot be one", described(&key)));
    }
    if field(budget, fields.items(), &key)?.is_none() {
        return fields.push((key, value));
    }
    for (name, old) in fields.items_mut() {
        if equal(budget, name, &key)? {
            *old = value;
            break;
        }
    }
    Ok(())
}

/// Whether a value can be a dictionary key. A tuple may contain another tuple many times, so each
/// visit counts as a step.
pub fn hashable(budget: &Budget, value: &Value) -> Outcome<bool> {
    budget.steps(1)?;
    Ok(match value {
        Value::Sequence(s) if matches!(s.kind, SequenceKind::Tuple | SequenceKind::Group) => {
            for item in s.items.iter() {
                if !hashable(budget, item)? {
                    return Ok(false);
                }
            }
            true
        }
        Value::Sequence(_) | Value::Dict(_) | Value::Namespace(_) => false,
        _ => true,
    })
}
