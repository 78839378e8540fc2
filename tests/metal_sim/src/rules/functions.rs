//! Function definitions: address spaces of their parameters, and recursion.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::rewrite::tokens::Tokens;
use crate::rewrite::{Remark, SPACES};

pub(super) struct Function {
    name: String,
    /// The token of the name.
    at: usize,
    pub(super) parameters: Vec<Range<usize>>,
    body: Range<usize>,
}

const NOT_FUNCTIONS: [&str; 9] =
    ["if", "for", "while", "switch", "return", "sizeof", "decltype", "alignas", "static_assert"];

pub(super) fn look(tokens: &Tokens, functions: &[Function]) -> Vec<Remark> {
    let mut found = bare_pointers(tokens, functions);
    found.extend(recursion(tokens, functions));
    found
}

pub(super) fn definitions(tokens: &Tokens) -> Vec<Function> {
    let mut found = Vec::new();
    for open in (1..tokens.len()).filter(|&i| tokens.at(i) == "(") {
        if !tokens.is_word(open - 1) || NOT_FUNCTIONS.contains(&tokens.at(open - 1)) {
            continue;
        }
        let mut brace = tokens.close(open) + 1;
        while matches!(tokens.at(brace), "const" | "volatile" | "noexcept")
            || SPACES.contains(&tokens.at(brace))
        {
            brace += 1;
        }
        if tokens.at(brace) == "{" {
            found.push(Function {
                name: tokens.at(open - 1).to_string(),
                at: open - 1,
                parameters: tokens.split(open),
                body: brace..tokens.close(brace),
            });
        }
    }
    found
}

fn bare_pointers(tokens: &Tokens, functions: &[Function]) -> Vec<Remark> {
    let mut found = Vec::new();
    for parameter in functions.iter().flat_map(|function| &function.parameters) {
        let mut indirect = false;
        let mut i = parameter.start;
        while i < parameter.end {
            match tokens.at(i) {
                "<" | "(" | "[" => i = tokens.close(i),
                "=" => break,
                "*" | "&" => indirect = true,
                _ => {}
            }
            i += 1;
        }
        let spaced = parameter.clone().any(|i| SPACES.contains(&tokens.at(i)));
        if indirect && !spaced {
            let (file, line) = tokens.place(parameter.start);
            let text = format!(
                "pointer or reference parameter without an address space: {}",
                tokens.join(parameter.clone())
            );
            found.push(Remark { file, line, text, advice: false });
        }
    }
    found
}

/// Calls by name; functions with overloads of the same arity are left out, as a call may
/// mean another of them.
fn recursion(tokens: &Tokens, functions: &[Function]) -> Vec<Remark> {
    let mut unique: BTreeMap<(&str, usize), Option<usize>> = BTreeMap::new();
    for (i, function) in functions.iter().enumerate() {
        let key = (function.name.as_str(), function.parameters.len());
        unique.entry(key).and_modify(|known| *known = None).or_insert(Some(i));
    }
    let calls: Vec<BTreeSet<usize>> = functions
        .iter()
        .map(|function| {
            let called = function.body.clone().filter_map(|i| {
                let call = tokens.is_word(i)
                    && tokens.at(i + 1) == "("
                    && !matches!(tokens.before(i), "." | "->" | "::");
                let key = (tokens.at(i), if call { tokens.split(i + 1).len() } else { 0 });
                call.then(|| unique.get(&key).copied().flatten()).flatten()
            });
            called.collect()
        })
        .collect();
    let mut found = Vec::new();
    for (i, function) in functions.iter().enumerate() {
        let mut reached = BTreeSet::new();
        let mut next: Vec<usize> = calls[i].iter().copied().collect();
        while let Some(callee) = next.pop() {
            if reached.insert(callee) {
                next.extend(&calls[callee]);
            }
        }
        if reached.contains(&i) {
            let (file, line) = tokens.place(function.at);
            let text =
                format!("function '{}' is recursive, which MSL does not allow", function.name);
            found.push(Remark { file, line, text, advice: false });
        }
    }
    found
}
