//! An attacker that takes part in a greeting between ranks. It follows the description of the
//! protocol, and shares no code with the library.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::ranks::LIMIT;

pub const MAGIC: &[u8; 16] = b"mlx-primitives 2";
/// Rank 0 first sends this many bytes: the magic bytes and a nonce.
pub const CHALLENGE: usize = 48;
const CONTEXT: &str = "mlx-primitives 2026-11-26 the secret of a group of ranks";

/// Waits until a process listens at the port, and then connects.
pub fn connect(port: u16) -> anyhow::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            // If nobody listens, TCP may connect the socket to itself. Try again then.
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

/// The proof that a sender knows the secret: a keyed hash of the purpose and the parts.
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

/// Encodes a greeting with this text.
pub fn greeting(secret: &[u8], first: &[u8], text: &str) -> Vec<u8> {
    let own = [7; 32];
    let proof = proof(secret, "a rank greets rank 0", &[first, &own, text.as_bytes()]);
    let length = (text.len() as u32).to_le_bytes();
    [&MAGIC[..], &length, &own, text.as_bytes(), &proof].concat()
}

/// Reads all bytes until the connection ends.
pub fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Ignore an error. The other end may have closed the connection without reading everything.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

/// Sends bytes to rank 0 while it waits for a greeting. Returns the bytes that rank 0 sends after
/// its nonce.
pub fn say(port: u16, bytes: impl Fn(&[u8]) -> Vec<u8>) -> anyhow::Result<Vec<u8>> {
    let mut stream = connect(port)?;
    let nonce = nonce(&mut stream)?;
    let _ = stream.write_all(&bytes(&nonce));
    Ok(rest(&mut stream))
}
