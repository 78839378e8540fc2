//! Python's operators, indices and slices.

use std::rc::Rc;

use super::budget::{Budget, Buffer, Items, Outcome, fault};
use super::percent::percent;
use super::python::{described, field};
use super::syntax::{Name, Operator};
use super::value::{SequenceKind, Value, range_length};

const TOO_LONG: &str = "an integer of more than 38 digits";

pub fn operate(budget: &Budget, operator: Operator, a: &Value, b: &Value) -> Outcome<Value> {
    budget.steps(1)?;
    match (operator, a, b) {
        (Operator::Add, Value::Text(x), Value::Text(y)) => {
            let mut buffer = Buffer::new(budget)?;
            buffer.push(&x.text)?;
            buffer.push(&y.text)?;
            return Ok(Value::of(buffer));
        }
        (Operator::Add, Value::Sequence(x), Value::Sequence(y)) => {
            let kind = |kind| if kind == SequenceKind::Group { SequenceKind::Tuple } else { kind };
            let kinds = (kind(x.kind), kind(y.kind));
            if let (SequenceKind::List, SequenceKind::List)
            | (SequenceKind::Tuple, SequenceKind::Tuple) = kinds
            {
                return Value::collect(budget, kinds.0, x.items.iter().chain(&y.items).cloned());
            }
        }
        (Operator::Multiply, Value::Text(_) | Value::Sequence(_), count)
        | (Operator::Multiply, count, Value::Text(_) | Value::Sequence(_)) => {
            let first = matches!(a, Value::Text(_) | Value::Sequence(_));
            let repeated = if first { a } else { b };
            if let Some(count) = count.as_int() {
                return repeat(
                    budget,
                    repeated,
                    usize::try_from(count.max(0)).unwrap_or(usize::MAX),
                );
            }
        }
        (Operator::Remainder, Value::Text(text), arguments) => {
            return percent(budget, &text.text, arguments);
        }
        _ => {}
    }
    if let (Some(x), Some(y)) = (a.as_int(), b.as_int()) {
        return integers(operator, x, y);
    }
    match (a.as_float(), b.as_float()) {
        (Some(x), Some(y)) => floats(operator, x, y),
        _ => fault(format_args!("{operator:?} of {} and {}", described(a), described(b))),
    }
}

fn repeat(budget: &Budget, value: &Value, count: usize) -> Outcome<Value> {
    match value {
        Value::Text(text) => {
            let mut buffer = Buffer::new(budget)?;
            buffer.repeat(&text.text, count)?;
            Ok(Value::of(buffer))
        }
        Value::Sequence(s) if matches!(s.kind, SequenceKind::List | SequenceKind::Tuple) => {
            let mut items = Items::new(budget)?;
            for _ in 0..if s.items.is_empty() { 0 } else { count } {
                for item in &s.items {
                    items.push(item.clone())?;
                }
            }
            Value::sequence(s.kind, items)
        }
        other => fault(format_args!("Multiply of {}", described(other))),
    }
}

fn integers(operator: Operator, x: i128, y: i128) -> Outcome<Value> {
    let value = match operator {
        Operator::Add => x.checked_add(y),
        Operator::Subtract => x.checked_sub(y),
        Operator::Multiply => x.checked_mul(y),
        Operator::Divide if y != 0 => return Ok(Value::Float(x as f64 / y as f64)),
        Operator::FloorDivide if y != 0 => {
            x.checked_div_euclid(y).map(|q| if y < 0 && x.rem_euclid(y) != 0 { q - 1 } else { q })
        }
        Operator::Remainder if y != 0 => {
            x.checked_rem_euclid(y).map(|r| if y < 0 && r != 0 { r + y } else { r })
        }
        Operator::Power if y < 0 => return floats(operator, x as f64, y as f64),
        Operator::Power if x.abs() <= 1 => {
            return Ok(Value::Int(if y == 0 || x == 1 || (x == -1 && y % 2 == 0) { 1 } else { x }));
        }
        Operator::Power => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
        _ => return fault("a division by zero"),
    };
    match value {
        Some(value) => Ok(Value::Int(value)),
        None => fault(TOO_LONG),
    }
}

fn floats(operator: Operator, x: f64, y: f64) -> Outcome<Value> {
    let zero = y == 0.0;
    Ok(Value::Float(match operator {
        Operator::Add => x + y,
        Operator::Subtract => x - y,
        Operator::Multiply => x * y,
        Operator::Divide if !zero => x / y,
        Operator::FloorDivide if !zero => (x / y).floor(),
        Operator::Remainder if !zero => {
            let r = x % y;
            if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
        }
        Operator::Power if x == 0.0 && y < 0.0 => return fault("a division by zero"),
        Operator::Power => {
            let value = x.powf(y);
            if value.is_nan() && !x.is_nan() && !y.is_nan() {
                return fault("a complex number, which is not supported");
            }
            if value.is_infinite() && x.is_finite() && y.is_finite() {
                return fault("a power that is too large");
            }
            value
        }
        _ => return fault("a division by zero"),
    }))
}

