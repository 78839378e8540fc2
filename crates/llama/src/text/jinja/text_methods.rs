//! The methods of Python's strings (`str`).

use super::arguments::{Arguments, count, integer, text};
use super::budget::{Budget, Buffer, Items, Outcome, fault};
use super::characters::space;
use super::iteration::values;
use super::letters::{changed, classified};
use super::value::{SequenceKind, Value};

/// The names of the methods.
pub const METHODS: [&str; 45] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
    "format_map",
];

/// Calls a method of a text.
pub fn call(budget: &Budget, of: &str, name: &str, arguments: Arguments) -> Outcome<Value> {
    budget.steps(1 + of.len() / 16)?;
    let new = |text: &str| Value::text(budget, text);
    if let Some(text) = changed(of, name) {
        arguments.bind(name, [], 0)?;
        return new(&text);
    }
    if let Some(value) = classified(of, name) {
        arguments.bind(name, [], 0)?;
        return Ok(Value::Bool(value));
    }
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = arguments.bind(name, ["chars"], 0)?;
            let chars = text(&chars, name)?;
            budget.steps(of.len() / 16 * chars.map_or(1, |chars| 1 + chars.len() / 4))?;
            new(stripped(of, chars, name != "rstrip", name != "lstrip"))
        }
        "split" | "rsplit" => {
            let [separator, most] = arguments.bind(name, ["sep", "maxsplit"], 0)?;
            let most = integer(most.as_ref(), -1)?;
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            split(budget, of, text(&separator, name)?, most, name == "rsplit")
        }
        "splitlines" => {
            let [keep] = arguments.bind(name, ["keepends"], 0)?;
            splitlines(budget, of, keep.is_some_and(|keep| keep.truth()))
        }
        "partition" | "rpartition" => {
            let [separator] = arguments.bind(name, ["sep"], 1)?;
            let separator = text(&separator, name)?.unwrap_or_default();
            if separator.is_empty() {
                return fault("an empty separator");
            }
            let parts = match name {
                "partition" => of.split_once(separator).map(|(a, b)| [a, separator, b]),
                _ => of.rsplit_once(separator).map(|(a, b)| [a, separator, b]),
            };
            let parts =
                parts.unwrap_or(if name == "partition" { [of, "", ""] } else { ["", "", of] });
            let [a, b, c] = parts.map(new);
            Value::collect(budget, SequenceKind::Tuple, [a?, b?, c?])
        }
        "join" => {
            let [items] = arguments.bind(name, ["iterable"], 1)?;
            let mut to = Buffer::new(budget)?;
            for (i, item) in values(budget, &items.unwrap_or(Value::None))?.iter().enumerate() {
                let Some(item) = item.as_str() else {
                    return fault(format_args!("join of a value of type {}", item.kind()));
                };
                to.push(if i > 0 { of } else { "" })?;
                to.push(item)?;
            }
            Ok(Value::of(to))
        }
        "replace" => {
            let [old, by, most] = arguments.bind(name, ["old", "new", "count"], 2)?;
            let most = integer(most.as_ref(), -1)?;
            let (Some(old), Some(by)) = (text(&old, name)?, text(&by, name)?) else {
                return fault("texts for replace");
            };
            replace(budget, of, old, by, usize::try_from(most).unwrap_or(usize::MAX))
        }
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count" => {
            sought(budget, of, name, arguments)
        }
        "removeprefix" | "removesuffix" => {
            let [part] = arguments.bind(name, ["part"], 1)?;
            let part = text(&part, name)?.unwrap_or_default();
            let rest = match name {
                "removeprefix" => of.strip_prefix(part),
                _ => of.strip_suffix(part),
            };
            new(rest.unwrap_or(of))
        }
        "ljust" | "rjust" | "center" => {
            let [width, fill] = arguments.bind(name, ["width", "fillchar"], 1)?;
            let fill = text(&fill, name)?.unwrap_or(" ");
            if fill.chars().count() != 1 {
                return fault("one character to fill with");
            }
            let (width, length) = (count(width.as_ref(), 0)?, of.chars().count());
            let missing = width.saturating_sub(length);
            let before = match name {
                "ljust" => 0,
                "rjust" => missing,
                // If the number of fill characters is odd, the extra character goes before the text
                // for an odd width, and after the text for an even width, as in CPython.
                _ => missing / 2 + (missing & width & 1),
            };
            let mut to = Buffer::new(budget)?;
            to.repeat(fill, before)?;
            to.push(of)?;
            to.repeat(fill, missing - before)?;
            Ok(Value::of(to))
        }
        "zfill" => {
            let [width] = arguments.bind(name, ["width"], 1)?;
            let missing = count(width.as_ref(), 0)?.saturating_sub(of.chars().count());
            let digits = of.trim_start_matches(['+', '-']);
            let sign =
                if of.len() - digits.len() == 1 { of.get(..1).unwrap_or_default() } else { "" };
            let mut to = Buffer::new(budget)?;
            to.push(sign)?;
            to.repeat("0", missing)?;
            to.push(of.get(sign.len()..).unwrap_or_default())?;
            Ok(Value::of(to))
        }
        "expandtabs" => {
            let [size] = arguments.bind(name, ["tabsize"], 0)?;
            let size = count(size.as_ref(), 8)?;
            let (mut to, mut column) = (Buffer::new(budget)?, 0);
            for c in of.chars() {
                match c {
                    '\t' if size == 0 => {}
                    '\t' => {
                        let spaces = size - column % size;
                        to.repeat(" ", spaces)?;
                        column += spaces;
                    }
                    c => {
                        column = if c == '\n' || c == '\r' { 0 } else { column + 1 };
                        to.character(c)?;
                    }
                }
            }
            Ok(Value::of(to))
        }
        "encode" => {
            let [encoding, _] = arguments.bind(name, ["encoding", "errors"], 0)?;
            let encoding = text(&encoding, name)?.unwrap_or("utf-8").to_lowercase();
            match &*encoding.replace('_', "-") {
                "utf-8" | "utf8" => Value::bytes(budget, of),
                "ascii" if of.is_ascii() => Value::bytes(budget, of),
                other => fault(format_args!("the encoding {other:?}, which is not supported")),
            }
        }
        other => fault(format_args!("the method {other:?} of str, which is not supported")),
    }
}

