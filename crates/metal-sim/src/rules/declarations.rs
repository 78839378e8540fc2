//! Rules about declarations: address spaces of pointers, address spaces outside functions, and
//! `static`. Quoted texts are the messages of Apple's compiler.

use crate::rewrite::front::Function;
use crate::rewrite::{SPACES, Tokens, Violation};

pub(super) fn look(tokens: &Tokens, functions: &[Function]) -> Vec<Violation> {
    let pointers = (0..tokens.len()).filter_map(|i| pointer(tokens, i));
    let results = functions.iter().filter_map(|function| result(tokens, function));
    let statics = functions.iter().flat_map(|function| statics(tokens, function));
    pointers.chain(results).chain(statics).chain(outside(tokens)).collect()
}

const BARE: &str = "pointer or reference without an address space";

/// Finds "pointer type must have explicit address space qualifier" and "reference type must have
/// explicit address space qualifier" for variables, members, aliases and casts.
/// [`super::functions`] checks parameters.
fn pointer(tokens: &Tokens, start: usize) -> Option<Violation> {
    let opening = tokens.before(start);
    let cast = matches!(opening, "(" | "<");
    if !cast && !matches!(opening, ";" | "{" | "}") {
        return None;
    }
    let mut at = start;
    while matches!(tokens.at(at), "const" | "constexpr" | "volatile" | "static" | "typedef") {
        at += 1;
    }
    if matches!(tokens.at(at), "return" | "else" | "case" | "auto" | "goto" | "delete" | "operator")
    {
        return None; // `auto` takes the address space of what it is given
    }
    at = kind(tokens, at)?;
    let mark = at;
    while matches!(tokens.at(at), "*" | "&" | "const") {
        at += 1;
    }
    let named = tokens.is_word(at) && matches!(tokens.at(at + 1), "=" | ";" | "[" | "{");
    let ends = if cast { matches!(tokens.at(at), ")" | ">") } else { named };
    if at == mark || !ends {
        return None;
    }
    Some(Violation::at(tokens, start, format!("{BARE}: {}", tokens.join(start..at))))
}

/// Returns the position of the token after the name of a type.
fn kind(tokens: &Tokens, start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        if !tokens.is_word(at) || SPACES.contains(&tokens.at(at)) {
            return None;
        }
        at += 1;
        if tokens.at(at) == "<" {
            at = tokens.close(at) + 1;
        }
        if tokens.at(at) == "const" {
            at += 1;
        }
        if tokens.at(at) != "::" {
            return Some(at);
        }
        at += 1;
    }
}

/// Checks the return type of a function.
fn result(tokens: &Tokens, function: &Function) -> Option<Violation> {
    let mut at = function.start;
    let mut indirect = false;
    while at < function.at {
        match tokens.at(at) {
            "<" | "[" | "(" => at = tokens.close(at),
            "*" | "&" => indirect = true,
            word if SPACES.contains(&word) || word == "auto" => return None,
            _ => {}
        }
        at += 1;
    }
    let text = || format!("{BARE}: what '{}' returns", tokens.at(function.at));
    indirect.then(|| Violation::at(tokens, function.at, text()))
}

/// Finds "variables in function scope cannot be declared static".
fn statics(tokens: &Tokens, function: &Function) -> Vec<Violation> {
    let inside = |i: &usize| tokens.at(*i) == "static" && !tokens.in_struct(*i);
    let text = "a variable in a function cannot be static";
    function.body.clone().filter(inside).map(|i| Violation::at(tokens, i, text)).collect()
}

/// Finds "program scope variable must reside in constant address space" and "variable in constant
/// address space must be initialized".
fn outside(tokens: &Tokens) -> Vec<Violation> {
    let (mut found, mut start) = (Vec::new(), 0);
    while start < tokens.len() {
        let head = tokens.at(start);
        if head == "namespace" || (head == "extern" && tokens.at(start + 2) == "{") {
            while !matches!(tokens.at(start), "{" | ";" | "") {
                start += 1;
            }
            start += 1;
            continue;
        }
        if matches!(head, "}" | ";") {
            start += 1;
            continue;
        }
        // Read to the end of the declaration. The variable's name comes before the first `=`, `(`,
        // `[` or `{`.
        let (mut at, mut name, mut called) = (start, None, false);
        while !matches!(tokens.at(at), ";" | "") {
            match tokens.at(at) {
                _ if tokens.is_attribute(at) => at = tokens.close(at),
                "operator" => {
                    while !matches!(tokens.at(at + 1), "(" | ";" | "") {
                        at += 1;
                    }
                }
                "<" => at = tokens.close(at),
                mark @ ("=" | "(" | "[" | "{") => {
                    called |= mark == "(" && name.is_none();
                    name.get_or_insert(at);
                    if mark != "=" {
                        at = tokens.close(at);
                    }
                    if mark == "{" && called {
                        break; // a function's body
                    }
                }
                _ => {}
            }
            at += 1;
        }
        let declared = start..name.unwrap_or(at);
        // `constant float S<4>::table[8];` defines a member whose initializer is inside the struct.
        let member = declared.len() > 2 && tokens.before(declared.end - 1) == "::";
        let other = called || is_other(head) || declared.len() < 2 || member;
        if !other && declared.clone().all(|i| tokens.at(i) != "constant") {
            let text = "a variable outside functions has to be in the address space 'constant'";
            found.push(Violation::at(tokens, start, text));
        }
        let set = (declared.start..at)
            .any(|i| matches!(tokens.at(i), "=" | "{" | "extern" | "function_constant"));
        if !other && !set {
            let text = "a variable in the address space 'constant' has to be initialized";
            found.push(Violation::at(tokens, start, text));
        }
        start = at + 1;
    }
    found
}

/// Whether a declaration that begins with this word declares something other than a variable.
fn is_other(head: &str) -> bool {
    matches!(head, "using" | "typedef" | "template" | "static_assert" | "friend")
        || matches!(head, "struct" | "class" | "union" | "enum")
}
