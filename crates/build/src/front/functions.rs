//! Finds function definitions.

use std::ops::Range;

use super::tokens::{SPACES, Tokens};

pub struct Function {
    pub name: String,
    /// The index of the first token of the definition, which may be an attribute.
    pub start: usize,
    /// The token that is the name.
    pub at: usize,
    pub is_kernel: bool,
    pub parameters: Vec<Range<usize>>,
    /// The tokens from the opening brace up to, but not including, the closing brace.
    pub body: Range<usize>,
}

/// Returns the functions that the source defines. Functions that it only declares are left out.
pub fn functions(tokens: &Tokens) -> Vec<Function> {
    let mut found = Vec::new();
    for open in (1..tokens.len()).filter(|&i| tokens.at(i) == "(") {
        if !tokens.is_word(open - 1) || is_keyword(tokens.at(open - 1)) {
            continue;
        }
        // Skip the initializers of a constructor, as in `: a(x), b(y) {`.
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
                name: tokens.at(open - 1).to_owned(),
                start,
                at: open - 1,
                is_kernel: (start..open - 1).any(|i| tokens.at(i) == "kernel"),
                parameters: tokens.split(open),
                body: brace..tokens.close(brace),
            });
        }
    }
    found
}

/// Whether a word before a parenthesis is a keyword and not the name of a function.
fn is_keyword(word: &str) -> bool {
    matches!(word, "if" | "constexpr" | "for" | "while" | "switch" | "return")
        || matches!(word, "sizeof" | "decltype" | "alignas" | "static_assert")
}
