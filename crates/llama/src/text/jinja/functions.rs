//! The functions that the Python package transformers provides to chat templates. A call of
//! `lipsum`, `cycler`, `joiner` or `self` is a fault, because they are not supported.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;

use super::arguments::{Arguments, integer};
use super::budget::{Budget, Charge, Outcome, fault};
use super::methods;
use super::python::{described, text_of};
use super::syntax::Name;
use super::value::{Namespace, Value, range_length};

const NAMES: [&str; 9] = [
    "range",
    "dict",
    "namespace",
    "raise_exception",
    "strftime_now",
    "lipsum",
    "cycler",
    "joiner",
    "self",
];

/// The maximum length of a `range`, as in Jinja's sandbox.
const MOST_ITEMS: usize = 100_000;

/// Finds a function by its name.
pub fn find(name: &str) -> Option<Value> {
    NAMES.iter().find(|known| **known == name).map(|known| Value::Function(known))
}

pub fn call(budget: &Budget, name: &str, arguments: Arguments) -> Outcome<Value> {
    match name {
        "range" => {
            let [start, end, step] = arguments.bind(name, ["start", "stop", "step"], 1)?;
            let (start, end) = match &end {
                Some(end) => (integer(start.as_ref(), 0)?, integer(Some(end), 0)?),
                None => (0, integer(start.as_ref(), 0)?),
            };
            let range = [start, end, integer(step.as_ref(), 1)?];
            let within = |value: &i128| value.unsigned_abs() <= 1 << 64;
            match range {
                [_, _, 0] => fault("a range with a step of 0"),
                _ if !range.iter().all(within) || range_length(&range) > MOST_ITEMS => {
                    fault(format_args!("a range of more than {MOST_ITEMS} items"))
                }
                _ => Ok(Value::Range(Rc::new(range))),
            }
        }
        "dict" => methods::dict(budget, arguments),
        "namespace" => {
            let Value::Dict(given) = methods::dict(budget, arguments)? else {
                return fault("names for a namespace");
            };
            let mut fields = Vec::new();
            for (name, value) in &given.fields {
                match name.as_str() {
                    Some(name) if !name.starts_with('_') => {
                        fields.push((name.into(), value.clone()))
                    }
                    _ => return fault(format_args!("a namespace with {}", described(name))),
                }
            }
            let charge = Charge::new(budget, 64 * (1 + fields.len()))?;
            let (fields, charge) = (RefCell::new(fields), RefCell::new(vec![charge]));
            Ok(Value::Namespace(Rc::new(Namespace { fields, charge })))
        }
        "raise_exception" => {
            let [message] = arguments.bind(name, ["message"], 1)?;
            let message = text_of(budget, &message.unwrap_or(Value::None))?;
            fault(message.as_str().unwrap_or_default())
        }
        "strftime_now" => {
            let [format] = arguments.bind(name, ["format"], 1)?;
            let format = format.unwrap_or(Value::None);
            let mut text = String::new();
            let given = format.as_str().filter(|format| format.len() <= 1000);
            let now = given.map(|format| chrono::Local::now().format(format));
            match now.map(|now| write!(text, "{now}")) {
                Some(Ok(())) => Value::text(budget, &text),
                _ => fault("a date of a format that is not understood"),
            }
        }
        other => fault(format_args!("the function {other:?}, which is not supported")),
    }
}

/// Sets a field of a namespace.
pub fn set(budget: &Budget, namespace: &Namespace, name: &Name, value: Value) -> Outcome<()> {
    value.holdable()?;
    if name.starts_with('_') {
        return fault(format_args!("a name of a namespace that begins with _: {name:?}"));
    }
    let mut fields = namespace.fields.borrow_mut();
    if let Some((_, old)) = fields.iter_mut().find(|(known, _)| known == name) {
        *old = value;
        return Ok(());
    }
    namespace.charge.borrow_mut().push(Charge::new(budget, 64)?);
    fields.push((Name::clone(name), value));
    Ok(())
}
