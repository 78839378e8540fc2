//! Function definitions: address spaces of their parameters, and recursion.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::rewrite::tokens::Tokens;
use crate::rewrite::{Remark, SPACES};

pub(super) struct Function {
    name: String,
    /// The first token of the definition, attributes included.
    pub(super) start: usize,
    /// The token of the name.
    pub(super) at: usize,
    pub(super) kernel: bool,
    pub(super) parameters: Vec<Range<usize>>,
    pub(super) body: Range<usize>,
}

const NOT_FUNCTIONS: [&str; 10] = [
    "if",
    "constexpr",
    "for",
    "while",
    "switch",
    "return",
    "sizeof",
    "decltype",
    "alignas",
    "static_assert",
];

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
        // `: a(x), b(y) {` of a constructor
        let access = open > 2 && matches!(tokens.at(open - 3), "public" | "protected" | "private");
        if tokens.before(open - 1) == "," || (tokens.before(open - 1) == ":" && !access) {
            continue;
        }
        let mut brace = tokens.close(open) + 1;
        while matches!(tokens.at(brace), "const" | "volatile" | "noexcept")
            || SPACES.contains(&tokens.at(brace))
            || tokens.is_attribute(brace)
        {
            brace = if tokens.is_attribute(brace) { tokens.close(brace) } else { brace } + 1;
        }
        if tokens.at(brace) == "{" {
            let mut start = open - 1;
            while !matches!(tokens.before(start), ";" | "{" | "}" | "") {
                start -= 1;
            }
            found.push(Function {
                name: tokens.at(open - 1).to_string(),
                start,
                at: open - 1,
                kernel: (start..open - 1).any(|i| tokens.at(i) == "kernel"),
                parameters: tokens.split(open),
                body: brace..tokens.close(brace),
            });
        }
    }
    found
}

/// "pointer type must have explicit address space qualifier", "reference type must have explicit
/// address space qualifier".
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

/// Finds recursion, by a rule that goes beyond MSL's: no kernel needs a stack of unknown depth.
/// Calls are matched by name; functions with overloads of the same arity are skipped, since a call
/// may mean another of them.
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
