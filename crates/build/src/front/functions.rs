//! Function definitions.

use std::ops::Range;

use super::tokens::{SPACES, Tokens};

pub struct Function {
    pub name: String,
    /// The first token of the definition, including its attributes.
    pub start: usize,
    /// The token that is the name.
    pub at: usize,
    pub is_kernel: bool,
    pub parameters: Vec<Range<usize>>,
    /// The tokens from the opening brace up to the closing brace, which is not included.
    pub body: Range<usize>,
}

/// The functions that are defined, not only declared.
pub fn functions(tokens: &Tokens) -> Vec<Function> {
    let mut found = Vec::new();
    for open in (1..tokens.len()).filter(|&i| tokens.at(i) == "(") {
        if !tokens.is_word(open - 1) || is_keyword(tokens.at(open - 1)) {
            continue;
        }
        // The initializers of a constructor, `: a(x), b(y) {`.
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

/// Whether a word can precede a parenthesis without being the name of a function.
fn is_keyword(word: &str) -> bool {
    matches!(word, "if" | "constexpr" | "for" | "while" | "switch" | "return")
        || matches!(word, "sizeof" | "decltype" | "alignas" | "static_assert")
}
