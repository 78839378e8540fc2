//! The frames on a control connection. A frame has a kind, a length, a payload, and a tag that only
//! the two ends of the connection can compute.

use std::io::{self, Read, Write};

use super::keys::{self, Seal, TAG};

/// The largest payload.
pub(super) const LIMIT: usize = 16 << 20;
/// The number of bytes of the kind and the length.
const HEAD: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameKind {
    /// A sign of life.
    Beat = 1,
    /// Data of an operation of the group.
    Data = 2,
    /// The reason for a failure that ends all ranks.
    Fail = 3,
    /// The sender has left the group normally.
    Leave = 4,
}

impl FrameKind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Beat, Self::Data, Self::Fail, Self::Leave].into_iter().find(|k| *k as u8 == byte)
    }
}

/// Writes a frame in one call, so that a small frame is one packet.
pub(super) fn write(
    to: &mut impl Write,
    seal: &mut Seal,
    kind: FrameKind,
    payload: &[u8],
) -> io::Result<()> {
    let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= LIMIT);
    let length = length.ok_or_else(|| io::Error::other("the frame is too long"))?;
    let mut frame = Vec::with_capacity(HEAD + payload.len() + TAG);
    frame.push(kind as u8);
    frame.extend(length.to_le_bytes());
    let tag = seal.next(&frame, &blake3::hash(payload));
    frame.extend(payload);
    frame.extend(tag.as_bytes());
    to.write_all(&frame)
}

/// Reads a frame; `None` if the connection was closed. If the bytes are not a frame with the
/// expected tag, the error has the kind `InvalidData`.
pub(super) fn read(
    from: &mut impl Read,
    seal: &mut Seal,
) -> io::Result<Option<(FrameKind, Vec<u8>)>> {
    let mut head = [0; HEAD];
    loop {
        match from.read(&mut head[..1]) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    from.read_exact(&mut head[1..])?;
    let [kind, length @ ..] = head;
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = FrameKind::of(kind).ok_or_else(invalid)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LIMIT {
        return Err(invalid());
    }
    // The buffer grows as bytes arrive, so a false length does not allocate memory.
    let mut payload = Vec::new();
    from.take((length + TAG) as u64).read_to_end(&mut payload)?;
    if payload.len() < length + TAG {
        return Ok(None);
    }
    let tag = payload.split_off(length);
    if !keys::is_same(&seal.next(&head, &blake3::hash(&payload)), &tag) {
        return Err(invalid());
    }
    Ok(Some((kind, payload)))
}

/// Returns at most `longest` characters of a text from another rank. Characters that could control
/// a terminal become spaces.
pub(super) fn printable(text: &str, longest: usize) -> String {
    let mut characters = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut kept: String = characters.by_ref().take(longest).collect();
    if characters.next().is_some() {
        kept.push('…');
    }
    kept
}

/// Makes two different texts of ranks printable. If they are long, keeps only the text around the
/// first difference.
pub(super) fn excerpts(one: &str, other: &str) -> (String, String) {
    const LONGEST: usize = 160;
    const BEFORE: usize = 40;
    let same = one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count();
    let excerpt = |text: &str| {
        let long = text.chars().nth(LONGEST).is_some();
        let skipped = if long { same.saturating_sub(BEFORE) } else { 0 };
        let from = text.char_indices().nth(skipped).map_or(text.len(), |(from, _)| from);
        let mark = if skipped > 0 { "…" } else { "" };
        format!("{mark}{}", printable(&text[from..], LONGEST))
    };
    (excerpt(one), excerpt(other))
}
