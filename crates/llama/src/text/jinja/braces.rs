//! Python's `"{}".format(value)`.

use super::budget::{Budget, Buffer, Outcome, fault};
use super::digits::{Scan, Spec, number, pad};
use super::percent::one;
use super::python::{described, write_text};
use super::syntax::Name;
use super::value::Value;

/// Evaluates `text.format(...)`. `part` finds a part of a value by its name: an attribute if the
/// last argument of `part` is `true`, otherwise an item.
pub fn braces(
    budget: &Budget,
    text: &str,
    positional: &[Value],
    named: &[(Name, Value)],
    part: &dyn Fn(&Value, &str, bool) -> Outcome<Value>,
) -> Outcome<Value> {
    let mut to = Buffer::new(budget)?;
    let mut next = 0;
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, brace) = rest.split_at(at);
        to.push(before)?;
        if brace.starts_with("{{") || brace.starts_with("}}") {
            to.push(brace.get(..1).unwrap_or_default())?;
            rest = brace.get(2..).unwrap_or_default();
            continue;
        }
        let Some(inner) = brace.strip_prefix('{') else { return fault("a format with a single }") };
        let Some(end) = inner.find('}') else { return fault("a format with a single {") };
        let (field, after) = inner.split_at(end);
        rest = after.get(1..).unwrap_or_default();
        if field.contains('{') {
            return fault("a format within a format, which is not supported");
        }
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (field, conversion) = match field.split_once('!') {
            Some((field, conversion)) => (field, Some(conversion)),
            None => (field, None),
        };
        let value = found(field, positional, named, &mut next, part)?;
        let value = match conversion {
            None => value,
            Some(kind @ ("r" | "s" | "a")) => {
                let mut shown = Buffer::new(budget)?;
                let kind = kind.chars().next();
                one(budget, &mut shown, &value, Spec { kind, ..Spec::default() })?;
                Value::of(shown)
            }
            Some(other) => return fault(format_args!("an unknown conversion {other:?}")),
        };
        let spec = parsed(spec)?;
        match (&value, value.as_float()) {
            (Value::Bool(_), _) if spec.kind.is_none() && spec.width == 0 => {
                write_text(&mut to, budget, &value)?;
            }
            (_, Some(_)) => number(budget, &mut to, &value, &spec, 0)?,
            _ => {
                if spec.kind.is_some_and(|kind| kind != 's') {
                    return fault(format_args!("a format of {}", described(&value)));
                }
                let mut shown = Buffer::new(budget)?;
                write_text(&mut shown, budget, &value)?;
                let most = spec.precision.unwrap_or(usize::MAX);
                let shown: String = shown.text().chars().take(most).collect();
                pad(&mut to, "", &shown, &spec, '<')?;
            }
        }
    }
    to.push(rest)?;
    Ok(Value::of(to))
}

fn found(
    field: &str,
    positional: &[Value],
    named: &[(Name, Value)],
    next: &mut usize,
    part: &dyn Fn(&Value, &str, bool) -> Outcome<Value>,
) -> Outcome<Value> {
    let end = field.find(['.', '[']).unwrap_or(field.len());
    let (name, mut rest) = field.split_at(end);
    let mut value = if name.is_empty() || name.chars().all(|c| c.is_ascii_digit()) {
        let index = if name.is_empty() { *next } else { name.parse().unwrap_or(usize::MAX) };
        *next += usize::from(name.is_empty());
        positional.get(index)
    } else {
        named.iter().find(|(key, _)| &**key == name).map(|(_, value)| value)
    }
    .cloned();
    while let Some(of) = value.as_ref().filter(|_| !rest.is_empty()) {
        if let Some(inner) = rest.strip_prefix('[') {
            let Some((name, after)) = inner.split_once(']') else {
                return fault("a format with a single [");
            };
            value = Some(part(of, name, false)?);
            rest = after;
        } else {
            let inner = rest.strip_prefix('.').unwrap_or(rest);
            let end = inner.find(['.', '[']).unwrap_or(inner.len());
            let (name, after) = inner.split_at(end);
            value = Some(part(of, name, true)?);
            rest = after;
        }
    }
    match value {
        Some(value) => Ok(value),
        None => fault("a format of a value that is not given"),
    }
}

fn parsed(text: &str) -> Outcome<Spec> {
    let mut spec = Spec::default();
    let mut scan = Scan(text);
    let aligns = |c: Option<char>| c.filter(|c| "<>=^".contains(*c));
    if let Some(align) = aligns(text.chars().nth(1)) {
        spec.fill = scan.next();
        spec.align = Some(align);
        scan.next();
    } else if let Some(align) = aligns(text.chars().next()) {
        spec.align = Some(align);
        scan.next();
    }
    spec.sign = scan.next_if(|c| "+- ".contains(c));
    spec.alternate = scan.skip('#');
    spec.zero = scan.skip('0');
    spec.width = scan.number().unwrap_or(0);
    spec.group = scan.next_if(|c| ",_".contains(c));
    if scan.skip('.') {
        spec.precision = scan.number();
    }
    spec.kind = scan.next();
    match scan.next() {
        None => Ok(spec),
        Some(_) => fault("a format that is not understood"),
    }
}
