//! Jinja's filters for a single value. Filters for sequences are in `sequences.rs`.

use super::arguments::{Arguments, count, integer, text};
use super::arithmetic::negative;
use super::attributes::attribute;
use super::budget::{Budget, Buffer, Outcome, fault};
use super::characters::space;
use super::escapes::{escape, urlencode};
use super::iteration::length;
use super::json::tojson;
use super::letters::capitalized;
use super::methods::items;
use super::percent::percent;
use super::python::{described, text_of, write_repr};
use super::sequences;
use super::text_methods::{lines_of, replace, stripped};
use super::value::{SequenceKind, Value};

/// The names of the filters.
pub const NAMES: [&str; 50] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "xmlattr",
    "random",
];

/// Applies a filter.
pub fn filter(budget: &Budget, name: &str, value: &Value, arguments: Arguments) -> Outcome<Value> {
    budget.steps(1)?;
    if sequences::NAMES.contains(&name) {
        return sequences::filter(budget, name, value, arguments, &Applied);
    }
    match name {
        "default" | "d" => {
            let [default, boolean] = arguments.bind(name, ["default_value", "boolean"], 0)?;
            let boolean = boolean.is_some_and(|boolean| boolean.truth());
            if value.is_undefined() || boolean && !value.truth() {
                return default.map_or_else(|| Value::text(budget, ""), Ok);
            }
            Ok(value.clone())
        }
        "tojson" => tojson(budget, value, arguments),
        "length" | "count" => {
            let [] = arguments.bind(name, [], 0)?;
            Ok(Value::Int(length(value)? as i128))
        }
        "items" => {
            let [] = arguments.bind(name, [], 0)?;
            items(budget, value, SequenceKind::Generator)
        }
        "attr" => {
            let [name] = arguments.bind(name, ["name"], 1)?;
            match text(&name, "attr")? {
                Some(name)
                    if matches!(value, Value::Dict(_)) && !super::methods::exists(value, name) =>
                {
                    Ok(Value::Undefined(name.into()))
                }
                Some(name) => attribute(budget, value, &name.into()),
                None => fault("a name for attr"),
            }
        }
        "abs" => match value.as_float() {
            Some(size) if size < 0.0 || size.is_sign_negative() => negative(value),
            Some(_) => Ok(value.as_int().map_or_else(|| value.clone(), Value::Int)),
            None => fault(format_args!("abs of {}", described(value))),
        },
        "int" => to_int(budget, value, arguments),
        "float" => {
            let [default] = arguments.bind(name, ["default"], 0)?;
            let number = match value {
                Value::Text(text) => parsed(&text.text),
                Value::Undefined(name) => {
                    return fault(format_args!("float of {name:?}, which is undefined"));
                }
                other => other.as_float(),
            };
            Ok(number.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)))
        }
        "round" => round(value, arguments),
        "format" => {
            let Arguments { positional, named } = arguments;
            let given = match named.is_empty() {
                true => Value::collect(budget, SequenceKind::Tuple, positional)?,
                false if positional.is_empty() => {
                    super::methods::dict(budget, Arguments { positional, named })?
                }
                false => return fault("values by position and by name for format"),
            };
            let text = text_of(budget, value)?;
            percent(budget, text.as_str().unwrap_or_default(), &given)
        }
        "pprint" => {
            let mut to = Buffer::new(budget)?;
            write_repr(&mut to, budget, value)?;
            match value {
                // Python's `pprint` sorts dictionaries and breaks long values into lines, which
                // is not supported here.
                Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => Ok(Value::of(to)),
                Value::Text(_) if to.text().len() <= 80 => Ok(Value::of(to)),
                other => {
                    fault(format_args!("pprint of {}, which is not supported", described(other)))
                }
            }
        }
        "string" => text_of(budget, value),
        "urlencode" => {
            let [] = arguments.bind(name, [], 0)?;
            urlencode(budget, value)
        }
        "xmlattr" | "random" | "striptags" | "urlize" | "wordwrap" | "filesizeformat" => {
            fault(format_args!("the filter {name:?}, which is not supported"))
        }
        _ => {
            let of = text_of(budget, value)?;
            of_text(budget, name, of.as_str().unwrap_or_default(), arguments)
        }
    }
}