pub fn negative(value: &Value) -> Outcome<Value> {
    match (value, value.as_int()) {
        (_, Some(value)) => {
            value.checked_neg().map_or_else(|| fault(TOO_LONG), |v| Ok(Value::Int(v)))
        }
        (Value::Float(value), _) => Ok(Value::Float(-value)),
        (other, _) => fault(format_args!("a negative of {}", described(other))),
    }
}

/// Evaluates `value[index]`. Returns `None` if the item does not exist.
pub fn item(budget: &Budget, value: &Value, index: &Value) -> Outcome<Option<Value>> {
    let at = |length: usize| {
        let index = index.as_int()?;
        usize::try_from(if index < 0 { index + length as i128 } else { index }).ok()
    };
    Ok(match value {
        Value::Undefined(name) => {
            return fault(format_args!("a part of {name:?}, which is undefined"));
        }
        Value::Text(text) => {
            budget.steps(text.text.len() / 32)?;
            let length = text.text.chars().count();
            match at(length).and_then(|at| text.text.chars().nth(at)) {
                Some(c) => Some(Value::text(budget, c.encode_utf8(&mut [0; 4]))?),
                None => None,
            }
        }
        Value::Bytes(text) => at(text.text.len())
            .and_then(|at| text.text.as_bytes().get(at))
            .map(|byte| Value::Int(i128::from(*byte))),
        Value::Sequence(s)
            if matches!(s.kind, SequenceKind::List | SequenceKind::Tuple | SequenceKind::Group) =>
        {
            at(s.items.len()).and_then(|at| s.items.get(at).cloned())
        }
        Value::Dict(dict) => field(budget, &dict.fields, index)?.cloned(),
        Value::Range(range) => {
            let [start, _, step] = **range;
            let length = range_length(range);
            at(length).filter(|at| *at < length).map(|at| Value::Int(start + step * at as i128))
        }
        _ => None,
    })
}

/// Evaluates `value[start:end:step]`.
pub fn slice(budget: &Budget, value: &Value, bounds: [Option<&Value>; 3]) -> Outcome<Value> {
    let mut numbers = [None; 3];
    for (number, bound) in numbers.iter_mut().zip(bounds) {
        *number = match bound {
            None | Some(Value::None) => None,
            Some(bound) => match bound.as_int() {
                Some(bound) => Some(bound),
                None => return fault(format_args!("a slice with {}", described(bound))),
            },
        };
    }
    match value {
        Value::Undefined(name) => fault(format_args!("a part of {name:?}, which is undefined")),
        Value::Text(text) => {
            let chars: Vec<char> = text.text.chars().collect();
            budget.steps(chars.len() / 16)?;
            let mut buffer = Buffer::new(budget)?;
            for at in indices(chars.len(), numbers)? {
                if let Some(c) = chars.get(at) {
                    buffer.character(*c)?;
                }
            }
            Ok(Value::of(buffer))
        }
        Value::Sequence(s)
            if matches!(s.kind, SequenceKind::List | SequenceKind::Tuple | SequenceKind::Group) =>
        {
            let kind =
                if s.kind == SequenceKind::List { SequenceKind::List } else { SequenceKind::Tuple };
            let at = indices(s.items.len(), numbers)?;
            Value::collect(budget, kind, at.filter_map(|at| s.items.get(at).cloned()))
        }
        Value::Range(_) | Value::Bytes(_) => {
            fault(format_args!("a slice of {}, which is not supported", described(value)))
        }
        _ => Ok(Value::Undefined(Name::from("a slice"))),
    }
}

/// Returns the indices that a slice selects from a sequence of `length` items.
fn indices(
    length: usize,
    [start, end, step]: [Option<i128>; 3],
) -> Outcome<impl Iterator<Item = usize>> {
    let length = length as i128;
    let step = step.unwrap_or(1);
    if step == 0 {
        return fault("a slice with a step of 0");
    }
    let (least, most) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let within = |bound: Option<i128>, default: i128| match bound {
        None => default,
        Some(bound) if bound < 0 => bound.saturating_add(length).max(least),
        Some(bound) => bound.min(most),
    };
    let (from, to) = match step > 0 {
        true => (within(start, 0), within(end, length)),
        false => (within(start, length - 1), within(end, -1)),
    };
    let count = range_length(&[from, to, step]);
    Ok((0..count).filter_map(move |i| usize::try_from(from + step * i as i128).ok()))
}

/// Adds values as Python's `sum` does.
pub fn sum(budget: &Budget, values: &[Value], start: Value) -> Outcome<Value> {
    if start.as_str().is_some() {
        return fault("a sum of texts: use join");
    }
    values.iter().try_fold(start, |all, value| operate(budget, Operator::Add, &all, value))
}

/// Jinja's test `sameas`: whether two values are the same object. Equal strings count as the same
/// object.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Text(a), Value::Text(b)) => Rc::ptr_eq(a, b) || a.text == b.text,
        (Value::Sequence(a), Value::Sequence(b)) => Rc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        _ => false,
    }
}
