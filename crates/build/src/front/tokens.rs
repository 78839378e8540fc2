//! Tokens of Metal source. Each token also stores the text between the previous token and itself,
//! such as line markers and preprocessor directives. So the rewritten source keeps its line
//! numbers.

use std::path::Path;

/// The address spaces of MSL.
pub const SPACES: [&str; 4] = ["device", "constant", "thread", "threadgroup"];

/// The scalar types that have vectors of two to four elements.
pub const SCALARS: [&str; 12] = [
    "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float",
    "bfloat",
];

/// The built-in values that a thread can read. The simulator lists their values in the same order.
pub const VALUES: [&str; 19] = [
    "thread_position_in_grid",
    "threadgroup_position_in_grid",
    "thread_position_in_threadgroup",
    "threads_per_threadgroup",
    "threads_per_grid",
    "threadgroups_per_grid",
    "dispatch_threads_per_threadgroup",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "threads_per_simdgroup",
    "thread_execution_width",
    "thread_index_in_quadgroup",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
    "grid_origin",
    "grid_size",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Word,
    Number,
    Text,
    Mark,
}

#[derive(Clone, Debug)]
pub struct Token {
    pub kind: Kind,
    pub before: String,
    pub text: String,
    pub file: usize,
    pub line: u32,
}

/// The tokens of a preprocessed translation unit.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    pub list: Vec<Token>,
    pub files: Vec<String>,
    tail: String,
}

impl Tokens {
    /// Splits the output of `clang -E`, or a source without comments, into tokens. Does not split
    /// preprocessor directives, nor text from files in the folder `shim`.
    pub fn parse(preprocessed: &str, shim: &Path) -> Self {
        let mut tokens = Tokens::default();
        let shim = shim.to_string_lossy();
        let (mut in_shim, mut continued) = (false, false);
        let (mut file, mut line) = (0, 0);
        for text in preprocessed.lines() {
            if let Some((number, name)) = line_marker(text) {
                in_shim = name.starts_with(&*shim);
                line = number - 1;
                file = tokens.file(&name);
                tokens.tail.push_str(text);
            } else {
                line += 1;
                continued |= text.trim_start().starts_with('#');
                if in_shim || continued {
                    tokens.tail.push_str(text);
                    continued &= text.ends_with('\\');
                } else {
                    tokens.split_line(text, file, line);
                }
            }
            tokens.tail.push('\n');
        }
        tokens
    }

    fn file(&mut self, name: &str) -> usize {
        self.files.iter().position(|known| known == name).unwrap_or_else(|| {
            self.files.push(name.to_string());
            self.files.len() - 1
        })
    }

    fn split_line(&mut self, text: &str, file: usize, line: u32) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let (kind, length) = if first.is_whitespace() {
                self.tail.push(first);
                rest = &rest[first.len_utf8()..];
                continue;
            } else {
                token_length(rest, first)
            };
            let before = std::mem::take(&mut self.tail);
            let text = rest[..length].to_string();
            self.list.push(Token { kind, before, text, file, line });
            rest = &rest[length..];
        }
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        for token in &self.list {
            out.push_str(&token.before);
            out.push_str(&token.text);
        }
        out.push_str(&self.tail);
        out
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the text of token `i`, or an empty string if there is no such token.
    pub fn at(&self, i: usize) -> &str {
        self.list.get(i).map_or("", |token| &token.text)
    }

    /// Returns the text of the token before token `i`, or an empty string if there is none.
    pub fn before(&self, i: usize) -> &str {
        if i == 0 { "" } else { self.at(i - 1) }
    }

    pub fn is_word(&self, i: usize) -> bool {
        self.list.get(i).is_some_and(|token| token.kind == Kind::Word)
    }

    pub fn place(&self, i: usize) -> (String, u32) {
        self.list.get(i).map_or((String::new(), 0), |token| {
            (self.files.get(token.file).cloned().unwrap_or_default(), token.line)
        })
    }

    /// Removes the text of these tokens, but keeps the line markers and white space between them.
    pub fn blank(&mut self, range: std::ops::Range<usize>) {
        for token in &mut self.list[range] {
            token.text.clear();
        }
    }

    /// Joins the tokens on one line. Puts a space between two tokens if the source has white space
    /// there.
    pub fn join(&self, range: std::ops::Range<usize>) -> String {
        self.join_without(range, &[])
    }

    /// Joins the tokens like [`Self::join`], but leaves out these words.
    pub fn join_without(&self, range: std::ops::Range<usize>, words: &[&str]) -> String {
        let mut out = String::new();
        for token in &self.list[range] {
            if !token.before.is_empty() && !out.is_empty() && !out.ends_with(' ') {
                out.push(' ');
            }
            if !words.contains(&token.text.as_str()) {
                out.push_str(&token.text);
            }
        }
        out.trim_end().to_string()
    }

    /// Returns the index of the token that closes the bracket at `open`, or of the last token.
    pub fn close(&self, open: usize) -> usize {
        let opening = self.at(open).to_string();
        let closing = match opening.as_str() {
            "(" => ")",
            "[" => "]",
            "{" => "}",
            _ => ">",
        };
        let mut depth = 0;
        let mut i = open;
        while i < self.len() {
            if self.at(i) == opening {
                depth += 1;
            } else if self.at(i) == closing {
                depth -= 1;
                if depth == 0 {
                    return i;
                }
            } else if closing == ">" && matches!(self.at(i), "(" | "[" | "{") {
                i = self.close(i);
            } else if closing == ">" && self.at(i) == ";" {
                return i; // `<` was a comparison, not a bracket
            }
            i += 1;
        }
        self.len().saturating_sub(1)
    }

    /// Whether `[[` begins at `i`.
    pub fn is_attribute(&self, i: usize) -> bool {
        self.at(i) == "["
            && self.at(i + 1) == "["
            && self.list[i + 1].before.is_empty()
            && self.is_word(i + 2)
            && self.before(self.close(i)) == "]"
    }

    /// Whether token `i` is directly in the body of a struct, and not in a member function.
    pub fn in_struct(&self, i: usize) -> bool {
        let mut depth = 0;
        let mut at = i;
        while at > 0 {
            at -= 1;
            match self.at(at) {
                "}" => depth += 1,
                "{" if depth > 0 => depth -= 1,
                "{" => return self.opens_struct(at),
                _ => {}
            }
        }
        false
    }

    fn opens_struct(&self, brace: usize) -> bool {
        let mut at = brace;
        while at > 0 && !matches!(self.before(at), ";" | "}" | "{" | ")") {
            at -= 1;
            if matches!(self.at(at), "struct" | "class" | "union") {
                return true;
            }
        }
        false
    }

    /// Splits the list that the bracket at `open` encloses at its commas.
    pub fn split(&self, open: usize) -> Vec<std::ops::Range<usize>> {
        let end = self.close(open);
        let (mut parts, mut start, mut i) = (Vec::new(), open + 1, open + 1);
        while i < end {
            match self.at(i) {
                "(" | "[" | "{" | "<" => i = self.close(i),
                "," => {
                    parts.push(start..i);
                    start = i + 1;
                }
                _ => {}
            }
            i += 1;
        }
        if start < end {
            parts.push(start..end);
        }
        parts
    }
}

