//! Jinja's filters for sequences.

use super::arguments::{Arguments, count, text};
use super::arithmetic::sum;
use super::attributes::path;
use super::budget::{Budget, Buffer, Items, Outcome, fault};
use super::iteration::{next, values};
use super::python::{described, equal, order, sorted, write_text};
use super::value::{SequenceKind, Value};

/// The names of the filters in this module.
pub const NAMES: [&str; 19] = [
    "batch",
    "dictsort",
    "first",
    "groupby",
    "join",
    "last",
    "list",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "slice",
    "sort",
    "sum",
    "unique",
];

/// Applies filters and tests by their names. `filters.rs` implements this trait.
pub trait Apply {
    fn filter(&self, budget: &Budget, name: &str, value: &Value, a: Arguments) -> Outcome<Value>;
    fn test(&self, budget: &Budget, name: &str, value: &Value, a: Arguments) -> Outcome<bool>;
}

pub fn filter(
    budget: &Budget,
    name: &str,
    value: &Value,
    arguments: Arguments,
    apply: &dyn Apply,
) -> Outcome<Value> {
    match name {
        "map" => return map(budget, value, arguments, apply),
        "select" | "reject" => return select(budget, value, arguments, apply, name, false),
        "selectattr" | "rejectattr" => return select(budget, value, arguments, apply, name, true),
        _ => {}
    }
    let truth = |value: Option<Value>| value.is_some_and(|value| value.truth());
    let missing = || Value::Undefined("the item of an empty sequence".into());
    match name {
        "list" => {
            let [] = arguments.bind(name, [], 0)?;
            Value::collect(budget, SequenceKind::List, values(budget, value)?)
        }
        "first" => {
            let [] = arguments.bind(name, [], 0)?;
            match value {
                Value::Sequence(s) => Ok(next(s).unwrap_or_else(missing)),
                other => Ok(values(budget, other)?.into_iter().next().unwrap_or_else(missing)),
            }
        }
        "last" => {
            let [] = arguments.bind(name, [], 0)?;
            if matches!(value, Value::Sequence(s) if s.kind == SequenceKind::Generator) {
                return fault("the last item of a generator: use `| list`");
            }
            Ok(values(budget, value)?.pop().unwrap_or_else(missing))
        }
        "reverse" => {
            let [] = arguments.bind(name, [], 0)?;
            let mut items = values(budget, value)?;
            items.reverse();
            match value {
                Value::Text(_) => joined(budget, &items, ""),
                _ => Value::collect(budget, SequenceKind::Generator, items),
            }
        }
        "join" => {
            let [by, attribute] = arguments.bind(name, ["d", "attribute"], 0)?;
            let items = attributes(budget, value, attribute)?;
            let mut separator = Buffer::new(budget)?;
            if let Some(by) = by {
                write_text(&mut separator, budget, &by)?;
            }
            joined(budget, &items, separator.text())
        }
        "sum" => {
            let [attribute, start] = arguments.bind(name, ["attribute", "start"], 0)?;
            let items = attributes(budget, value, attribute)?;
            sum(budget, &items, start.unwrap_or(Value::Int(0)))
        }
        "batch" | "slice" => portions(budget, name, value, arguments),
        "sort" => {
            let names = ["reverse", "case_sensitive", "attribute"];
            let [reverse, sensitive, attribute] = arguments.bind(name, names, 0)?;
            let keyed = keyed(budget, value, attribute.as_ref(), truth(sensitive))?;
            let sorted = by_key(budget, &keyed, truth(reverse))?;
            Value::collect(budget, SequenceKind::List, sorted.into_iter().map(|(_, value)| value))
        }
        "dictsort" => dictsort(budget, value, arguments),
        "unique" => {
            let [sensitive, attribute] =
                arguments.bind(name, ["case_sensitive", "attribute"], 0)?;
            let keyed = keyed(budget, value, attribute.as_ref(), truth(sensitive))?;
            let (mut seen, mut kept) = (Vec::new(), Items::new(budget)?);
            for (key, value) in keyed {
                if !found(budget, &seen, &key)? {
                    seen.push(key);
                    kept.push(value)?;
                }
            }
            Value::sequence(SequenceKind::Generator, kept)
        }
        "min" | "max" => {
            let [sensitive, attribute] =
                arguments.bind(name, ["case_sensitive", "attribute"], 0)?;
            let keyed = keyed(budget, value, attribute.as_ref(), truth(sensitive))?;
            let mut best: Option<(Value, Value)> = None;
            for (key, value) in keyed {
                let better = match &best {
                    None => true,
                    Some((best, _)) => {
                        let order = order(budget, &key, best)?;
                        order.is_some_and(
                            |order| if name == "min" { order.is_lt() } else { order.is_gt() },
                        )
                    }
                };
                if better {
                    best = Some((key, value));
                }
            }
            Ok(best.map_or_else(missing, |(_, value)| value))
        }
        "groupby" => {
            let names = ["attribute", "default", "case_sensitive"];
            let [attribute, default, sensitive] = arguments.bind(name, names, 1)?;
            groupby(budget, value, attribute.unwrap_or(Value::None), default, truth(sensitive))
        }
        other => fault(format_args!("the filter {other:?}, which is not known")),
    }
}

