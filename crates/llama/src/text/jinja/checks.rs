//! Jinja's tests, `value is test`.

use super::arguments::Arguments;
use super::arithmetic::same;
use super::budget::{Budget, Outcome, fault};
use super::iteration::contains;
use super::python::{described, equal, order, text_of};
use super::value::{SequenceKind, Value};

/// The names of the tests.
pub const NAMES: [&str; 39] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// Whether a value passes the Jinja test `name`. `filters` are the names of all filters.
pub fn check(
    budget: &Budget,
    name: &str,
    value: &Value,
    arguments: Arguments,
    filters: &[&str],
) -> Outcome<bool> {
    budget.steps(1)?;
    let compared = |arguments: Arguments| -> Outcome<(bool, Option<std::cmp::Ordering>)> {
        let [other] = arguments.bind(name, ["other"], 1)?;
        let other = other.unwrap_or(Value::None);
        match name {
            "==" | "eq" | "equalto" | "!=" | "ne" => Ok((equal(budget, value, &other)?, None)),
            _ => Ok((false, order(budget, value, &other)?)),
        }
    };
    match name {
        "==" | "eq" | "equalto" => return Ok(compared(arguments)?.0),
        "!=" | "ne" => return Ok(!compared(arguments)?.0),
        "<" | "lt" | "lessthan" => return Ok(compared(arguments)?.1.is_some_and(|o| o.is_lt())),
        "<=" | "le" => return Ok(compared(arguments)?.1.is_some_and(|o| o.is_le())),
        ">" | "gt" | "greaterthan" => return Ok(compared(arguments)?.1.is_some_and(|o| o.is_gt())),
        ">=" | "ge" => return Ok(compared(arguments)?.1.is_some_and(|o| o.is_ge())),
        "divisibleby" => {
            let [by] = arguments.bind(name, ["num"], 1)?;
            return match (value.as_int(), by.and_then(|by| by.as_int())) {
                (Some(_), Some(0)) => fault("a division by zero"),
                (Some(value), Some(by)) => Ok(value.checked_rem(by).is_none_or(|rest| rest == 0)),
                _ => fault(format_args!("divisibleby of {}", described(value))),
            };
        }
        "in" => {
            let [within] = arguments.bind(name, ["seq"], 1)?;
            return contains(budget, &within.unwrap_or(Value::None), value);
        }
        "sameas" => {
            let [other] = arguments.bind(name, ["other"], 1)?;
            return Ok(same(value, &other.unwrap_or(Value::None)));
        }
        _ => {}
    }
    let [] = arguments.bind(name, [], 0)?;
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => match value {
            Value::Sequence(s) => {
                matches!(s.kind, SequenceKind::List | SequenceKind::Tuple | SequenceKind::Group)
            }
            Value::Undefined(_) | Value::Text(_) | Value::Bytes(_) | Value::Dict(_) => true,
            Value::Range(_) => true,
            _ => false,
        },
        "iterable" => matches!(
            value,
            Value::Sequence(_)
                | Value::Range(_)
                | Value::Loop(_)
                | Value::Undefined(_)
                | Value::Text(_)
                | Value::Bytes(_)
                | Value::Dict(_)
        ),
        "callable" => matches!(
            value,
            Value::Undefined(_)
                | Value::Macro(_)
                | Value::Method(_)
                | Value::Function(_)
                | Value::Loop(_)
        ),
        "escaped" => false,
        "even" | "odd" => match value.as_int() {
            Some(value) => (value % 2 == 0) == (name == "even"),
            None => match value {
                Value::Float(value) => value % 2.0 == if name == "even" { 0.0 } else { 1.0 },
                other => fault(format_args!("{name} of {}", described(other)))?,
            },
        },
        "lower" | "upper" => {
            let text = text_of(budget, value)?;
            let text = text.as_str().unwrap_or_default();
            let mut letters =
                text.chars().filter(|c| c.is_uppercase() || c.is_lowercase()).peekable();
            letters.peek().is_some() && letters.all(|c| c.is_uppercase() == (name == "upper"))
        }
        "filter" => value.as_str().is_some_and(|name| filters.contains(&name)),
        "test" => value.as_str().is_some_and(|name| NAMES.contains(&name)),
        other => fault(format_args!("the test {other:?}, which is not known"))?,
    })
}
