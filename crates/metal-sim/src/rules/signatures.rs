//! Checks that a kernel's parameters and attributes meet the rules of Apple's front end. Quoted
//! texts are the messages of Apple's compiler.

use std::ops::Range;

use super::positions::POSITIONS;
use crate::rewrite::front::{Attribute, Function, attributes};
use crate::rewrite::{BUILTINS, SPACES, Tokens, Violation};

/// The highest allowed index of a buffer, or of threadgroup memory.
const LAST_INDEX: u32 = 30;

pub(super) fn look(tokens: &Tokens, functions: &[Function]) -> Vec<Violation> {
    let mut found: Vec<Violation> = functions.iter().filter_map(|f| after(tokens, f)).collect();
    for function in functions.iter().filter(|function| function.is_kernel) {
        let mut seen: Vec<(String, String)> = Vec::new();
        for range in &function.parameters {
            let attributes = attributes(tokens, range.clone());
            let optional = attributes.iter().any(|a| a.name == "function_constant");
            for attribute in &attributes {
                found.extend(resource(tokens, range.clone(), attribute));
                found.extend(value(tokens, range.clone(), attribute));
                let key = (attribute.name.clone(), attribute.argument.clone().unwrap_or_default());
                if optional || matches!(key.0.as_str(), "maybe_unused" | "id") {
                    continue; // other parameters may take its place
                }
                found.extend(conflict(tokens, attribute, &seen));
                seen.push(key);
            }
        }
    }
    found
}

/// Finds "'max_total_threads_per_threadgroup' attribute cannot be applied to types": a function's
/// attribute that comes after the parameters instead of before the return type.
fn after(tokens: &Tokens, function: &Function) -> Option<Violation> {
    let end = tokens.close(function.at + 1) + 1;
    let name = tokens.at(end + 2);
    let text = "stands behind the parameters: a function's attributes come before its type";
    tokens.is_attribute(end).then(|| Violation::at(tokens, end, format!("[[{name}]] {text}")))
}

/// Finds "'buffer' attribute parameter is out of bounds: must be between 0 and 30", "'buffer'
/// attribute takes one argument", "type 'uint' (aka 'unsigned int') is not valid for attribute
/// 'buffer'", "invalid address space qualification for buffer pointee type 'threadgroup float'".
fn resource(tokens: &Tokens, range: Range<usize>, attribute: &Attribute) -> Option<Violation> {
    let name = attribute.name.as_str();
    let spaces: &[&str] = match name {
        "buffer" => &["device", "constant"],
        "threadgroup" => &["threadgroup"],
        _ => return None,
    };
    let says =
        |text: String| Some(Violation::at(tokens, attribute.at, format!("[[{name}]] {text}")));
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

/// Finds "type 'int' is not valid for attribute 'position'" and "parameter may not be qualified
/// with an address space": built-in values are unsigned integers that are passed by value.
fn value(tokens: &Tokens, range: Range<usize>, attribute: &Attribute) -> Option<Violation> {
    if !BUILTINS.contains(&attribute.name.as_str()) {
        return None;
    }
    let position =
        attribute.name.starts_with("grid_") || POSITIONS.contains(&attribute.name.as_str());
    let end = range.clone().find(|&i| tokens.is_attribute(i)).unwrap_or(range.end);
    let kind: Vec<&str> = (range.start..end.saturating_sub(1))
        .map(|i| tokens.at(i))
        .filter(|w| *w != "const")
        .collect();
    let [kind] = kind[..] else {
        let text =
            format!("[[{}]] is on '{}', not on a plain value", attribute.name, kind.join(" "));
        return Some(Violation::at(tokens, attribute.at, text));
    };
    let element = kind.trim_end_matches(['2', '3']);
    let scalar = matches!(kind, "ushort" | "uint" | "uint16_t" | "uint32_t");
    let vector =
        position && kind.len() == element.len() + 1 && matches!(element, "ushort" | "uint");
    let text = format!("type '{kind}' is not valid for [[{}]]", attribute.name);
    (!scalar && !vector).then(|| Violation::at(tokens, attribute.at, text))
}

/// Finds "kernel function cannot have input declarations with 'thread_execution_width' and
/// 'threads_per_simdgroup' attributes", "cannot reserve 'buffer' resource location at index 0",
/// "declaration with attribute 'position' already specified".
fn conflict(
    tokens: &Tokens,
    attribute: &Attribute,
    seen: &[(String, String)],
) -> Option<Violation> {
    let (name, argument) =
        (attribute.name.as_str(), attribute.argument.clone().unwrap_or_default());
    let other = match name {
        "thread_execution_width" => "threads_per_simdgroup",
        "threads_per_simdgroup" => "thread_execution_width",
        _ => name,
    };
    let text = if seen.iter().any(|one| one.0 == name && one.1 == argument) {
        format!("{name}({argument})").trim_end_matches("()").to_string() + " is on two parameters"
    } else if other != name && seen.iter().any(|(seen, _)| seen == other) {
        format!("{name} and {other} exclude each other")
    } else {
        return None;
    };
    Some(Violation::at(tokens, attribute.at, text))
}
