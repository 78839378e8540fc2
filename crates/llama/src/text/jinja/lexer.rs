//! Splits a template into tokens as Jinja does with `trim_blocks` and `lstrip_blocks`.

use super::budget::{Outcome, fault};
use super::characters::space;

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    /// Text outside of tags.
    Data(String),
    BlockBegin,
    BlockEnd,
    PrintBegin,
    PrintEnd,
    Name(String),
    Text(String),
    Int(i128),
    Float(f64),
    Symbol(&'static str),
}

/// The operators and punctuation marks. Longer symbols come first, because the lexer takes the
/// first match.
const SYMBOLS: [&str; 27] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";", "!",
];

pub fn tokens(source: &str) -> Outcome<Vec<Token>> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { rest: source, line_starts: true, tokens: Vec::new() };
    while !lexer.rest.is_empty() {
        lexer.data()?;
    }
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    rest: &'a str,
    /// Whether `rest` begins at the start of a line.
    line_starts: bool,
    tokens: Vec<Token>,
}

impl<'a> Lexer<'a> {
    fn skip(&mut self, bytes: usize) {
        let (skipped, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.line_starts = skipped.ends_with('\n') || (self.line_starts && skipped.is_empty());
        self.rest = rest;
    }

    /// Reads the text up to the next tag, and then the tag.
    fn data(&mut self) -> Outcome<()> {
        let begins = |at: &usize| {
            let tag = self.rest.as_bytes().get(at + 1);
            tag.is_some_and(|second| b"%{#".contains(second))
        };
        let Some(at) = self.rest.match_indices('{').map(|(at, _)| at).find(begins) else {
            self.tokens.push(Token::Data(self.rest.to_owned()));
            self.rest = "";
            return Ok(());
        };
        let (text, tag) = self.rest.split_at(at);
        let sign =
            tag.get(2..).and_then(|after| after.chars().next()).filter(|c| "+-".contains(*c));
        let text = self.before_tag(text, tag.starts_with("{{"), sign);
        if !text.is_empty() {
            self.tokens.push(Token::Data(text.to_owned()));
        }
        self.skip(at + 2 + usize::from(sign.is_some()));
        self.line_starts = false;
        if tag.starts_with("{#") {
            let Some(end) = self.rest.find("#}") else { return fault("a comment without its end") };
            let before = self.rest.get(..end).unwrap_or_default();
            self.skip(end + 2);
            self.after_block(before.chars().last(), true);
        } else if tag.starts_with("{{") {
            self.tokens.push(Token::PrintBegin);
            self.tag("}}", Token::PrintEnd)?;
        } else if let Some(raw) = self.rest.trim_start().strip_prefix("raw")
            && let raw = raw.trim_start()
            && (raw.starts_with("%}") || raw.starts_with("-%}"))
        {
            self.raw(raw)?;
        } else {
            self.tokens.push(Token::BlockBegin);
            self.tag("%}", Token::BlockEnd)?;
        }
        Ok(())
    }

    /// Returns the text before a tag, without the whitespace that the tag removes.
    fn before_tag(&self, text: &'a str, print: bool, sign: Option<char>) -> &'a str {
        if sign == Some('-') {
            return text.trim_end_matches(space);
        }
        let line = text.rfind('\n').map_or(0, |at| at + 1);
        let begins = line > 0 || self.line_starts;
        match (text.get(..line), text.get(line..)) {
            (Some(before), Some(last))
                if sign.is_none() && !print && begins && last.chars().all(space) =>
            {
                before
            }
            _ => text,
        }
    }

    /// Skips the whitespace that the end of a tag removes: all whitespace after `-`, and one line
    /// break if `trim` is set and the tag does not end with `+`.
    fn after_block(&mut self, sign: Option<char>, trim: bool) {
        match sign {
            Some('-') => self.skip(self.rest.len() - self.rest.trim_start_matches(space).len()),
            Some('+') => {}
            _ if trim && self.rest.starts_with('\n') => self.skip(1),
            _ => {}
        }
    }

    fn raw(&mut self, raw: &'a str) -> Outcome<()> {
        self.rest = raw;
        let sign = raw.chars().next().filter(|c| *c == '-');
        self.skip(2 + usize::from(sign.is_some()));
        self.line_starts = false;
        self.after_block(sign, false);
        let mut from = 0;
        loop {
            let Some(at) = self.rest.get(from..).and_then(|rest| rest.find("{%")) else {
                return fault("a raw block without its end");
            };
            let at = from + at;
            from = at + 2;
            let (text, tag) = self.rest.split_at(at);
            let tag = tag.get(2..).unwrap_or_default();
            let sign = tag.chars().next().filter(|c| "+-".contains(*c));
            let tag = tag.get(usize::from(sign.is_some())..).unwrap_or_default();
            let Some(end) = tag.trim_start().strip_prefix("endraw") else { continue };
            let end = end.trim_start();
            let last = end.chars().next().filter(|c| "+-".contains(*c));
            let Some(after) =
                end.get(usize::from(last.is_some())..).and_then(|end| end.strip_prefix("%}"))
            else {
                continue;
            };
            let text = self.before_tag(text, false, sign);
            self.tokens.push(Token::Data(text.to_owned()));
            self.rest = after;
            self.line_starts = false;
            self.after_block(last, true);
            return Ok(());
        }
    }

    /// Reads the tokens up to the end of a tag.
    fn tag(&mut self, close: &str, end: Token) -> Outcome<()> {
        let mut open: Vec<&str> = Vec::new();
        loop {
            self.rest = self.rest.trim_start_matches(space);
            let rest = self.rest;
            if open.is_empty() {
                let sign = rest.chars().next().filter(|c| *c == '-' || *c == '+' && close == "%}");
                let after = rest.get(usize::from(sign.is_some())..).unwrap_or_default();
                if after.starts_with(close) {
                    self.tokens.push(end);
                    self.skip(2 + usize::from(sign.is_some()));
                    self.line_starts = false;
                    self.after_block(sign, close == "%}");
                    return Ok(());
                }
            }
            let Some(first) = rest.chars().next() else { return fault("a tag without its end") };
            if first.is_ascii_digit() {
                let (token, length) = number(rest)?;
                self.tokens.push(token);
                self.skip(length);
            } else if first == '"' || first == '\'' {
                self.text(first)?;
            } else if first == '_' || first.is_alphabetic() {
                let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric());
                let name = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
                self.tokens.push(Token::Name(name.to_owned()));
                self.skip(name.len());
            } else if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
                match *symbol {
                    "(" | "[" | "{" => open.push(symbol),
                    ")" | "]" | "}" => {
                        let expected = open.pop().map(|begin| match begin {
                            "(" => ")",
                            "[" => "]",
                            _ => "}",
                        });
                        if expected != Some(symbol) {
                            return fault(format_args!("an unexpected {symbol:?}"));
                        }
                    }
                    _ => {}
                }
                self.tokens.push(Token::Symbol(symbol));
                self.skip(symbol.len());
            } else {
                return fault(format_args!("an unexpected character {first:?}"));
            }
        }
    }

