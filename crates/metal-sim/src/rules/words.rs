//! Finds words that MSL forbids: "'double' is not supported in Metal", "'goto' is not supported in
//! Metal", "lambda expressions are not supported in Metal", "pointers to functions are not
//! allowed", "Metal does not support the 'register' storage class specifier", and the words that
//! the specification lists under Restrictions.

use crate::rewrite::front::Kind;
use crate::rewrite::{Tokens, Violation};

const FORBIDDEN: [(&str, &str); 14] = [
    ("double", "double is not a type of MSL"),
    ("goto", "goto is not part of MSL"),
    ("virtual", "virtual functions are not part of MSL"),
    ("try", "exceptions are not part of MSL"),
    ("catch", "exceptions are not part of MSL"),
    ("throw", "exceptions are not part of MSL"),
    ("dynamic_cast", "dynamic_cast is not part of MSL"),
    ("typeid", "run-time type information is not part of MSL"),
    ("new", "new is not part of MSL"),
    ("delete", "delete is not part of MSL"),
    ("asm", "asm is not part of MSL"),
    ("thread_local", "thread_local is not part of MSL"),
    ("register", "register is not part of MSL"),
    ("wchar_t", "wchar_t is not a type of MSL"),
];

pub(super) fn look(tokens: &Tokens) -> Vec<Violation> {
    let mut found = Vec::new();
    for i in (0..tokens.len()).filter(|&i| tokens.at(i) == "[" && !tokens.is_attribute(i)) {
        let first = matches!(tokens.before(i), "=" | "(" | "," | "{" | "return");
        if first && tokens.at(tokens.close(i) + 1) == "(" {
            let text = "lambda expressions are not part of MSL before Metal 3.2";
            found.push(Violation { advice: true, ..Violation::at(tokens, i, text) });
        }
    }
    for i in (0..tokens.len()).filter(|&i| tokens.list[i].kind == Kind::Word) {
        let word = tokens.at(i);
        if word == "delete" && tokens.before(i) == "=" {
            continue; // a deleted member
        }
        if word == "long" && tokens.before(i) == "long" {
            found.push(Violation::at(tokens, i, "long long is not a type of MSL"));
        }
        if let Some((_, text)) = FORBIDDEN.iter().find(|(name, _)| *name == word) {
            let long = word == "double" && tokens.before(i) == "long";
            let text = if long { "long double is not a type of MSL" } else { text };
            found.push(Violation::at(tokens, i, text));
        }
        let function_pointer = tokens.before(i) == "*"
            && i > 1
            && tokens.at(i - 2) == "("
            && tokens.at(i + 1) == ")"
            && tokens.at(i + 2) == "("
            && i > 2
            && tokens.is_word(i - 3);
        // A template parameter may stand for a function, which is known only when the template is
        // instantiated.
        let parameter = || {
            let begin = (0..i).rev().find(|&at| tokens.at(at) == "template");
            begin.is_some_and(|at| tokens.at(at + 1) == "<" && tokens.close(at + 1) > i)
        };
        if function_pointer
            && !matches!(tokens.at(i - 3), "return" | "sizeof" | "decltype")
            && !parameter()
        {
            found.push(Violation::at(tokens, i, "pointers to functions are not part of MSL"));
        }
    }
    found
}
