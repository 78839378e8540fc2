//! The methods of Python's `str` that change the case of characters, or that test the case or the
//! class of characters.

use super::characters::{decimal, digit, printable, space};

/// Returns the result of a method that changes the case of a string; `None` for other methods.
pub fn changed(of: &str, name: &str) -> Option<String> {
    Some(match name {
        "upper" => of.to_uppercase(),
        "lower" => of.to_lowercase(),
        "casefold" => {
            let lower = of.chars().flat_map(char::to_lowercase);
            lower.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
        }
        "capitalize" => capitalized(of),
        "swapcase" => {
            let swap = |c: char| match c.is_uppercase() {
                true => c.to_lowercase().collect::<String>(),
                false => c.to_uppercase().collect(),
            };
            of.chars().map(swap).collect()
        }
        "title" => {
            let mut within = false;
            let mut text = String::with_capacity(of.len());
            for c in of.chars() {
                match within {
                    true => text.extend(c.to_lowercase()),
                    false => text.extend(titled(c)),
                }
                within = c.is_alphabetic() && (c.is_lowercase() || c.is_uppercase());
            }
            text
        }
        _ => return None,
    })
}

/// Returns a string with its first character in title case and all other characters in lower case.
pub fn capitalized(of: &str) -> String {
    let mut chars = of.chars();
    let first = chars.next().map(|c| titled(c).collect::<String>()).unwrap_or_default();
    first + &chars.as_str().to_lowercase()
}

/// Converts a character to title case. For example, `ß` becomes `Ss`.
fn titled(c: char) -> impl Iterator<Item = char> {
    let mut cased = false;
    c.to_uppercase().map(move |c| {
        let first = !cased;
        cased |= c.is_uppercase();
        if first { c } else { c.to_lowercase().next().unwrap_or(c) }
    })
}

/// Returns the result of a method that tests the characters of a string; `None` for other methods.
pub fn classified(of: &str, name: &str) -> Option<bool> {
    let all = |test: fn(char) -> bool| !of.is_empty() && of.chars().all(test);
    let cased = |upper: bool| {
        let mut letters = of.chars().filter(|c| c.is_uppercase() || c.is_lowercase()).peekable();
        letters.peek().is_some() && letters.all(|c| c.is_uppercase() == upper)
    };
    Some(match name {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => of.is_ascii(),
        "isdecimal" => all(decimal),
        "isdigit" => all(digit),
        "isnumeric" => all(char::is_numeric),
        "isspace" => all(space),
        "isprintable" => of.chars().all(printable),
        "islower" => cased(false),
        "isupper" => cased(true),
        "isidentifier" => {
            let starts = of.starts_with(|c: char| c == '_' || c.is_alphabetic());
            starts && of.chars().all(|c| c == '_' || c.is_alphanumeric())
        }
        "istitle" => {
            let (mut within, mut any) = (false, false);
            for c in of.chars() {
                if c.is_uppercase() && within || c.is_lowercase() && !within {
                    return Some(false);
                }
                within = c.is_uppercase() || c.is_lowercase();
                any |= within;
            }
            any
        }
        _ => return None,
    })
}
