//! Unrolls loops with a constant number of iterations. Metal's compiler does this by itself. NVRTC
//! needs a pragma. Without it, NVRTC keeps the arrays that such loops index in local memory, which
//! is slow.

use crate::front::Tokens;

/// Translates clang's unroll pragmas to NVRTC's.
pub(super) fn pragmas(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    for line in source.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["#pragma", "clang", "loop", rest @ ..] => {
                let rest = rest.concat();
                let count = rest.strip_prefix("unroll_count");
                match (rest.as_str(), count) {
                    ("unroll(disable)", _) => out.push_str("#pragma unroll 1"),
                    ("unroll(full)" | "unroll(enable)", _) => out.push_str("#pragma unroll"),
                    (_, Some(count)) => {
                        out.push_str("#pragma unroll ");
                        out.push_str(count);
                    }
                    _ => {} // other hints do not apply to NVRTC
                }
            }
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// Marks a loop such as `for (uint i = 0; i < N; ...)` for unrolling if N is a constant: an
/// expression of numbers, names in capitals, and members of types.
pub(super) fn unroll(tokens: &mut Tokens) {
    for i in 0..tokens.len() {
        if tokens.at(i) != "for" || tokens.list[i].before.contains("unroll") {
            continue;
        }
        let end = tokens.close(i + 1);
        let Some(first) = (i + 2..end).find(|&k| tokens.at(k) == ";") else { continue };
        let Some(second) = (first + 1..end).find(|&k| tokens.at(k) == ";") else { continue };
        let begins = tokens.at(first - 2) == "=" && is_number(tokens.at(first - 1));
        let compares = tokens.is_word(first + 1) && tokens.at(first + 2) == "<";
        if begins && compares && is_constant(tokens, first + 3..second) {
            tokens.list[i].text.insert_str(0, "_Pragma(\"unroll\") ");
        }
    }
}

fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

fn is_constant(tokens: &Tokens, range: std::ops::Range<usize>) -> bool {
    let name = |k: usize| {
        let word = tokens.at(k);
        let capitals =
            word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        // The name may also be a member constant of a type, such as `F::words`.
        capitals || (tokens.before(k) == "::") || word == "sizeof"
    };
    let allowed = |k: usize| match tokens.at(k) {
        "+" | "-" | "*" | "/" | "::" | "(" | ")" => true,
        word if is_number(word) => true,
        _ => tokens.is_word(k) && name(k),
    };
    !range.is_empty() && range.clone().all(allowed)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn constant_loops_are_marked() {
        let mut tokens = Tokens::parse(
            "for (uint i = 0; i < READS; i++) {} for (uint i = 0; i < F::words / 2; i++) {}\n\
             for (uint i = 0; i < count; i++) {} for (; i < 4; i++) {}\n\
             #pragma unroll 1\nfor (uint i = 0; i < 4; i++) {}",
            Path::new("\0"),
        );
        unroll(&mut tokens);
        assert_eq!(tokens.text().matches("_Pragma(\"unroll\") for").count(), 2);
    }

    #[test]
    fn pragmas_are_translated() {
        let text =
            "#pragma clang loop unroll(disable)\n#pragma clang loop unroll_count(N)\n#pragma x\n";
        let wanted = "#pragma unroll 1\n#pragma unroll (N)\n#pragma x\n";
        assert_eq!(pragmas(text), wanted);
    }
}