/// Parses a line marker, `# 12 "path" flags`, and removes the escapes from the path.
fn line_marker(text: &str) -> Option<(u32, String)> {
    let text = text.strip_prefix("# ").or_else(|| text.strip_prefix("#line "))?;
    let (number, rest) = text.split_once(" \"")?;
    let name = &rest[..rest.rfind('"')?];
    Some((number.parse().ok()?, name.replace("\\\\", "\\").replace("\\\"", "\"")))
}

fn token_length(rest: &str, first: char) -> (Kind, usize) {
    let bytes = rest.as_bytes();
    let digit_after_dot = first == '.' && bytes.get(1).is_some_and(u8::is_ascii_digit);
    if first.is_ascii_digit() || digit_after_dot {
        return (Kind::Number, number_length(bytes));
    }
    if first.is_alphanumeric() || first == '_' {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        return (Kind::Word, word.unwrap_or(rest.len()));
    }
    if first == '"' || first == '\'' {
        let mut i = 1;
        while i < bytes.len() && bytes[i] != first as u8 {
            i += if bytes[i] == b'\\' { 2 } else { 1 };
        }
        return (Kind::Text, (i + 1).min(rest.len()));
    }
    // Treat `>>` as two tokens, because it may close two template brackets.
    let pair = rest.starts_with("::") || rest.starts_with("->");
    (Kind::Mark, if pair { 2 } else { first.len_utf8() })
}

fn number_length(bytes: &[u8]) -> usize {
    let mut i = 1;
    while i < bytes.len() {
        let exponent = matches!(bytes[i - 1], b'e' | b'E' | b'p' | b'P')
            && matches!(bytes[i], b'+' | b'-')
            && !(matches!(bytes[i - 1], b'e' | b'E') && bytes.starts_with(b"0x"));
        if !(bytes[i].is_ascii_alphanumeric() || matches!(bytes[i], b'.' | b'_') || exponent) {
            break;
        }
        i += 1;
    }
    i
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives() {
        let source =
            "# 1 \"a.metal\"\nfloat x = 1.5e-3f; // y\n# 7 \"b.h\" 2\n  a[b[1]] >>= 0x1e+2;\n";
        let tokens = Tokens::parse(source, Path::new("/shim"));
        assert_eq!(tokens.text(), source);
        assert_eq!(tokens.place(tokens.len() - 1), ("b.h".to_string(), 7));
        assert!(tokens.list.iter().any(|token| token.text == "1.5e-3f"));
        assert!(tokens.list.iter().any(|token| token.text == "0x1e"));
    }

    #[test]
    fn brackets_close() {
        let tokens = Tokens::parse("f(a<b<c>>, g(1, 2), [3])", Path::new("/shim"));
        assert_eq!(tokens.close(1), tokens.len() - 1);
        assert_eq!(tokens.split(1).len(), 3);
    }
}
