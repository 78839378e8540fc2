//! Finds threadgroup variables and function constants.

use std::ops::Range;

use super::tokens::Tokens;

/// A declaration of threadgroup variables in a function, such as `threadgroup float x[32], y;`.
pub struct ThreadgroupVariables {
    /// The tokens from `threadgroup` up to, but not including, the semicolon.
    pub range: Range<usize>,
    /// The type.
    pub kind: String,
    pub variables: Vec<Variable>,
}

pub struct Variable {
    /// The token that is the name.
    pub at: usize,
    /// The size of an array in brackets, such as `[(32)]`. The size is in parentheses, because it
    /// may contain a comparison with `>`.
    pub extent: String,
    pub is_initialized: bool,
}

pub fn threadgroup_variables(tokens: &Tokens) -> Vec<ThreadgroupVariables> {
    let starts = |&i: &usize| {
        tokens.at(i) == "threadgroup"
            && matches!(tokens.before(i), ";" | "{" | "}" | "static" | ")")
            && !tokens.in_struct(i)
    };
    (0..tokens.len()).filter(starts).filter_map(|i| declaration(tokens, i)).collect()
}

fn declaration(tokens: &Tokens, start: usize) -> Option<ThreadgroupVariables> {
    let mut at = start + 1;
    while !matches!(tokens.at(at), ";" | "=" | "[" | "," | "(" | "{" | "") {
        match tokens.at(at) {
            "*" | "&" => return None, // this declares a pointer into threadgroup memory
            "<" => at = tokens.close(at),
            _ => {}
        }
        at += 1;
    }
    if !matches!(tokens.at(at), ";" | "=" | "[" | ",") {
        return None;
    }
    let end = next(tokens, at, tokens.len(), &[";", ""]);
    let (mut variables, mut name) = (Vec::new(), at - 1);
    while name < end {
        let (mut after, mut extent) = (name + 1, String::new());
        while tokens.at(after) == "[" {
            let end = tokens.close(after);
            extent.push_str(&format!("[({})]", tokens.join(after + 1..end)));
            after = end + 1;
        }
        let comma = next(tokens, after, end, &[","]);
        variables.push(Variable { at: name, extent, is_initialized: comma > after });
        name = comma + 1;
    }
    Some(ThreadgroupVariables {
        range: start..end,
        kind: tokens.join(start + 1..at - 1),
        variables,
    })
}

/// Returns the index of the first of these marks that is not inside a bracket, or `end`.
fn next(tokens: &Tokens, mut at: usize, end: usize, marks: &[&str]) -> usize {
    while at < end && !marks.contains(&tokens.at(at)) {
        at = if matches!(tokens.at(at), "(" | "[" | "{") { tokens.close(at) } else { at } + 1;
    }
    at
}

/// A function constant: `constant T name [[function_constant(n)]];`.
pub struct FunctionConstant {
    /// The tokens of the declaration up to the semicolon.
    pub range: Range<usize>,
    /// The index of the attribute's first token.
    pub attribute: usize,
    /// The attribute's `n`, if it is a literal or a sum of literals.
    pub index: Option<u32>,
    pub name: String,
    pub kind: String,
}

/// Computes a sum of literals in the parentheses at `open`, such as `(BASE + 3)` after the
/// preprocessor has replaced BASE.
fn sum(tokens: &Tokens, open: usize) -> Option<u32> {
    let terms = (open + 1..tokens.close(open)).filter(|&i| !matches!(tokens.at(i), "(" | ")"));
    let (mut total, mut plus) = (None, true);
    for i in terms {
        match (tokens.at(i), plus) {
            ("+", false) => plus = true,
            (term, true) => {
                let number: u32 = term.trim_end_matches(['u', 'U']).parse().ok()?;
                (total, plus) = (Some(total.unwrap_or(0) + number), false);
            }
            _ => return None,
        }
    }
    total
}

pub fn function_constants(tokens: &Tokens) -> Vec<FunctionConstant> {
    let declares = |&i: &usize| {
        tokens.is_attribute(i)
            && tokens.at(i + 2) == "function_constant"
            && tokens.at(tokens.close(i) + 1) == ";"
    };
    let constant = |attribute: usize| {
        let name = attribute - 1;
        let ends = |&i: &usize| matches!(tokens.before(i), ";" | "{" | "}" | "");
        let start = (0..name).rev().find(ends).unwrap_or(name);
        FunctionConstant {
            range: start..tokens.close(attribute) + 1,
            attribute,
            index: sum(tokens, attribute + 3),
            name: tokens.at(name).to_owned(),
            kind: tokens
                .join_without(start..name, &["constant", "const", "static", "constexpr", "inline"])
                .trim()
                .to_owned(),
        }
    };
    (1..tokens.len()).filter(declares).map(constant).collect()
}
