//! Iterates over the items of a value, counts them, and checks whether a value contains another
//! value.

use super::budget::{Budget, Buffer, Items, Outcome, fault};
use super::python::{described, equal, field, hashable};
use super::value::{Sequence, SequenceKind, Value, range_length};

/// Returns the items of a value over which a loop iterates.
pub fn values(budget: &Budget, value: &Value) -> Outcome<Vec<Value>> {
    let mut items = Items::new(budget)?;
    match value {
        Value::Undefined(_) => {}
        Value::Text(text) => {
            for c in text.text.chars() {
                let mut one = Buffer::new(budget)?;
                one.character(c)?;
                items.push(Value::of(one))?;
            }
        }
        Value::Sequence(sequence) => {
            let from = match sequence.kind {
                SequenceKind::Generator => sequence.used.replace(sequence.items.len()),
                _ => 0,
            };
            budget.steps(sequence.items.len() / 8)?;
            return Ok(sequence.items.get(from..).unwrap_or_default().to_vec());
        }
        Value::Dict(dict) => {
            budget.steps(dict.fields.len() / 8)?;
            return Ok(dict.fields.iter().map(|(key, _)| key.clone()).collect());
        }
        Value::Range(range) => {
            let [start, _, step] = **range;
            for i in 0..range_length(range) {
                items.push(Value::Int(start + step * i as i128))?;
            }
        }
        other => return fault(format_args!("a loop over {}", described(other))),
    }
    Ok(items.into_parts().0)
}

/// Returns the first item of a sequence. If the sequence is a generator, returns its next item and
/// consumes the item.
pub fn next(sequence: &Sequence) -> Option<Value> {
    match sequence.kind {
        SequenceKind::Generator => {
            let at = sequence.used.get();
            sequence.used.set(at + 1);
            sequence.items.get(at).cloned()
        }
        _ => sequence.items.first().cloned(),
    }
}

/// The number of items of a value.
pub fn length(value: &Value) -> Outcome<usize> {
    Ok(match value {
        Value::Undefined(_) => 0,
        Value::Text(text) => text.text.chars().count(),
        Value::Bytes(text) => text.text.len(),
        Value::Sequence(s) if s.kind != SequenceKind::Generator => s.items.len(),
        Value::Dict(dict) => dict.fields.len(),
        Value::Range(range) => range_length(range),
        Value::Loop(state) => state.items.items.len(),
        other => return fault(format_args!("the length of {}", described(other))),
    })
}

/// Whether a container contains a value, as Python's `in` defines it.
pub fn contains(budget: &Budget, container: &Value, value: &Value) -> Outcome<bool> {
    match (container, value) {
        (Value::Text(text), Value::Text(part)) => {
            budget.steps(text.text.len() / 64)?;
            Ok(text.text.contains(&part.text))
        }
        (Value::Dict(_), value) if !hashable(budget, value)? => {
            fault(format_args!("{} as a key, which cannot be one", described(value)))
        }
        (Value::Dict(dict), key) => Ok(field(budget, &dict.fields, key)?.is_some()),
        (Value::Text(_), other) => fault(format_args!("{} in a text", described(other))),
        (Value::Sequence(s), value) if s.kind == SequenceKind::Generator => {
            while let Some(item) = next(s) {
                if equal(budget, &item, value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (container, value) => {
            for item in values(budget, container)? {
                if equal(budget, &item, value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}
