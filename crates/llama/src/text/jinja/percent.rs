//! Python's `"%s" % value`.

use super::budget::{Budget, Buffer, Outcome, fault};
use super::digits::{Scan, Spec, number, pad};
use super::python::{described, field, write_repr, write_text};
use super::value::{SequenceKind, Value};

/// Evaluates `text % arguments`.
pub fn percent(budget: &Budget, text: &str, arguments: &Value) -> Outcome<Value> {
    let (items, mapping) = match arguments {
        Value::Sequence(s) if matches!(s.kind, SequenceKind::Tuple | SequenceKind::Group) => {
            (&*s.items, None)
        }
        Value::Dict(dict) => (std::slice::from_ref(arguments), Some(dict)),
        _ => (std::slice::from_ref(arguments), None),
    };
    let mut items = items.iter();
    // As in Python, the format must use all items of a tuple. It must also use a single value,
    // except a dictionary, a list, a range or bytes.
    let mut rest_is_fine = mapping.is_some()
        || matches!(arguments, Value::Sequence(s) if s.kind == SequenceKind::List)
        || matches!(arguments, Value::Range(_) | Value::Bytes(_));
    let mut to = Buffer::new(budget)?;
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        to.push(before)?;
        let mut scan = Scan(after);
        let mut name = None;
        if scan.skip('(') {
            let Some((key, after)) = scan.0.split_once(')') else {
                return fault("a format with a single (");
            };
            (name, scan) = (Some(key), Scan(after));
        }
        let mut spec = Spec { align: Some('>'), ..Spec::default() };
        while let Some(flag) = scan.next_if(|c| "#0- +".contains(c)) {
            match flag {
                '#' => spec.alternate = true,
                '0' => spec.zero = true,
                '-' => spec.align = Some('<'),
                ' ' if spec.sign == Some('+') => {}
                sign => spec.sign = Some(sign),
            }
        }
        if let Some(width) = count(&mut scan, &mut items)? {
            if width < 0 {
                spec.align = Some('<');
            }
            spec.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
        }
        if scan.skip('.') {
            let digits = count(&mut scan, &mut items)?.unwrap_or(0).max(0);
            spec.precision = Some(usize::try_from(digits).unwrap_or(usize::MAX));
        }
        while scan.next_if(|c| "hlL".contains(c)).is_some() {}
        let Some(kind) = scan.next() else { return fault("a format that ends in %") };
        rest = scan.0;
        if kind == '%' {
            to.push("%")?;
            continue;
        }
        let value = match &name {
            Some(name) => {
                rest_is_fine = true;
                let Some(dict) = mapping else { return fault("a format that needs a mapping") };
                let key = Value::text(budget, name)?;
                match field(budget, &dict.fields, &key)? {
                    Some(value) => value,
                    None => return fault(format_args!("a format of {name:?}, which is missing")),
                }
            }
            None => match items.next() {
                Some(value) => value,
                None => return fault("a format of more values than there are"),
            },
        };
        spec.kind = Some(kind);
        one(budget, &mut to, value, spec)?;
    }
    to.push(rest)?;
    if items.next().is_some() && !rest_is_fine {
        return fault("a format of fewer values than there are");
    }
    Ok(Value::of(to))
}

/// Reads a width or a precision. For `*`, takes the number from the next value.
fn count(scan: &mut Scan, items: &mut std::slice::Iter<Value>) -> Outcome<Option<i128>> {
    if !scan.skip('*') {
        return Ok(scan.number().map(|number| number as i128));
    }
    match items.next().and_then(Value::as_int) {
        Some(width) => Ok(Some(width)),
        None => fault("a format whose * has no integer"),
    }
}

pub fn one(budget: &Budget, to: &mut Buffer, value: &Value, mut spec: Spec) -> Outcome<()> {
    let kind = spec.kind.unwrap_or('s');
    let mut text = Buffer::new(budget)?;
    match kind {
        's' => write_text(&mut text, budget, value)?,
        'r' => write_repr(&mut text, budget, value)?,
        'a' => {
            let mut shown = Buffer::new(budget)?;
            write_repr(&mut shown, budget, value)?;
            ascii(&mut text, shown.text())?;
        }
        'c' => match (value.as_str(), value.as_int()) {
            (Some(one), _) if one.chars().count() == 1 => text.push(one)?,
            (_, Some(code)) => match u32::try_from(code).ok().and_then(char::from_u32) {
                Some(c) => text.character(c)?,
                None => return fault("a character of that number"),
            },
            _ => return fault(format_args!("a character of {}", described(value))),
        },
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let whole = match value {
                Value::Float(value) if "diu".contains(kind) && value.is_finite() => {
                    Value::Int(value.trunc() as i128)
                }
                other => other.clone(),
            };
            if whole.as_int().is_none() {
                return fault(format_args!("an integer for %{kind}, got {}", described(value)));
            }
            let least = spec.precision.take();
            spec.kind = Some(if "iu".contains(kind) { 'd' } else { kind });
            return number(budget, to, &whole, &spec, least.unwrap_or(0));
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            spec.precision = spec.precision.or(Some(6));
            return number(budget, to, value, &spec, 0);
        }
        other => return fault(format_args!("an unknown format %{other}")),
    }
    let shown: String = match spec.precision {
        Some(most) => text.text().chars().take(most).collect(),
        None => text.text().to_owned(),
    };
    pad(to, "", &shown, &Spec { zero: false, ..spec }, '>')
}

fn ascii(to: &mut Buffer, text: &str) -> Outcome<()> {
    for c in text.chars() {
        match u32::from(c) {
            0..0x80 => to.character(c)?,
            code @ ..0x100 => to.push(&format!("\\x{code:02x}"))?,
            code @ ..0x10000 => to.push(&format!("\\u{code:04x}"))?,
            code => to.push(&format!("\\U{code:08x}"))?,
        }
    }
    Ok(())
}