/// Removes the given characters, by default whitespace, from the start, the end or both ends of a
/// string.
pub fn stripped<'a>(of: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let strip = |c: char| chars.map_or_else(|| space(c), |chars| chars.contains(c));
    let of = if start { of.trim_start_matches(strip) } else { of };
    if end { of.trim_end_matches(strip) } else { of }
}

/// Python's `str.replace`, within the budget.
pub fn replace(budget: &Budget, of: &str, old: &str, by: &str, most: usize) -> Outcome<Value> {
    let (mut to, mut from) = (Buffer::new(budget)?, 0);
    for (at, found) in of.match_indices(old).take(most) {
        to.push(of.get(from..at).unwrap_or_default())?;
        to.push(by)?;
        from = at + found.len();
    }
    to.push(of.get(from..).unwrap_or_default())?;
    Ok(Value::of(to))
}

fn split(
    budget: &Budget,
    of: &str,
    separator: Option<&str>,
    most: usize,
    from_end: bool,
) -> Outcome<Value> {
    let mut parts = Items::new(budget)?;
    let mut rest = of;
    match separator {
        Some("") => return fault("an empty separator"),
        Some(separator) if from_end => {
            while parts.items().len() < most
                && let Some((before, after)) = rest.rsplit_once(separator)
            {
                parts.push(Value::text(budget, after)?)?;
                rest = before;
            }
            parts.push(Value::text(budget, rest)?)?;
        }
        Some(separator) => {
            for part in of.splitn(most.saturating_add(1), separator) {
                parts.push(Value::text(budget, part)?)?;
            }
        }
        None if from_end => {
            rest = rest.trim_end_matches(space);
            while !rest.is_empty() {
                let at = rest.char_indices().rev().find(|(_, c)| space(*c));
                let at = at.filter(|_| parts.items().len() < most);
                let from = at.map_or(0, |(at, c)| at + c.len_utf8());
                parts.push(Value::text(budget, rest.get(from..).unwrap_or_default())?)?;
                rest = rest.get(..from).unwrap_or_default().trim_end_matches(space);
            }
        }
        None => {
            rest = rest.trim_start_matches(space);
            while !rest.is_empty() {
                let at = rest.find(space).filter(|_| parts.items().len() < most);
                let (part, after) = rest.split_at(at.unwrap_or(rest.len()));
                parts.push(Value::text(budget, part)?)?;
                rest = after.trim_start_matches(space);
            }
        }
    }
    if from_end {
        parts.items_mut().reverse();
    }
    Value::sequence(SequenceKind::List, parts)
}

