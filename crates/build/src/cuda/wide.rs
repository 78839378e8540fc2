//! Rewrites accesses to packed vectors, such as `*(const device packed_half4*)x`. A packed vector
//! needs only the alignment of its element, so CUDA would move one element at a time. A rewritten
//! access branches at run time: if the address is aligned, it moves the whole vector at once.

use crate::front::Tokens;

/// Changes casts to pointers to packed vectors in device memory into casts to `::msl::Wide<...>`.
/// Skips parentheses after a word, because they usually contain the parameters of a function.
pub(super) fn pointers(tokens: &mut Tokens) {
    for open in 0..tokens.len() {
        if tokens.at(open) != "(" || tokens.is_word(open.wrapping_sub(1)) {
            continue; // these are the parameters of a function
        }
        let close = tokens.close(open);
        let inside = open + 1..close;
        let is_const = inside.clone().any(|k| tokens.at(k) == "const");
        let mut words = inside.filter(|&k| !matches!(tokens.at(k), "const" | ""));
        let (Some(space), Some(first)) = (words.next(), words.next()) else { continue };
        let is_pointer = tokens.at(space) == "device" && tokens.before(close) == "*";
        if !is_pointer || !tokens.at(first).starts_with("packed") {
            continue;
        }
        let end = if tokens.at(first + 1) == "<" { tokens.close(first + 1) + 1 } else { first + 1 };
        if tokens.at(end) != "*" || end + 1 != close {
            continue;
        }
        let kind = tokens.join(first..end);
        let constant = if is_const { "const " } else { "" };
        tokens.blank(open + 1..close);
        tokens.list[open + 1].text = format!("::msl::Wide<{constant}{kind}>");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn casts_are_found() {
        let mut tokens = Tokens::parse(
            "a = *(const device packed4<T>*)(x + 1); ((device packed_uint2*)y)[2] = z; \
             f(device packed4<T>* x); (const threadgroup packed4<T>*)x; (const device float*)x;",
            Path::new("\0"),
        );
        pointers(&mut tokens);
        let text = tokens.text().split_whitespace().collect::<Vec<_>>().join(" ");
        let wanted = "a = *(::msl::Wide<const packed4<T>> )(x + 1); ((::msl::Wide<packed_uint2> )y)[2] = z; \
             f(device packed4<T>* x); (const threadgroup packed4<T>*)x; (const device float*)x;";
        assert_eq!(text, wanted);
    }
}
