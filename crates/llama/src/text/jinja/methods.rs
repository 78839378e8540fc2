//! The methods of Python's strings, lists and dictionaries.

use super::arguments::Arguments;
use super::braces::braces;
use super::budget::{Budget, Buffer, Items, Outcome, fault};
use super::iteration::values;
use super::python::{equal, field, insert};
use super::syntax::Name;
use super::text_methods::{self, METHODS};
use super::value::{SequenceKind, Value};

/// Methods of Python types that this engine does not support. Some would change a value in place,
/// and chat templates do not need the others.
const REFUSED: [(&str, &[&str]); 5] = [
    ("str", &["format_map", "maketrans", "translate"]),
    ("list", &["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"]),
    ("dict", &["clear", "fromkeys", "pop", "popitem", "setdefault", "update"]),
    (
        "int",
        &["bit_length", "bit_count", "to_bytes", "from_bytes", "conjugate", "as_integer_ratio"],
    ),
    ("float", &["hex", "fromhex", "conjugate", "as_integer_ratio"]),
];

/// Whether the type of a value has a method with this name in Python. The method may be unsupported
/// here.
pub fn exists(value: &Value, name: &str) -> bool {
    let refused =
        REFUSED.iter().any(|(kind, names)| *kind == value.kind() && names.contains(&name));
    refused
        || match value {
            Value::Text(_) => METHODS.contains(&name),
            Value::Bytes(_) => name == "decode",
            Value::Sequence(s) => {
                matches!(s.kind, SequenceKind::List | SequenceKind::Tuple | SequenceKind::Group)
                    && matches!(name, "index" | "count")
                    || name == "copy" && s.kind == SequenceKind::List
            }
            Value::Dict(_) => matches!(name, "items" | "keys" | "values" | "get" | "copy"),
            Value::Float(_) => name == "is_integer",
            Value::Loop(_) => matches!(name, "cycle" | "changed"),
            _ => false,
        }
}

/// Calls a method. `part` finds a part of a value by its name: an attribute if the last argument of
/// `part` is `true`, otherwise an item.
pub fn call(
    budget: &Budget,
    value: &Value,
    name: &Name,
    arguments: Arguments,
    part: &dyn Fn(&Value, &str, bool) -> Outcome<Value>,
) -> Outcome<Value> {
    match value {
        Value::Text(text) if &**name == "format" => {
            braces(budget, &text.text, &arguments.positional, &arguments.named, part)
        }
        Value::Text(text) if METHODS.contains(&&**name) => {
            text_methods::call(budget, &text.text, name, arguments)
        }
        Value::Bytes(text) if &**name == "decode" => Value::text(budget, &text.text),
        Value::Sequence(s) if &**name == "copy" && s.kind == SequenceKind::List => {
            Ok(value.clone())
        }
        Value::Sequence(s) if matches!(&**name, "index" | "count") => {
            let [sought] = arguments.bind(name, ["value"], 1)?;
            let sought = sought.unwrap_or(Value::None);
            let mut count = 0;
            for (i, item) in s.items.iter().enumerate() {
                if equal(budget, item, &sought)? {
                    if &**name == "index" {
                        return Ok(Value::Int(i as i128));
                    }
                    count += 1;
                }
            }
            match &**name {
                "index" => fault("the index of a value that is not in the list"),
                _ => Ok(Value::Int(count)),
            }
        }
        Value::Dict(dict) => {
            let parts = dict.fields.iter();
            match &**name {
                "get" => {
                    let [key, default] = arguments.bind(name, ["key", "default"], 1)?;
                    let key = key.unwrap_or(Value::None);
                    let found = field(budget, &dict.fields, &key)?.cloned();
                    Ok(found.or(default).unwrap_or(Value::None))
                }
                "keys" => {
                    Value::collect(budget, SequenceKind::Keys, parts.map(|(key, _)| key.clone()))
                }
                "values" => {
                    Value::collect(budget, SequenceKind::Values, parts.map(|(_, v)| v.clone()))
                }
                "items" => items(budget, value, SequenceKind::Items),
                "copy" => Ok(value.clone()),
                other => refused(value, other),
            }
        }
        Value::Float(float) if &**name == "is_integer" => {
            Ok(Value::Bool(float.is_finite() && float.fract() == 0.0))
        }
        Value::Loop(state) if &**name == "cycle" => {
            let count = arguments.positional.len().max(1);
            let at = state.index.get() % count;
            match arguments.positional.get(at) {
                Some(value) => Ok(value.clone()),
                None => fault("loop.cycle without values"),
            }
        }
        Value::Loop(state) => {
            let values = Value::collect(budget, SequenceKind::Tuple, arguments.positional)?;
            let mut last = state.changed.borrow_mut();
            let same = match &*last {
                Some(last) => equal(budget, last, &values)?,
                None => false,
            };
            *last = Some(values);
            Ok(Value::Bool(!same))
        }
        other => refused(other, name),
    }
}

fn refused(value: &Value, name: &str) -> Outcome<Value> {
    let changes = ["list", "dict"].contains(&value.kind()) && name != "copy" && name != "fromkeys";
    let why = if changes { "changes a value" } else { "is not supported" };
    fault(format_args!("the method {name:?} of {}, which {why}", value.kind()))
}

/// Returns the pairs of keys and values of a dictionary.
pub fn items(budget: &Budget, value: &Value, kind: SequenceKind) -> Outcome<Value> {
    let Value::Dict(dict) = value else {
        return match value {
            Value::Undefined(_) => Value::collect(budget, kind, []),
            other => fault(format_args!("the items of a value of type {}", other.kind())),
        };
    };
    let mut pairs = Items::new(budget)?;
    for (key, value) in &dict.fields {
        pairs.push(Value::collect(budget, SequenceKind::Tuple, [key.clone(), value.clone()])?)?;
    }
    Value::sequence(kind, pairs)
}

/// Evaluates `dict(...)`: makes a dictionary from a dictionary or a list of pairs, and from named
/// arguments.
pub fn dict(budget: &Budget, arguments: Arguments) -> Outcome<Value> {
    let mut fields = Items::new(budget)?;
    for given in &arguments.positional {
        if let Value::Dict(dict) = given {
            for (key, value) in &dict.fields {
                insert(budget, &mut fields, key.clone(), value.clone())?;
            }
            continue;
        }
        for pair in values(budget, given)? {
            match &*values(budget, &pair)? {
                [key, value] => insert(budget, &mut fields, key.clone(), value.clone())?,
                _ => return fault("a dictionary of values that are no pairs"),
            }
        }
    }
    if arguments.positional.len() > 1 {
        return fault("dict of more than one value");
    }
    for (name, value) in arguments.named {
        let mut key = Buffer::new(budget)?;
        key.push(&name)?;
        insert(budget, &mut fields, Value::of(key), value)?;
    }
    Value::dict(fields)
}
