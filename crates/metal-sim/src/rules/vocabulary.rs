//! The parts of Metal that a source uses: attributes with their types, functions and types.

use std::collections::BTreeSet;
use std::path::Path;

use crate::compiler::Compiler;
use crate::error::Result;
use crate::rewrite::front::{self, SCALARS};
use crate::rewrite::{SPACES, Tokens};
use crate::source::Source;

/// The parts of Metal that a source and its headers use.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// The attributes of kernel parameters, each with the parameter's type. The type of a pointer
    /// or a reference omits the type that it points to: `const device *`.
    pub attributes: BTreeSet<(String, String)>,
    /// The names of functions that the source calls.
    pub called: BTreeSet<String>,
    /// Names that the source defines.
    pub defined: BTreeSet<String>,
    /// Metal's vector types, packed vector types and SIMD-group matrices.
    pub types: BTreeSet<String>,
}

/// Reads the vocabulary of `source`.
///
/// # Errors
///
/// Returns an error if the source or the cache cannot be read or written, or the source cannot be
/// preprocessed.
pub fn vocabulary(source: &Source, compiler: &Compiler, cache: &Path) -> Result<Vocabulary> {
    let preprocessed = source.preprocess(compiler, cache)?;
    let tokens = Tokens::parse(&preprocessed.text, &preprocessed.shim);
    let defined = front::functions(&tokens);
    let mut found = Vocabulary::default();
    for range in defined.iter().filter(|function| function.is_kernel).flat_map(|f| &f.parameters) {
        let is_attribute = |&i: &usize| tokens.is_attribute(i);
        let end = range.clone().find(is_attribute).unwrap_or(range.end);
        let words: Vec<&str> = (range.start..end).map(|i| tokens.at(i)).collect();
        let indirect = |word: &str| matches!(word, "*" | "&");
        let kind = match words.iter().any(|word| indirect(word)) {
            true => {
                let kept = |w: &&str| *w == "const" || SPACES.contains(w) || indirect(w);
                words.into_iter().filter(kept).collect::<Vec<_>>().join(" ")
            }
            false => words[..words.len().saturating_sub(1)]
                .join(" ")
                .trim_start_matches("const ")
                .to_string(),
        };
        for one in front::attributes(&tokens, range.clone()) {
            found.attributes.insert((one.name, kind.clone()));
        }
    }
    found.defined.extend(defined.iter().map(|function| function.name.clone()));
    for i in (0..tokens.len()).filter(|&i| tokens.is_word(i)) {
        let word = tokens.at(i);
        let after = if tokens.at(i + 1) == "<" { tokens.close(i + 1) + 1 } else { i + 1 };
        let attribute = tokens.before(i) == "[" || word.starts_with("__");
        // A word after the name of a type is the name that a declaration introduces, not a call.
        let statement = ["return", "else", "case"].contains(&tokens.before(i));
        if i > 0 && tokens.is_word(i - 1) && !statement && !is_type(word) {
            found.defined.insert(word.to_string());
        } else if is_type(word) {
            found.types.insert(word.to_string());
        } else if tokens.at(after) == "(" && !attribute && !is_keyword(word) {
            found.called.insert(word.to_string());
        }
    }
    Ok(found)
}

/// Whether a word can precede a parenthesis without being a call.
fn is_keyword(word: &str) -> bool {
    SCALARS.contains(&word)
        || matches!(
            word,
            "if" | "for" | "while" | "switch" | "return" | "sizeof" | "decltype" | "void"
        )
        || matches!(word, "alignas" | "static_assert" | "constexpr")
}

/// Whether a word is a type such as `float4`, `packed_half2`, `simdgroup_float8x8` or `vec`.
fn is_type(word: &str) -> bool {
    let element = word.trim_start_matches("packed_").trim_end_matches(['2', '3', '4']);
    let matrix = word.ends_with("8x8") || word.ends_with("matrix");
    (SCALARS.contains(&element) && element != word)
        || (matrix && word.starts_with("simdgroup_"))
        || matches!(word, "vec" | "bfloat")
}