/// Gives `sequences.rs` access to all filters and tests. Filters such as `map` and `select` take
/// the name of a filter or test as an argument.
struct Applied;

impl sequences::Apply for Applied {
    fn filter(&self, budget: &Budget, name: &str, value: &Value, a: Arguments) -> Outcome<Value> {
        filter(budget, name, value, a)
    }

    fn test(&self, budget: &Budget, name: &str, value: &Value, a: Arguments) -> Outcome<bool> {
        super::checks::check(budget, name, value, a, &NAMES)
    }
}

fn of_text(budget: &Budget, name: &str, of: &str, arguments: Arguments) -> Outcome<Value> {
    budget.steps(1 + of.len() / 16)?;
    let new = |text: &str| Value::text(budget, text);
    match name {
        "upper" | "lower" | "capitalize" | "title" | "wordcount" | "safe" | "e" | "escape"
        | "forceescape" => {
            let [] = arguments.bind(name, [], 0)?;
            match name {
                "upper" => new(&of.to_uppercase()),
                "lower" => new(&of.to_lowercase()),
                "capitalize" => new(&capitalized(of)),
                "title" => title(budget, of),
                "wordcount" => {
                    let word = |c: char| c == '_' || c.is_alphanumeric();
                    let words = of.split(|c| !word(c)).filter(|word| !word.is_empty());
                    Ok(Value::Int(words.count() as i128))
                }
                "safe" => new(of),
                _ => escape(budget, of),
            }
        }
        "trim" => {
            let [chars] = arguments.bind(name, ["chars"], 0)?;
            new(stripped(of, text(&chars, name)?, true, true))
        }
        "replace" => {
            let [old, by, most] = arguments.bind(name, ["old", "new", "count"], 2)?;
            let (old, by) = (old.unwrap_or(Value::None), by.unwrap_or(Value::None));
            let (old, by) = (text_of(budget, &old)?, text_of(budget, &by)?);
            let most = match most {
                None | Some(Value::None) => usize::MAX,
                Some(most) => usize::try_from(integer(Some(&most), 0)?).unwrap_or(usize::MAX),
            };
            replace(
                budget,
                of,
                old.as_str().unwrap_or_default(),
                by.as_str().unwrap_or_default(),
                most,
            )
        }
        "center" => {
            let [width] = arguments.bind(name, ["width"], 0)?;
            let width = width.unwrap_or(Value::Int(80));
            let given = Arguments { positional: vec![width], named: Vec::new() };
            super::text_methods::call(budget, of, "center", given)
        }
        "indent" => indent(budget, of, arguments),
        "truncate" => truncate(budget, of, arguments),
        other => fault(format_args!("the filter {other:?}, which is not known")),
    }
}

fn title(budget: &Budget, of: &str) -> Outcome<Value> {
    let mut to = Buffer::new(budget)?;
    let mut begins = true;
    for c in of.chars() {
        let changed: String = match begins {
            true => c.to_uppercase().collect(),
            false => c.to_lowercase().collect(),
        };
        to.push(&changed)?;
        begins = space(c) || "-({[<".contains(c);
    }
    Ok(Value::of(to))
}

fn indent(budget: &Budget, of: &str, arguments: Arguments) -> Outcome<Value> {
    let [width, first, blank] = arguments.bind("indent", ["width", "first", "blank"], 0)?;
    let mut by = Buffer::new(budget)?;
    match &width {
        Some(Value::Text(width)) => by.push(&width.text)?,
        width => by.repeat(" ", count(width.as_ref(), 4)?)?,
    }
    let truth = |value: Option<Value>| value.is_some_and(|value| value.truth());
    let (first, blank) = (truth(first), truth(blank));
    let mut to = Buffer::new(budget)?;
    to.push(if first { by.text() } else { "" })?;
    for (i, line) in lines_of(of).map(|(line, _)| line).enumerate() {
        to.push(if i > 0 { "\n" } else { "" })?;
        to.push(if i > 0 && (blank || !line.is_empty()) { by.text() } else { "" })?;
        to.push(line)?;
    }
    // Jinja keeps a line break at the end, because it adds a line break before it splits the lines.
    if of.ends_with('\n') {
        to.push("\n")?;
        to.push(if blank { by.text() } else { "" })?;
    }
    Ok(Value::of(to))
}

