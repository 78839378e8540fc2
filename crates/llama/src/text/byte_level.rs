//! The spelling of bytes in byte-level vocabularies.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The bytes that a token of a byte-level vocabulary stands for, or those of its text for another
/// token.
pub(crate) fn bytes_of(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(|c| BYTES.get(&c).copied()).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The bytes of the characters by which GPT-2's vocabulary writes them: printable bytes as
/// themselves, the others as characters from U+0100 on.
static BYTES: LazyLock<HashMap<char, u8>> = LazyLock::new(|| {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255u8).filter(|byte| !printable(byte));
    let others = ('\u{100}'..).zip(others);
    let own = (0..=255u8).filter(printable).map(|byte| (char::from(byte), byte));
    own.chain(others).collect()
});
