//! Prepares texts of files and of other processes for messages: removes control characters, and
//! shortens long texts.

use std::fmt::Write as _;

/// The most characters of a message of one line.
const MOST: usize = 320;

/// The most characters of a message that may have several lines, such as a compiler's.
const MOST_OF_LINES: usize = 32_000;

/// Whether a terminal would act on a character instead of showing it.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A text in one line: control characters are escaped, and the middle of a long text is left out.
pub fn line(text: &str) -> String {
    cut(&escaped(text, false), MOST)
}

/// A text that keeps its lines and tabulators.
pub fn lines(text: &str) -> String {
    cut(&escaped(text, true), MOST_OF_LINES)
}

fn escaped(text: &str, lines: bool) -> String {
    // A longer text is cut in any case, and escaping all of it could take long.
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

/// The beginning and the end of a text of more than `most` characters.
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
