//! Checks that a kernel's parameters and attributes meet the rules of Apple's front end.

use std::ops::Range;

use super::functions::Function;
use super::positions::POSITIONS;
use crate::rewrite::tokens::Tokens;
use crate::rewrite::{BUILTINS, Remark, SPACES};

/// The highest index of a buffer, or of threadgroup memory.
const LAST_INDEX: u32 = 30;

/// One `[[name(argument)]]` of a parameter.
struct Attribute<'a> {
    name: &'a str,
    argument: Option<String>,
    at: usize,
}

pub(super) fn look(tokens: &Tokens, functions: &[Function]) -> Vec<Remark> {
    let mut found: Vec<Remark> = functions.iter().filter_map(|f| after(tokens, f)).collect();
    for function in functions.iter().filter(|function| function.kernel) {
        let mut seen: Vec<(&str, String)> = Vec::new();
        for range in &function.parameters {
            let attributes = attributes(tokens, range.clone());
            let optional = attributes.iter().any(|a| a.name == "function_constant");
            for attribute in &attributes {
                found.extend(resource(tokens, range.clone(), attribute));
                found.extend(value(tokens, range.clone(), attribute));
                let key = (attribute.name, attribute.argument.clone().unwrap_or_default());
                if optional || matches!(key.0, "maybe_unused" | "id") {
                    continue; // other parameters may take its place
                }
                found.extend(conflict(tokens, attribute, &seen));
                seen.push(key);
            }
        }
    }
    found
}

fn attributes(tokens: &Tokens, range: Range<usize>) -> Vec<Attribute<'_>> {
    let brackets = range.filter(|&i| tokens.is_attribute(i));
    let parts = brackets.flat_map(|i| tokens.split(i + 1));
    let attribute = |part: Range<usize>| Attribute {
        name: tokens.at(part.start),
        argument: (part.len() > 3).then(|| tokens.join(part.start + 2..part.end - 1)),
        at: part.start,
    };
    parts.map(attribute).collect()
}

/// "'max_total_threads_per_threadgroup' attribute cannot be applied to types": an attribute of the
/// function that stands behind its parameters.
fn after(tokens: &Tokens, function: &Function) -> Option<Remark> {
    let end = tokens.close(function.at + 1) + 1;
    let name = tokens.at(end + 2);
    let text = "stands behind the parameters: a function's attributes come before its type";
    tokens.is_attribute(end).then(|| remark(tokens, end, format!("[[{name}]] {text}")))
}

/// "'buffer' attribute parameter is out of bounds: must be between 0 and 30", "'buffer' attribute
/// takes one argument", "type 'uint' (aka 'unsigned int') is not valid for attribute 'buffer'",
/// "invalid address space qualification for buffer pointee type 'threadgroup float'".
fn resource(tokens: &Tokens, range: Range<usize>, attribute: &Attribute) -> Option<Remark> {
    let name = attribute.name;
    let spaces: &[&str] = match name {
        "buffer" => &["device", "constant"],
        "threadgroup" => &["threadgroup"],
        _ => return None,
    };
    let says = |text: String| Some(remark(tokens, attribute.at, format!("[[{name}]] {text}")));
    match &attribute.argument {
        None => return says("has no index".into()),
        Some(index) if index.parse::<u32>().is_ok_and(|index| index > LAST_INDEX) => {
            return says(format!("has index {index}, beyond {LAST_INDEX}"));
        }
        Some(_) => {}
    }
    let declaration = || range.clone().take_while(|&i| !tokens.is_attribute(i));
    if !declaration().any(|i| matches!(tokens.at(i), "*" | "&" | "[")) {
        return says("is on a parameter that is neither a pointer nor a reference".into());
    }
    let space = declaration().map(|i| tokens.at(i)).find(|word| SPACES.contains(word))?;
    if spaces.contains(&space) {
        return None;
    }
    says(format!("is on a parameter in the address space '{space}'"))
}

/// "type 'int' is not valid for attribute 'position'" and "parameter may not be
/// qualified with an address space": what a thread is told is in unsigned integers, by value.
fn value(tokens: &Tokens, range: Range<usize>, attribute: &Attribute) -> Option<Remark> {
    if !BUILTINS.contains(&attribute.name) {
        return None;
    }
    let position = attribute.name.starts_with("grid_") || POSITIONS.contains(&attribute.name);
    let end = range.clone().find(|&i| tokens.is_attribute(i)).unwrap_or(range.end);
    let kind: Vec<&str> = (range.start..end.saturating_sub(1))
        .map(|i| tokens.at(i))
        .filter(|w| *w != "const")
        .collect();
    let [kind] = kind[..] else {
        let text =
            format!("[[{}]] is on '{}', not on a plain value", attribute.name, kind.join(" "));
        return Some(remark(tokens, attribute.at, text));
    };
    let element = kind.trim_end_matches(['2', '3']);
    let scalar = matches!(kind, "ushort" | "uint" | "uint16_t" | "uint32_t");
    let vector =
        position && kind.len() == element.len() + 1 && matches!(element, "ushort" | "uint");
    let text = format!("type '{kind}' is not valid for [[{}]]", attribute.name);
    (!scalar && !vector).then(|| remark(tokens, attribute.at, text))
}

/// "kernel function cannot have input declarations with 'thread_execution_width' and
/// 'threads_per_simdgroup' attributes", "cannot reserve 'buffer' resource location at index 0",
/// "declaration with attribute 'position' already specified".
fn conflict(tokens: &Tokens, attribute: &Attribute, seen: &[(&str, String)]) -> Option<Remark> {
    let (name, argument) = (attribute.name, attribute.argument.clone().unwrap_or_default());
    let other = match name {
        "thread_execution_width" => "threads_per_simdgroup",
        "threads_per_simdgroup" => "thread_execution_width",
        _ => name,
    };
    let text = if seen.contains(&(name, argument.clone())) {
        format!("{name}({argument})").trim_end_matches("()").to_string() + " is on two parameters"
    } else if other != name && seen.iter().any(|(seen, _)| *seen == other) {
        format!("{name} and {other} exclude each other")
    } else {
        return None;
    };
    Some(remark(tokens, attribute.at, text))
}

fn remark(tokens: &Tokens, at: usize, text: String) -> Remark {
    let (file, line) = tokens.place(at);
    Remark { file, line, text, advice: false }
}
