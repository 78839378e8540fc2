//! Converts tokens of byte-level vocabularies to bytes. In these vocabularies, each character of a
//! token stands for a byte.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Returns the bytes that the characters of a token stand for. If a character does not stand for a
/// byte, returns the token's UTF-8 bytes.
pub(crate) fn bytes_of(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(|c| BYTES.get(&c).copied()).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The byte that each character of GPT-2's vocabulary stands for. A printable byte is represented
/// by the Unicode character with the same number. The other bytes, in order, are represented by the
/// characters from U+0100 on.
static BYTES: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255u8).filter(|byte| !printable(byte));
    let others = ('\u{100}'..).zip(others);
    let own = (0..=255u8).filter(printable).map(|byte| (char::from(byte), byte));
    own.chain(others).collect()
});
