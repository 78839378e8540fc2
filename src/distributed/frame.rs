//! The frames on a control connection: a kind, a length and as many bytes.

use std::io::{self, Read, Write};

/// The largest payload.
pub(super) const LIMIT: usize = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A sign of life.
    Beat = 1,
    /// A part of an operation of the group.
    Data = 2,
    /// The text of the error that ends all ranks.
    Fail = 3,
    /// The sender has left the group in order.
    Leave = 4,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Beat, Self::Data, Self::Fail, Self::Leave].into_iter().find(|k| *k as u8 == byte)
    }
}

/// Writes a frame at once, so that it is one packet if it is small.
pub(super) fn write(to: &mut impl Write, kind: Kind, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= LIMIT);
    let length = length.ok_or_else(|| io::Error::other("the frame is too long"))?;
    let mut frame = Vec::with_capacity(payload.len() + 5);
    frame.push(kind as u8);
    frame.extend(length.to_le_bytes());
    frame.extend(payload);
    to.write_all(&frame)
}

/// Reads a frame; `None` if the connection was closed.
pub(super) fn read(from: &mut impl Read) -> io::Result<Option<(Kind, Vec<u8>)>> {
    let mut head = [0; 5];
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
    let kind = Kind::of(kind).ok_or_else(invalid)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LIMIT {
        return Err(invalid());
    }
    // Grows as the bytes come.
    let mut payload = Vec::new();
    from.take(length as u64).read_to_end(&mut payload)?;
    if payload.len() < length {
        return Ok(None);
    }
    Ok(Some((kind, payload)))
}

/// A text of a peer without characters that could control a terminal.
pub(super) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().take(2000).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
