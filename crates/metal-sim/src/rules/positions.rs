//! Rules about a kernel's positions and sizes in the grid: they must all be scalars, or all be
//! vectors of the same width. Some of them must also have the same element type. Quoted texts are
//! the messages of Apple's compiler.

use std::ops::Range;

use crate::rewrite::front::{Function, attributes};
use crate::rewrite::{Tokens, Violation};

/// The attributes that the rule about widths covers. An index, such as `thread_index_in_simdgroup`,
/// is always a scalar, and may be used beside vectors.
pub(super) const POSITIONS: [&str; 7] = [
    "thread_position_in_grid",
    "threadgroup_position_in_grid",
    "thread_position_in_threadgroup",
    "threads_per_threadgroup",
    "threads_per_grid",
    "threadgroups_per_grid",
    "dispatch_threads_per_threadgroup",
];

/// Groups of attributes whose parameters must have the same element type, according to notes in the
/// specification.
const SAME: [&[&str]; 2] = [
    &["thread_position_in_grid", "threads_per_grid"],
    &[
        "thread_position_in_threadgroup",
        "threads_per_threadgroup",
        "dispatch_threads_per_threadgroup",
    ],
];

/// A parameter that has one of the attributes in `POSITIONS`.
struct Position {
    attribute: String,
    width: u32,
    at: usize,
}

pub(super) fn look(tokens: &Tokens, functions: &[Function]) -> Vec<Violation> {
    let types = functions.iter().flat_map(|function| types(tokens, function));
    functions.iter().filter_map(|function| mix(tokens, function)).chain(types).collect()
}

/// Finds parameters that must have the same element type, but have different ones.
fn types(tokens: &Tokens, function: &Function) -> Vec<Violation> {
    let of = |attributes: &[&str]| {
        let mut seen: Option<bool> = None;
        let other = function.parameters.iter().find(|range| {
            let named = (range.start..range.end).any(|i| attributes.contains(&tokens.at(i)));
            let kind = (range.start..range.end).find(|&i| width(tokens.at(i)).is_some());
            let Some(kind) = kind.filter(|_| named) else { return false };
            let short = tokens.at(kind).contains("short") || tokens.at(kind) == "uint16_t";
            *seen.get_or_insert(short) != short
        })?;
        let text =
            format!("the parameters of [[{}]] must be of one type", attributes.join("]], [["));
        Some(Violation::at(tokens, other.start, text))
    };
    SAME.into_iter().filter_map(of).collect()
}

/// Finds "expecting input declarations with either all scalar types or all vector types with the
/// same number of elements". Reports the first parameter whose width differs from the width of the
/// first position.
fn mix(tokens: &Tokens, function: &Function) -> Option<Violation> {
    let ranges = function.parameters.iter();
    let mut positions = ranges.filter_map(|range| position(tokens, range.clone()));
    let first = positions.next()?;
    let other = positions.find(|position| position.width != first.width)?;
    let kind = |width| match width {
        1 => "a scalar".to_string(),
        width => format!("a vector of {width}"),
    };
    let text = format!(
        "[[{}]] is {} where [[{}]] is {}: a kernel's positions must all be scalars, or all be \
         vectors of one width",
        other.attribute,
        kind(other.width),
        first.attribute,
        kind(first.width),
    );
    Some(Violation::at(tokens, other.at, text))
}

fn position(tokens: &Tokens, range: Range<usize>) -> Option<Position> {
    let mut names = attributes(tokens, range.clone()).into_iter().map(|one| one.name);
    let attribute = names.find(|name| POSITIONS.contains(&name.as_str()))?;
    let mut words = range.clone().take_while(|&i| !tokens.is_attribute(i));
    let width = words.find_map(|i| width(tokens.at(i)))?;
    Some(Position { attribute, width, at: range.start })
}

/// Returns the width of a type that MSL allows for positions. The compiler checks other names, such
/// as aliases.
fn width(word: &str) -> Option<u32> {
    match word {
        "ushort" | "uint" | "uint16_t" | "uint32_t" => Some(1),
        "ushort2" | "uint2" => Some(2),
        "ushort3" | "uint3" => Some(3),
        _ => None,
    }
}