fn truncate(budget: &Budget, of: &str, arguments: Arguments) -> Outcome<Value> {
    let [most, kill, end, leeway] =
        arguments.bind("truncate", ["length", "killwords", "end", "leeway"], 0)?;
    let (most, leeway) = (count(most.as_ref(), 255)?, count(leeway.as_ref(), 5)?);
    let end = text(&end, "truncate")?.unwrap_or("...");
    if of.chars().count() <= most.saturating_add(leeway) {
        return Value::text(budget, of);
    }
    let Some(kept) = most.checked_sub(end.chars().count()) else {
        return fault("truncate to less than its end");
    };
    let kept = of.char_indices().nth(kept).map_or(of, |(at, _)| of.get(..at).unwrap_or_default());
    let kept = match kill.is_some_and(|kill| kill.truth()) {
        true => kept,
        false => kept.rsplit_once(' ').map_or(kept, |(words, _)| words),
    };
    let mut to = Buffer::new(budget)?;
    to.push(kept)?;
    to.push(end)?;
    Ok(Value::of(to))
}

fn parsed(text: &str) -> Option<f64> {
    let text = text.trim_matches(space).replace('_', "");
    text.parse().ok()
}

fn to_int(budget: &Budget, value: &Value, arguments: Arguments) -> Outcome<Value> {
    let [default, base] = arguments.bind("int", ["default", "base"], 0)?;
    let base = u32::try_from(integer(base.as_ref(), 10)?).ok();
    let Some(base @ 2..=36) = base else { return fault("a base of 2 to 36") };
    let whole = |float: f64| (float.is_finite() && float.abs() < 1e38).then_some(float as i128);
    let number = match value {
        Value::Text(text) => {
            let written = text.text.trim_matches(space).replace('_', "");
            let prefix = match base {
                16 => "0x",
                8 => "0o",
                2 => "0b",
                _ => "",
            };
            let digits = written.strip_prefix(prefix).unwrap_or(&written);
            let parsed = i128::from_str_radix(digits, base).ok();
            parsed.or_else(|| parsed_float(&written).and_then(whole))
        }
        Value::Float(float) => whole(*float),
        Value::Undefined(name) => {
            return fault(format_args!("int of {name:?}, which is undefined"));
        }
        other => other.as_int(),
    };
    let _ = budget;
    Ok(number.map(Value::Int).or(default).unwrap_or(Value::Int(0)))
}

fn parsed_float(text: &str) -> Option<f64> {
    text.parse().ok()
}

fn round(value: &Value, arguments: Arguments) -> Outcome<Value> {
    let [precision, method] = arguments.bind("round", ["precision", "method"], 0)?;
    let precision = integer(precision.as_ref(), 0)?;
    let method = text(&method, "round")?.unwrap_or("common").to_owned();
    let Some(number) = value.as_float() else {
        return fault(format_args!("round of {}", described(value)));
    };
    let Ok(digits) = i32::try_from(precision) else { return fault("fewer digits to round to") };
    if digits.abs() > 300 {
        return fault("at most 300 digits to round to");
    }
    let scale = 10f64.powi(digits);
    match &*method {
        "common" => match (value.as_int(), digits) {
            (Some(value), 0..) => Ok(Value::Int(value)),
            (Some(value), _) => {
                let Some(unit) = 10i128.checked_pow(digits.unsigned_abs()) else {
                    return Ok(Value::Int(0));
                };
                let (whole, rest) = (value.div_euclid(unit), value.rem_euclid(unit));
                let up = rest * 2 > unit || rest * 2 == unit && whole % 2 != 0;
                Ok(Value::Int((whole + i128::from(up)) * unit))
            }
            (None, 0..) => {
                let text = format!("{number:.*}", digits.unsigned_abs() as usize);
                Ok(Value::Float(text.parse().unwrap_or(number)))
            }
            (None, _) => Ok(Value::Float((number * scale).round_ties_even() / scale)),
        },
        "ceil" => Ok(Value::Float((number * scale).ceil() / scale)),
        "floor" => Ok(Value::Float((number * scale).floor() / scale)),
        other => fault(format_args!("round by {other:?}")),
    }
}