    fn text(&mut self, quote: char) -> Outcome<()> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.skip(at + 1);
                self.tokens.push(Token::Text(text));
                return Ok(());
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let Some((_, escaped)) = chars.next() else { break };
            match escaped {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'a' => text.push('\u{7}'),
                'b' => text.push('\u{8}'),
                'f' => text.push('\u{c}'),
                'v' => text.push('\u{b}'),
                '\\' | '\'' | '"' => text.push(escaped),
                '\n' => {}
                '0'..='7' => {
                    let from = self.rest.get(at + 1..).unwrap_or_default();
                    let octal = from.chars().take(3).take_while(|c| ('0'..='7').contains(c));
                    let octal: String = octal.collect();
                    let code = u32::from_str_radix(&octal, 8).unwrap_or_default();
                    text.extend(char::from_u32(code));
                    if octal.len() > 1 {
                        chars.nth(octal.len() - 2);
                    }
                }
                'x' | 'u' | 'U' => {
                    let count = match escaped {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let digits: String = chars.by_ref().take(count).map(|(_, c)| c).collect();
                    let code = u32::from_str_radix(&digits, 16).ok();
                    match code.filter(|_| digits.len() == count).and_then(char::from_u32) {
                        Some(c) => text.push(c),
                        None => return fault(format_args!("no character \\{escaped}{digits}")),
                    }
                }
                'N' => return fault("an escape \\N, which is not supported"),
                other => text.extend(['\\', other]),
            }
        }
        fault("a string without its end")
    }
}

/// Reads a number at the start of a string. Returns the number and its length in bytes.
fn number(text: &str) -> Outcome<(Token, usize)> {
    for (prefixes, radix) in [(["0x", "0X"], 16), (["0o", "0O"], 8), (["0b", "0B"], 2)] {
        if let Some(digits) = prefixes.iter().find_map(|prefix| text.strip_prefix(prefix)) {
            let end = digits.find(|c: char| !c.is_digit(radix) && c != '_');
            let digits = digits.get(..end.unwrap_or(digits.len())).unwrap_or_default();
            return match i128::from_str_radix(&digits.replace('_', ""), radix) {
                Ok(value) => Ok((Token::Int(value), digits.len() + 2)),
                Err(_) => fault("a number that is not one of at most 38 digits"),
            };
        }
    }
    let digits = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        from + rest.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(rest.len())
    };
    let starts =
        |at: usize| text.get(at..).is_some_and(|t| t.starts_with(|c: char| c.is_ascii_digit()));
    let whole = digits(0);
    let mut end = whole;
    if text.get(end..).is_some_and(|t| t.starts_with('.')) && starts(end + 1) {
        end = digits(end + 1);
    }
    if text.get(end..).is_some_and(|t| t.starts_with(['e', 'E'])) {
        let signed = text.get(end + 1..).is_some_and(|t| t.starts_with(['+', '-']));
        let from = end + 1 + usize::from(signed);
        if starts(from) {
            end = digits(from);
        }
    }
    let written = text.get(..end).unwrap_or_default().replace('_', "");
    let token = match end == whole {
        true => written.parse().ok().map(Token::Int),
        false => written.parse().ok().map(Token::Float),
    };
    match token {
        Some(token) => Ok((token, end)),
        None => fault("a number of more than 38 digits"),
    }
}
