//! Fuzzes the bytes that ranks (the processes that share a split model) exchange: greetings at the
//! start of a connection, frames of control connections, and parts of arrays. A rank must refuse
//! all bytes that no rank sent.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;

use fastrand::Rng;
use mlx_primitives_ranks::fuzzing;

use super::case::{Case, Fuzzer, Run};
use super::mutation;

pub const GREETINGS: Fuzzer =
    Fuzzer { name: "greetings", allowance: 4 << 20, prepare: prepare_greetings };
pub const FRAMES: Fuzzer = Fuzzer { name: "frames", allowance: 40 << 20, prepare: prepare_frames };
pub const PARTS: Fuzzer = Fuzzer { name: "parts", allowance: 4 << 20, prepare: prepare_parts };

fn random(rng: &mut Rng, longest: usize) -> Vec<u8> {
    let length = rng.usize(..longest);
    (0..length).map(|_| rng.u8(..)).collect()
}

/// Checks that bytes were accepted (`taken`) if and only if a rank sent them (`right`).
fn judged(bytes: usize, right: bool, taken: bool) -> Case {
    assert_eq!(right, taken, "bytes that no rank has sent were taken for a rank's, or the reverse");
    Case { input: bytes, accepted: taken }
}

fn prepare_greetings(_: &Path) -> anyhow::Result<Run> {
    Ok(Box::new(|rng| {
        let (greeting, text) = fuzzing::greeting().unwrap();
        let mut bytes = match rng.u8(..10) {
            0 => random(rng, 3000),
            // The greeting's magic bytes and length, followed by random bytes in place of the rest.
            1 => [&greeting[..20], &random(rng, 200)].concat(),
            2 => {
                let at = greeting.len() - 32 - text.len();
                let length = rng.usize(..2500);
                let text = "[".repeat(length);
                let head = [&greeting[..16], &(length as u32).to_le_bytes(), &greeting[20..at]];
                [&head.concat()[..], text.as_bytes(), &greeting[at + text.len().min(1)..]].concat()
            }
            _ => greeting.clone(),
        };
        if rng.u8(..8) > 0 {
            mutation::bytes(rng, &mut bytes);
        }
        judged(bytes.len(), bytes == greeting, fuzzing::is_greeting(&bytes))
    }))
}

fn prepare_frames(_: &Path) -> anyhow::Result<Run> {
    Ok(Box::new(|rng| {
        let count = rng.usize(1..5);
        let payloads: Vec<_> = (0..count).map(|_| random(rng, 500)).collect();
        let whole = fuzzing::frames(&payloads);
        let mut bytes = whole.clone();
        match rng.u8(..8) {
            0 => {}
            // Repeat the first frame. Its number is then wrong.
            1 => {
                let first = fuzzing::frames(&payloads[..1]).len();
                bytes.splice(first..first, whole[..first].to_vec());
            }
            2 => bytes.extend(random(rng, 100)),
            _ => mutation::bytes(rng, &mut bytes),
        }
        let read = fuzzing::read_frames(&bytes);
        // Only the frames before the first changed byte are valid.
        let same = bytes.iter().zip(&whole).take_while(|(one, other)| one == other).count();
        let unchanged = |count: &usize| fuzzing::frames(&payloads[..*count]).len() <= same;
        let right = (0..=count).rev().find(unchanged).unwrap_or(0);
        assert!(read == payloads[..right], "other frames than were sent");
        Case { input: bytes.len(), accepted: right == count }
    }))
}

fn prepare_parts(_: &Path) -> anyhow::Result<Run> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let pair = move || -> anyhow::Result<(TcpStream, TcpStream)> {
        Ok((TcpStream::connect(address)?, listener.accept()?.0))
    };
    Ok(Box::new(move |rng| {
        let part = random(rng, 4000);
        let whole = {
            let (near, mut far) = pair().unwrap();
            fuzzing::send_part(near, &part).unwrap();
            let mut whole = Vec::new();
            far.read_to_end(&mut whole).unwrap();
            whole
        };
        let mut bytes = whole.clone();
        if rng.u8(..8) > 0 {
            mutation::bytes(rng, &mut bytes);
        }
        let (near, mut far) = pair().unwrap();
        // The socket buffers have room for all bytes, so this does not block. The reader may have
        // closed the connection.
        let _ = far.write_all(&bytes).and_then(|()| far.shutdown(Shutdown::Write));
        let mut received = vec![0; part.len()];
        let result = fuzzing::receive_part(near, &mut received);
        assert!(result.is_err() || received == part, "another part than was sent");
        judged(bytes.len(), bytes.starts_with(&whole), result.is_ok())
    }))
}
