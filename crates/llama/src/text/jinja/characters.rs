//! Classes of characters, as Python defines them.

use std::sync::LazyLock;

use regex::Regex;

/// Whether Python's `strip` removes a character.
pub fn space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Whether Python's `repr` writes a character unchanged.
pub fn printable(c: char) -> bool {
    static OTHERS: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"[\p{C}\p{Z}&&[^ ]]").ok());
    matches!(c, ' '..='~') || !is_in(&OTHERS, c)
}

/// Whether a character is a decimal digit.
pub fn decimal(c: char) -> bool {
    static DECIMALS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\p{Nd}").ok());
    c.is_ascii_digit() || !c.is_ascii() && is_in(&DECIMALS, c)
}

/// Whether a character is a digit, including superscript and circled digits.
pub fn digit(c: char) -> bool {
    decimal(c)
        || matches!(u32::from(c),
            0xb2..=0xb3 | 0xb9 | 0x1369..=0x1371 | 0x19da | 0x2070 | 0x2074..=0x2079
            | 0x2080..=0x2089 | 0x2460..=0x2468 | 0x2474..=0x247c | 0x2488..=0x2490 | 0x24ea
            | 0x24f5..=0x24fd | 0x24ff | 0x2776..=0x277e | 0x2780..=0x2788 | 0x278a..=0x2792
            | 0x10a40..=0x10a43 | 0x10e60..=0x10e68 | 0x11052..=0x1105a | 0x1f100..=0x1f10a)
}

fn is_in(class: &Option<Regex>, c: char) -> bool {
    class.as_ref().is_some_and(|class| class.is_match(c.encode_utf8(&mut [0; 4])))
}
