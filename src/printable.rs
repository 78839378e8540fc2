//! Prepares strings from files and from other processes for messages: escapes control characters,
//! and shortens long strings.

use std::fmt::Write as _;

/// The maximum number of characters of a message of one line.
const MOST: usize = 320;

/// The maximum number of characters of a message of several lines, such as a compiler's output.
const MOST_OF_LINES: usize = 32_000;

/// Returns true if a terminal would act on the character instead of showing it.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Returns the string as one line: escapes control characters, and removes the middle of a long
/// string.
pub fn line(text: &str) -> String {
    cut(&escaped(text, false), MOST)
}

/// Like `line`, but keeps line breaks and tabs, and allows a longer string.
pub fn lines(text: &str) -> String {
    cut(&escaped(text, true), MOST_OF_LINES)
}

fn escaped(text: &str, lines: bool) -> String {
    // Escaping never shortens a string, so its middle can be cut first. This bounds the time.
    let short = cut(text, 2 * if lines { MOST_OF_LINES } else { MOST });
    let mut clean = String::with_capacity(short.len());
    for c in short.chars() {
        match c {
            '\n' | '\t' if lines => clean.push(c),
            c if acts(c) => {
                let _ = write!(clean, "{}", c.escape_default());
            }
            c => clean.push(c),
        }
    }
    clean
}

/// If the string has more than `most` characters, returns only its beginning and its end.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most || text.chars().nth(most).is_none() {
        return text.to_owned();
    }
    let end = most / 4;
    let start = most - end - 3;
    let start = text.char_indices().nth(start).map_or(text.len(), |(at, _)| at);
    let end = text.char_indices().rev().nth(end - 1).map_or(0, |(at, _)| at);
    let (start, end) = (text.get(..start), text.get(end..));
    format!("{} … {}", start.unwrap_or_default(), end.unwrap_or_default())
}
