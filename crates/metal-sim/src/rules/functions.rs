//! Rules about function definitions: address spaces of parameters, and recursion. Quoted texts are
//! the messages of Apple's compiler.

use std::collections::{BTreeMap, BTreeSet};

use crate::rewrite::front::Function;
use crate::rewrite::{SPACES, Tokens, Violation};

pub(super) fn look(tokens: &Tokens, functions: &[Function]) -> Vec<Violation> {
    let mut found = bare_pointers(tokens, functions);
    found.extend(recursion(tokens, functions));
    found
}

/// Finds "pointer type must have explicit address space qualifier" and "reference type must have
/// explicit address space qualifier" for parameters.
fn bare_pointers(tokens: &Tokens, functions: &[Function]) -> Vec<Violation> {
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
            let text = "pointer or reference parameter without an address space";
            let text = format!("{text}: {}", tokens.join(parameter.clone()));
            found.push(Violation::at(tokens, parameter.start, text));
        }
    }
    found
}

/// Finds recursion. The rule is stricter than MSL's rule, since no kernel needs a stack of unknown
/// depth. Calls are matched by name. Functions with overloads of the same arity are skipped, since
/// a call may mean another overload.
fn recursion(tokens: &Tokens, functions: &[Function]) -> Vec<Violation> {
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
            let text =
                format!("function '{}' is recursive, which MSL does not allow", function.name);
            found.push(Violation::at(tokens, function.at, text));
        }
    }
    found
}