fn splitlines(budget: &Budget, of: &str, keep: bool) -> Outcome<Value> {
    let mut lines = Items::new(budget)?;
    for (line, end) in lines_of(of) {
        let mut text = Buffer::new(budget)?;
        text.push(line)?;
        text.push(if keep { end } else { "" })?;
        lines.push(Value::of(text))?;
    }
    Value::sequence(SequenceKind::List, lines)
}

/// Splits a string into lines as Python does. Returns each line and its line break.
pub fn lines_of(of: &str) -> impl Iterator<Item = (&str, &str)> {
    let ends = |c: char| "\n\r\u{b}\u{c}\u{1c}\u{1d}\u{1e}\u{85}\u{2028}\u{2029}".contains(c);
    let mut rest = of;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (line, after) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
        let length = match after.starts_with("\r\n") {
            true => 2,
            false => after.chars().next().map_or(0, char::len_utf8),
        };
        let (end, after) = after.split_at(length);
        rest = after;
        Some((line, end))
    })
}

/// The methods that search for a substring between a start and an end position.
fn sought(budget: &Budget, of: &str, name: &str, arguments: Arguments) -> Outcome<Value> {
    let [part, start, end] = arguments.bind(name, ["part", "start", "end"], 1)?;
    let part = part.unwrap_or(Value::None);
    let (mut from, mut within) = (0, of);
    let bound = |value: Option<Value>| value.filter(|value| !matches!(value, Value::None));
    let (start, end) = (bound(start), bound(end));
    if start.is_some() || end.is_some() {
        let length = of.chars().count();
        let clamp = |value: Option<Value>, default: usize| -> Outcome<usize> {
            let value = integer(value.as_ref(), default as i128)?;
            let value = if value < 0 { value.saturating_add(length as i128) } else { value };
            Ok(usize::try_from(value.max(0)).unwrap_or(usize::MAX))
        };
        let (start, end) = (clamp(start, 0)?, clamp(end, length)?.min(length));
        if start > end {
            return match name {
                "startswith" | "endswith" => Ok(Value::Bool(false)),
                "count" => Ok(Value::Int(0)),
                "index" | "rindex" => fault("the index of a part that is not in the text"),
                _ => Ok(Value::Int(-1)),
            };
        }
        let byte = |at: usize| of.char_indices().nth(at).map_or(of.len(), |(byte, _)| byte);
        from = start;
        within = of.get(byte(start)..byte(end)).unwrap_or_default();
    }
    if let "startswith" | "endswith" = name {
        let parts = match &part {
            Value::Sequence(s) if s.kind == SequenceKind::Tuple => values(budget, &part)?,
            other => vec![other.clone()],
        };
        for part in parts {
            let Some(part) = part.as_str() else {
                return fault(format_args!("{name} of a value of type {}", part.kind()));
            };
            let found = if name == "startswith" {
                within.starts_with(part)
            } else {
                within.ends_with(part)
            };
            if found {
                return Ok(Value::Bool(true));
            }
        }
        return Ok(Value::Bool(false));
    }
    let Some(part) = part.as_str() else {
        return fault(format_args!("{name} of a value of type {}", part.kind()));
    };
    let found = match name {
        "count" => return Ok(Value::Int(within.matches(part).count() as i128)),
        "find" | "index" => within.find(part),
        _ => within.rfind(part),
    };
    let at = found.and_then(|at| within.get(..at)).map(|before| from + before.chars().count());
    match at {
        Some(at) => Ok(Value::Int(at as i128)),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => fault("the index of a part that is not in the text"),
    }
}
