//! Evaluates `value.name` and `value[index]` as Jinja's sandbox does.

use super::arithmetic::item;
use super::budget::{Budget, Outcome, fault};
use super::methods::exists;
use super::python::field;
use super::syntax::Name;
use super::value::{LoopState, SequenceKind, Value};

/// Evaluates `value.name`: an attribute or method, or else an item of that name, or else undefined.
pub fn attribute(budget: &Budget, value: &Value, name: &Name) -> Outcome<Value> {
    budget.steps(1)?;
    match value {
        Value::Undefined(of) => fault(format_args!("{name:?} of {of:?}, which is undefined")),
        _ => Ok(match own(budget, value, name)? {
            Some(found) => found,
            None => named(budget, value, name)?.unwrap_or_else(|| Value::Undefined(name.clone())),
        }),
    }
}

/// Evaluates `value[index]`: an item, or else, if `index` is a string, an attribute or method of
/// that name, or else undefined.
pub fn subscript(budget: &Budget, value: &Value, index: &Value) -> Outcome<Value> {
    budget.steps(1)?;
    if let Some(found) = item(budget, value, index)? {
        return Ok(found);
    }
    let name = match index {
        Value::Text(text) if text.text.len() < 64 => Name::from(&*text.text),
        _ => Name::from("an item"),
    };
    Ok(match index {
        Value::Text(_) => own(budget, value, &name)?.unwrap_or(Value::Undefined(name)),
        _ => Value::Undefined(name),
    })
}

fn own(budget: &Budget, value: &Value, name: &Name) -> Outcome<Option<Value>> {
    Ok(match value {
        Value::Loop(state) if !exists(value, name) => loop_attribute(state, name)?,
        Value::Namespace(namespace) => namespace.get(name),
        Value::Sequence(s) if s.kind == SequenceKind::Group && &**name == "grouper" => {
            s.items.first().cloned()
        }
        Value::Sequence(s) if s.kind == SequenceKind::Group && &**name == "list" => {
            s.items.last().cloned()
        }
        Value::Macro(of) if &**name == "name" => Some(Value::text(budget, &of.definition.name)?),
        Value::Int(_) | Value::Float(_) if &**name == "real" => Some(value.clone()),
        other if exists(other, name) => Some(Value::method(other, name)),
        _ => None,
    })
}

fn named(budget: &Budget, value: &Value, name: &Name) -> Outcome<Option<Value>> {
    match value {
        Value::Dict(dict) => {
            budget.steps(1 + dict.fields.len() / 16)?;
            let found = dict.fields.iter().find(|(key, _)| key.as_str() == Some(name));
            Ok(found.map(|(_, value)| value.clone()))
        }
        _ => Ok(None),
    }
}

fn loop_attribute(state: &LoopState, name: &str) -> Outcome<Option<Value>> {
    let (index, length) = (state.index.get(), state.items.items.len());
    let beside = |at: Option<usize>, missing: &str| {
        let found = at.and_then(|at| state.items.items.get(at).cloned());
        found.unwrap_or_else(|| Value::Undefined(missing.into()))
    };
    let int = |value: usize| Value::Int(value as i128);
    Ok(Some(match name {
        "index" => int(index + 1),
        "index0" => int(index),
        "revindex" => int(length - index.min(length)),
        "revindex0" => int((length - index.min(length)).saturating_sub(1)),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 == length),
        "length" => int(length),
        "depth" => int(state.depth),
        "depth0" => int(state.depth.saturating_sub(1)),
        "previtem" => beside(index.checked_sub(1), "there is no previous item"),
        "nextitem" => beside(index.checked_add(1), "there is no next item"),
        _ => return Ok(None),
    }))
}

/// Returns the value at a path such as `function.name` or `0.role`. Some filters take a path as an
/// argument.
pub fn path(
    budget: &Budget,
    value: &Value,
    path: &Value,
    default: Option<&Value>,
) -> Outcome<Value> {
    let found = |value: &Value, key: &Value| -> Outcome<Value> {
        let found = subscript(budget, value, key)?;
        Ok(default.filter(|_| found.is_undefined()).cloned().unwrap_or(found))
    };
    match path {
        Value::Text(path) => {
            let mut value = value.clone();
            for part in path.text.split('.') {
                let key = match part.parse() {
                    Ok(index) if part.chars().all(|c| c.is_ascii_digit()) => Value::Int(index),
                    _ => Value::text(budget, part)?,
                };
                value = found(&value, &key)?;
            }
            Ok(value)
        }
        index => found(value, index),
    }
}

/// Returns the attribute or the item with a name, for fields of `str.format`.
pub fn by_text(
    budget: &Budget,
    value: &Value,
    name: &str,
    attribute_first: bool,
) -> Outcome<Value> {
    if attribute_first {
        return attribute(budget, value, &name.into());
    }
    let key = match name.parse() {
        Ok(index) => Value::Int(index),
        Err(_) => Value::text(budget, name)?,
    };
    let found = match value {
        Value::Dict(dict) => field(budget, &dict.fields, &key)?.cloned(),
        other => item(budget, other, &key)?,
    };
    found.map_or_else(|| fault(format_args!("a format of the item {name:?}, which is missing")), Ok)
}
