//! An attacker's side of a greeting, implemented from the description of the protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::ranks::LIMIT;

pub const MAGIC: &[u8; 16] = b"mlx-primitives 2";
/// The magic bytes and a nonce, which rank 0 sends first.
pub const CHALLENGE: usize = 48;
const CONTEXT: &str = "mlx-primitives 2026-11-26 the secret of a group of ranks";

/// Connects to a port as soon as a process listens at it.
pub fn connect(port: u16) -> anyhow::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            // The attempt may have connected to itself, from the same port.
            Ok(stream) if stream.local_addr()? != stream.peer_addr()? => {
                stream.set_read_timeout(Some(LIMIT))?;
                return Ok(stream);
            }
            Err(error) if start.elapsed() > LIMIT => return Err(error.into()),
            _ => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// The nonce that rank 0 sends.
pub fn nonce(stream: &mut TcpStream) -> anyhow::Result<Vec<u8>> {
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge)?;
    anyhow::ensure!(challenge.starts_with(MAGIC), "other magic bytes");
    Ok(challenge[MAGIC.len()..].to_vec())
}

/// The proof that the sender of these parts knows the secret.
pub fn proof(secret: &[u8], purpose: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key(CONTEXT, secret));
    for part in [purpose.as_bytes()].iter().chain(parts) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

pub fn text(version: &str, size: usize, rank: usize) -> String {
    let (_, mlx) = mlx_primitives::device::mlx_versions();
    serde_json::json!({"version": version, "mlx": mlx, "size": size, "rank": rank}).to_string()
}

/// A greeting with this text.
pub fn greeting(secret: &[u8], first: &[u8], text: &str) -> Vec<u8> {
    let own = [7; 32];
    let proof = proof(secret, "a rank greets rank 0", &[first, &own, text.as_bytes()]);
    let length = (text.len() as u32).to_le_bytes();
    [&MAGIC[..], &length, &own, text.as_bytes(), &proof].concat()
}

/// All bytes that arrive until the connection ends.
pub fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // If the other end has not read all bytes, the connection ends with an error.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

/// Sends bytes to a rank 0 that waits for a greeting, and returns all bytes that it sends after its
/// nonce.
pub fn say(port: u16, bytes: impl Fn(&[u8]) -> Vec<u8>) -> anyhow::Result<Vec<u8>> {
    let mut stream = connect(port)?;
    let nonce = nonce(&mut stream)?;
    let _ = stream.write_all(&bytes(&nonce));
    Ok(rest(&mut stream))
}
