//! Encodes and decodes the bytes between ranks with fixed secrets, for fuzzers.

use std::net::TcpStream;

use super::Backend;
use super::frame::{self, FrameKind};
use super::greeting;
use super::hosts::Place;
use super::keys::{Seal, Secret};
use super::lobby::Heard;
use super::meet::Direct;
use super::mesh::Mesh;
use mlx_primitives::Result;

const FIRST: [u8; 32] = [0; 32];

fn seals() -> (Seal, Seal) {
    Secret::of(b"a secret of fuzzers").seals("fuzz", &[])
}

/// Returns the greeting of rank 1 of 2, and the JSON text in it.
pub fn greeting() -> Result<(Vec<u8>, Vec<u8>)> {
    let place =
        Place { rank: 1, size: 2, backend: Backend::Ring, first: String::new(), hosts: vec![] };
    let (bytes, _, text) = greeting::greet(&Secret::of(b""), &FIRST, &place)?;
    Ok((bytes, text))
}

/// Whether rank 0 accepts the bytes as the greeting of a rank.
pub fn is_greeting(bytes: &[u8]) -> bool {
    matches!(greeting::judge(&Secret::of(b""), &FIRST, bytes), Heard::Rank(_))
}

/// Returns the bytes of a control connection whose frames have these payloads.
pub fn frames(payloads: &[Vec<u8>]) -> Vec<u8> {
    let (mut seal, mut bytes) = (seals().0, Vec::new());
    for payload in payloads {
        let _ = frame::write(&mut bytes, &mut seal, FrameKind::Data, payload);
    }
    bytes
}

/// Returns the payloads of the frames that a rank reads from these bytes.
pub fn read_frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut seal, mut payloads) = (seals().0, Vec::new());
    while let Ok(Some((_, payload))) = frame::read(&mut bytes, &mut seal) {
        payloads.push(payload);
    }
    payloads
}

fn mesh(stream: TcpStream, rank: usize) -> Result<Mesh> {
    let (up, down) = seals();
    let (to, from) = if rank == 1 { (up, down) } else { (down, up) };
    stream.set_nonblocking(true).map_err(|error| error.to_string())?;
    Ok(Mesh::new(vec![Direct { rank, stream, to, from }]))
}

/// Sends a part of an array to rank 1 over a connection.
///
/// # Errors
///
/// Returns an error if the connection is lost.
pub fn send_part(stream: TcpStream, part: &[u8]) -> Result<()> {
    mesh(stream, 1)?.send(1, part)
}

/// Fills `part` with the bytes that rank 0 sends over a connection.
///
/// # Errors
///
/// Returns an error if the connection ends, or the bytes are not a message with such a part.
pub fn receive_part(stream: TcpStream, part: &mut [u8]) -> Result<()> {
    mesh(stream, 0)?.receive(0, part)
}