fn joined(budget: &Budget, items: &[Value], by: &str) -> Outcome<Value> {
    let mut to = Buffer::new(budget)?;
    for (i, item) in items.iter().enumerate() {
        to.push(if i > 0 { by } else { "" })?;
        write_text(&mut to, budget, item)?;
    }
    Ok(Value::of(to))
}

fn found(budget: &Budget, among: &[Value], value: &Value) -> Outcome<bool> {
    for other in among {
        if equal(budget, other, value)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Splits off the first positional argument, which is the name of a filter or a test, from the
/// other arguments.
fn named(arguments: Arguments) -> Outcome<Option<(String, Arguments)>> {
    let Arguments { positional, named } = arguments;
    let mut positional = positional.into_iter();
    match positional.next() {
        None => Ok(None),
        Some(Value::Text(name)) => {
            let positional = positional.collect();
            Ok(Some((name.text.clone(), Arguments { positional, named })))
        }
        Some(other) => fault(format_args!("a name, got {}", described(&other))),
    }
}

fn copy(arguments: &Arguments) -> Arguments {
    Arguments { positional: arguments.positional.clone(), named: arguments.named.clone() }
}

/// Returns the items of a value. With `attribute`, returns this attribute of each item instead.
fn attributes(budget: &Budget, value: &Value, attribute: Option<Value>) -> Outcome<Vec<Value>> {
    let mut items = values(budget, value)?;
    if let Some(attribute) = attribute.filter(|value| !matches!(value, Value::None)) {
        for item in &mut items {
            *item = path(budget, item, &attribute, None)?;
        }
    }
    Ok(items)
}

fn map(budget: &Budget, value: &Value, arguments: Arguments, apply: &dyn Apply) -> Outcome<Value> {
    let mut results = Items::new(budget)?;
    if arguments.positional.is_empty() {
        let [attribute, default] = arguments.bind("map", ["attribute", "default"], 1)?;
        let attribute = attribute.unwrap_or(Value::None);
        for item in values(budget, value)? {
            results.push(path(budget, &item, &attribute, default.as_ref())?)?;
        }
        return Value::sequence(SequenceKind::Generator, results);
    }
    let Some((name, arguments)) = named(arguments)? else { return fault("a filter for map") };
    if name == "map" {
        return fault("map of map, which is not supported");
    }
    for item in values(budget, value)? {
        budget.steps(arguments.positional.len())?;
        results.push(apply.filter(budget, &name, &item, copy(&arguments))?)?;
    }
    Value::sequence(SequenceKind::Generator, results)
}

fn select(
    budget: &Budget,
    value: &Value,
    mut arguments: Arguments,
    apply: &dyn Apply,
    name: &str,
    by_attribute: bool,
) -> Outcome<Value> {
    let attribute = match by_attribute {
        true if arguments.positional.is_empty() => return fault(format_args!("a name for {name}")),
        true => Some(arguments.positional.remove(0)),
        false => None,
    };
    let test = named(arguments)?;
    let mut kept = Items::new(budget)?;
    for item in values(budget, value)? {
        let tested = match &attribute {
            Some(attribute) => path(budget, &item, attribute, None)?,
            None => item.clone(),
        };
        let passes = match &test {
            Some((test, arguments)) => apply.test(budget, test, &tested, copy(arguments))?,
            None => tested.truth(),
        };
        if passes == name.starts_with("select") {
            kept.push(item)?;
        }
    }
    Value::sequence(SequenceKind::Generator, kept)
}

fn portions(budget: &Budget, name: &str, value: &Value, arguments: Arguments) -> Outcome<Value> {
    let [size, fill] = arguments.bind(name, ["count", "fill_with"], 1)?;
    let size = count(size.as_ref(), 0)?;
    let fill = fill.filter(|fill| !matches!(fill, Value::None));
    let items = values(budget, value)?;
    let mut portions = Items::new(budget)?;
    if size == 0 {
        return fault(format_args!("{name} by 0"));
    }
    if name == "batch" {
        for portion in items.chunks(size) {
            let filled =
                fill.iter().flat_map(|fill| std::iter::repeat_n(fill, size - portion.len()));
            let portion = portion.iter().chain(filled).cloned();
            portions.push(Value::collect(budget, SequenceKind::List, portion)?)?;
        }
        return Value::sequence(SequenceKind::Generator, portions);
    }
    let (each, longer) = (items.len() / size, items.len() % size);
    let mut rest = items.as_slice();
    for i in 0..size {
        let (portion, after) = rest.split_at(each + usize::from(i < longer));
        rest = after;
        let filled = fill.iter().filter(|_| i >= longer);
        let portion = portion.iter().chain(filled).cloned();
        portions.push(Value::collect(budget, SequenceKind::List, portion)?)?;
    }
    Value::sequence(SequenceKind::Generator, portions)
}

/// Returns pairs of a sort key and an item, for all items of a value.
fn keyed(
    budget: &Budget,
    value: &Value,
    attribute: Option<&Value>,
    case_sensitive: bool,
) -> Outcome<Vec<(Value, Value)>> {
    let mut keyed = Vec::new();
    for item in values(budget, value)? {
        let key = match attribute {
            None | Some(Value::None) => folded(budget, &item, case_sensitive)?,
            Some(Value::Text(paths)) if paths.text.contains(',') => {
                let mut keys = Vec::new();
                for part in paths.text.split(',') {
                    let part = Value::text(budget, part)?;
                    keys.push(folded(budget, &path(budget, &item, &part, None)?, case_sensitive)?);
                }
                Value::collect(budget, SequenceKind::List, keys)?
            }
            Some(attribute) => {
                folded(budget, &path(budget, &item, attribute, None)?, case_sensitive)?
            }
        };
        keyed.push((key, item));
    }
    Ok(keyed)
}

fn folded(budget: &Budget, value: &Value, case_sensitive: bool) -> Outcome<Value> {
    match value {
        Value::Text(text) if !case_sensitive => Value::text(budget, &text.text.to_lowercase()),
        other => Ok(other.clone()),
    }
}

fn by_key(
    budget: &Budget,
    keyed: &[(Value, Value)],
    reverse: bool,
) -> Outcome<Vec<(Value, Value)>> {
    sorted(budget, keyed, &|a, b| {
        let order = order(budget, &a.0, &b.0)?;
        Ok(order.is_some_and(|order| if reverse { order.is_gt() } else { order.is_lt() }))
    })
}

fn dictsort(budget: &Budget, value: &Value, arguments: Arguments) -> Outcome<Value> {
    let names = ["case_sensitive", "by", "reverse"];
    let [sensitive, by, reverse] = arguments.bind("dictsort", names, 0)?;
    let Value::Dict(dict) = value else {
        return fault(format_args!("dictsort of {}", described(value)));
    };
    let truth = |value: Option<Value>| value.is_some_and(|value| value.truth());
    let at = match text(&by, "by")? {
        None | Some("key") => 0,
        Some("value") => 1,
        Some(other) => return fault(format_args!("dictsort by {other:?}")),
    };
    let mut keyed = Vec::new();
    for (key, value) in &dict.fields {
        let sorted_by = if at == 0 { key } else { value };
        let sorted_by = folded(budget, sorted_by, truth(sensitive.clone()))?;
        let pair = Value::collect(budget, SequenceKind::Tuple, [key.clone(), value.clone()])?;
        keyed.push((sorted_by, pair));
    }
    let sorted = by_key(budget, &keyed, truth(reverse))?;
    Value::collect(budget, SequenceKind::List, sorted.into_iter().map(|(_, pair)| pair))
}

fn groupby(
    budget: &Budget,
    value: &Value,
    attribute: Value,
    default: Option<Value>,
    case_sensitive: bool,
) -> Outcome<Value> {
    let mut keyed = Vec::new();
    for item in values(budget, value)? {
        let key = path(budget, &item, &attribute, default.as_ref())?;
        keyed.push((folded(budget, &key, case_sensitive)?, (key, item)));
    }
    let less = |a: &(Value, (Value, Value)), b: &(Value, (Value, Value))| {
        Ok(order(budget, &a.0, &b.0)?.is_some_and(|order| order.is_lt()))
    };
    let mut groups = Items::new(budget)?;
    let mut rest = sorted(budget, &keyed, &less)?.into_iter().peekable();
    while let Some((key, (shown, item))) = rest.next() {
        let mut group = Items::new(budget)?;
        group.push(item)?;
        while let Some((next, _)) = rest.peek() {
            if !equal(budget, next, &key)? {
                break;
            }
            if let Some((_, (_, item))) = rest.next() {
                group.push(item)?;
            }
        }
        let group = Value::sequence(SequenceKind::List, group)?;
        groups.push(Value::collect(budget, SequenceKind::Group, [shown, group])?)?;
    }
    Value::sequence(SequenceKind::List, groups)
}
