//! Removes comments without changing the line numbers.

/// Returns the source without comments. Every line keeps its number.
pub(super) fn without(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
            out.push(' ');
            out.extend(rest[..length].chars().filter(|&c| c == '\n'));
            length
        } else {
            let length = if first == '"' { text_length(rest) } else { first.len_utf8() };
            out.push_str(&rest[..length]);
            length
        };
        rest = &rest[length..];
    }
    out
}

/// Returns the length of the string literal at the beginning of the text.
fn text_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut i = 1;
    while i < bytes.len() && bytes[i] != b'"' && bytes[i] != b'\n' {
        i += if bytes[i] == b'\\' { 2 } else { 1 };
    }
    (i + 1).min(text.len())
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn lines_stay() {
        assert_eq!(without("a // b\nc /* d\ne */ f\n"), "a \nc  \n f\n");
        assert_eq!(without("x = \"// no /* comment\"; // y"), "x = \"// no /* comment\"; ");
    }
}
