//! Starts a group, before MLX connects the ranks. Every rank connects to rank 0, and the two ranks
//! prove to each other that they know the secret. Rank 0 then checks that the other rank has the
//! same versions and the same number of ranks. MLX itself waits for a missing rank without a limit,
//! and compares nothing.
//!
//! Rank 0 sends [`MAGIC`] and a fresh nonce to each connection. A rank answers with its
//! [`Greeting`], a second nonce, and a proof over the greeting and both nonces. Rank 0 answers with
//! its proof. The keys of all later frames are derived from both nonces and the greeting, so that a
//! frame of one connection is not valid on another.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::frame::{self, FrameKind};
use super::hosts::Place;
use super::keys::{self, Key, Seal, Secret, TAG};
use super::lobby::{Heard, LONGEST, Lobby, PATIENCE};
use mlx_primitives::{Error, Result};

/// The first bytes that each end of a connection sends. A rank closes a connection that begins with
/// other bytes.
const MAGIC: &[u8; 16] = b"mlx-primitives 2";
/// The size in bytes of a greeting before its text: the magic bytes, a length and a nonce.
const HEAD: usize = MAGIC.len() + 4 + NONCE;
const NONCE: usize = blake3::KEY_LEN;
/// If rank 0 finds that the group cannot work, it still waits this long for more ranks, to tell
/// them the reason too.
const LAST_CALL: Duration = Duration::from_secs(2);
/// The pause before a rank tries again to connect.
const PAUSE: Duration = Duration::from_millis(50);
/// The purposes of proofs and keys. A proof or a key for one purpose is not valid for another.
const OF_RANK: &str = "a rank greets rank 0";
const OF_FIRST: &str = "rank 0 greets a rank";
const CONTROL: &str = "a control connection";
/// Variables that replace the versions of this crate and of MLX, for tests.
const TEST_VERSION: &str = "MLX_PRIMITIVES_TEST_VERSION";
const TEST_MLX: &str = "MLX_PRIMITIVES_TEST_MLX_VERSION";

/// An authenticated connection to another rank.
pub(super) struct Link {
    pub stream: TcpStream,
    pub to: Seal,
    pub from: Seal,
}

/// The connections to other ranks.
pub(super) type Links = BTreeMap<usize, Link>;

#[derive(Serialize, Deserialize)]
struct Greeting {
    version: String,
    mlx: String,
    size: usize,
    rank: usize,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    refused: Option<String>,
}

/// The version of the loaded MLX.
pub(super) fn mlx_version() -> String {
    std::env::var(TEST_MLX).unwrap_or_else(|_| mlx_primitives::device::mlx_versions().1)
}

impl Greeting {
    fn of(place: &Place) -> Self {
        let version = std::env::var(TEST_VERSION);
        Self {
            version: version.unwrap_or_else(|_| env!("CARGO_PKG_VERSION").to_owned()),
            mlx: mlx_version(),
            size: place.size,
            rank: place.rank,
        }
    }

    /// Returns the reason why a rank with this greeting cannot join the group of rank 0, whose
    /// greeting is `first`; `None` if it can.
    fn refusal(&self, first: &Self) -> Option<String> {
        let rank = self.rank;
        if self.version != first.version {
            let (other, own) = (frame::printable(&self.version, 40), &first.version);
            return Some(format!("rank {rank} runs mlx-primitives {other}, but rank 0 runs {own}"));
        }
        if self.mlx != first.mlx {
            let (other, own) = (frame::printable(&self.mlx, 40), &first.mlx);
            return Some(format!("rank {rank} runs MLX {other}, but rank 0 runs MLX {own}"));
        }
        if self.size != first.size {
            let (other, own) = (self.size, first.size);
            return Some(format!("rank {rank} expects {other} ranks, but rank 0 expects {own}"));
        }
        if rank == 0 || rank >= first.size {
            return Some(match rank {
                0 => "two processes have rank 0".into(),
                _ => format!("a process has rank {rank}, but the group has {} ranks", first.size),
            });
        }
        None
    }
}

/// Resolves `host:port`. Returns only IPv4 addresses, since MLX connects by IPv4.
fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(address.to_socket_addrs()?.filter(SocketAddr::is_ipv4).collect())
}

fn failed(reason: impl std::fmt::Display) -> Error {
    Error::distributed("join", reason)
}

/// A greeting with a correct proof that rank 0 has received.
pub(super) struct Known {
    greeting: Greeting,
    /// The nonce of rank 0.
    first: Key,
    nonce: Key,
    text: Vec<u8>,
}

/// Judges the bytes that answer the nonce of rank 0.
pub(super) fn judge(secret: &Secret, first: &Key, bytes: &[u8]) -> Heard<Known> {
    let magic = bytes.len().min(MAGIC.len());
    if bytes[..magic] != MAGIC[..magic] {
        return Heard::Stranger;
    }
    let Some((head, rest)) = bytes.split_at_checked(HEAD) else { return Heard::Part };
    let (length, nonce) = head[MAGIC.len()..].split_at(4);
    let length = length.iter().rev().fold(0, |length, byte| length << 8 | usize::from(*byte));
    if length > LONGEST - HEAD - TAG || rest.len() > length + TAG {
        return Heard::Stranger;
    }
    let Some((text, proof)) = rest.split_at_checked(length).filter(|(_, tag)| tag.len() == TAG)
    else {
        return Heard::Part;
    };
    let nonce = Key::try_from(nonce).unwrap_or_default();
    if !keys::is_same(&secret.prove(OF_RANK, &[first, &nonce, text]), proof) {
        return Heard::Stranger;
    }
    match serde_json::from_slice(text) {
        Ok(greeting) => Heard::Rank(Known { greeting, first: *first, nonce, text: text.to_vec() }),
        Err(_) => Heard::Stranger,
    }
}

/// Makes a rank's answer to the nonce of rank 0. Returns all bytes of the answer, the rank's nonce,
/// and the text of the greeting.
pub(super) fn greet(
    secret: &Secret,
    first: &Key,
    place: &Place,
) -> Result<(Vec<u8>, Key, Vec<u8>)> {
    let text = serde_json::to_vec(&Greeting::of(place)).map_err(failed)?;
    let nonce = keys::random()?;
    let proof = secret.prove(OF_RANK, &[first, &nonce, &text]);
    let length = (text.len() as u32).to_le_bytes();
    Ok(([&MAGIC[..], &length, &nonce, &text, proof.as_bytes()].concat(), nonce, text))
}

/// Whether the other side has closed a connection. The connection must be in non-blocking mode.
fn closed(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Names the ranks of a list in words: "rank 1", "ranks 1 and 2", "ranks 1, 2 and 3".
pub(super) fn ranks(list: &[usize]) -> String {
    let words: Vec<_> = list.iter().map(usize::to_string).collect();
    match words.split_last() {
        None => "no rank".into(),
        Some((only, [])) => format!("rank {only}"),
        Some((last, rest)) => format!("ranks {} and {last}", rest.join(", ")),
    }
}

/// Runs on rank 0: waits for the other ranks at its address until the deadline.
pub(super) fn host(place: &Place, secret: &Secret, timeout: Duration) -> Result<Links> {
    let deadline = Instant::now() + timeout;
    let first = &place.first;
    let unusable = |error| failed(format_args!("rank 0 cannot listen at {first}: {error}"));
    let listener = TcpListener::bind(&*resolve(first).map_err(unusable)?).map_err(unusable)?;
    listener.set_nonblocking(true).map_err(unusable)?;

    let own = Greeting::of(place);
    let mut until = deadline;
    let mut lobby = Lobby::new(listener);
    let (mut links, mut refused) = (Links::new(), Vec::new());
    let mut reason = None;
    while links.len() + 1 < place.size && Instant::now() < until {
        let challenge = |mut stream: &TcpStream| {
            let nonce = keys::random().ok()?;
            stream.write_all(&[&MAGIC[..], &nonce].concat()).ok().map(|()| nonce)
        };
        let known = lobby.round(challenge, |nonce, bytes| judge(secret, nonce, bytes));
        links.retain(|_, link| !closed(&link.stream));
        for (mut stream, known) in known {
            let parts: [&[u8]; 3] = [&known.first, &known.nonce, &known.text];
            if stream.write_all(secret.prove(OF_FIRST, &parts).as_bytes()).is_err() {
                continue; // it has gone
            }
            let (to, from) = secret.seals(CONTROL, &parts);
            let link = Link { stream, to, from };
            let rank = known.greeting.rank;
            let twice = || format!("two processes have rank {rank}");
            let taken = links.contains_key(&rank).then(twice);
            if let Some(refusal) = known.greeting.refusal(&own).or(taken) {
                reason.get_or_insert(refusal);
                until = until.min(Instant::now() + LAST_CALL);
                refused.push(link);
            } else {
                links.insert(rank, link);
            }
        }
    }
    drop(lobby);

    let missing: Vec<_> = (1..place.size).filter(|rank| !links.contains_key(rank)).collect();
    if reason.is_none() && !missing.is_empty() {
        let seconds = timeout.as_secs_f64();
        let missing = ranks(&missing);
        reason = Some(format!(
            "{missing} did not start within {seconds} s, or did not know the secret of rank 0"
        ));
    }
    let answer = Answer { refused: reason };
    for link in refused.iter_mut().chain(links.values_mut()) {
        // If this rank cannot reach the other rank, the control connection reports it.
        let _ = link.stream.set_nonblocking(false).and_then(|()| tell(link, &answer));
    }
    answer.refused.map_or(Ok(links), |reason| Err(failed(reason)))
}

fn tell(link: &mut Link, answer: &Answer) -> io::Result<()> {
    link.stream.set_write_timeout(Some(PATIENCE))?;
    frame::write(&mut link.stream, &mut link.to, FrameKind::Data, &serde_json::to_vec(answer)?)
}

/// Reads until a deadline.
struct Until<'a>(&'a TcpStream, Instant);

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.1.saturating_duration_since(Instant::now());
        self.0.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.0.read(buffer)
    }
}

/// Runs on every other rank: tries to connect to rank 0 until the deadline, and waits for its
/// answer.
pub(super) fn call(place: &Place, secret: &Secret, timeout: Duration) -> Result<Links> {
    let deadline = Instant::now() + timeout;
    loop {
        let error = match attempt(place, secret, deadline) {
            Ok((_, Answer { refused: Some(reason) })) => {
                return Err(failed(frame::printable(&reason, 400)));
            }
            Ok((link, _)) => return Ok(Links::from([(0, link)])),
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            let (first, seconds) = (&place.first, timeout.as_secs_f64());
            return Err(failed(format_args!(
                "rank 0 did not start within {seconds} s, or cannot be reached at {first}: {error}"
            )));
        }
        thread::sleep(PAUSE);
    }
}

fn attempt(place: &Place, secret: &Secret, deadline: Instant) -> io::Result<(Link, Answer)> {
    let address = resolve(&place.first)?.into_iter().next();
    let address = address.ok_or_else(|| io::Error::other("it has no IPv4 address"))?;
    // Rank 0 answers immediately. If too many other programs connect, rank 0 may close this
    // connection instead.
    let soon = deadline.min(Instant::now() + PATIENCE);
    let left = soon.saturating_duration_since(Instant::now()).max(Duration::from_millis(10));
    let mut stream = TcpStream::connect_timeout(&address, left)?;
    if stream.local_addr()? == stream.peer_addr()? {
        // If no process listens on the port yet, the system may connect this socket to itself.
        return Err(ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(left))?;
    let mut challenge = [0; MAGIC.len() + NONCE];
    Until(&stream, soon).read_exact(&mut challenge)?;
    let (magic, first) = challenge.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(io::Error::other("the process there is no rank 0 of this version"));
    }
    let first = Key::try_from(first).unwrap_or_default();
    let greeting = greet(secret, &first, place).map_err(io::Error::other)?;
    let (bytes, nonce, text) = greeting;
    stream.write_all(&bytes)?;
    let parts: [&[u8]; 3] = [&first, &nonce, &text];
    let mut proof = [0; TAG];
    let unproved = "the process there does not know this rank's secret";
    Until(&stream, soon).read_exact(&mut proof).map_err(|_| io::Error::other(unproved))?;
    if !keys::is_same(&secret.prove(OF_FIRST, &parts), &proof) {
        return Err(io::Error::other(unproved));
    }
    let (from, to) = secret.seals(CONTROL, &parts);
    let mut link = Link { stream, to, from };
    match frame::read(&mut Until(&link.stream, deadline), &mut link.from)? {
        Some((FrameKind::Data, payload)) => Ok((link, serde_json::from_slice(&payload)?)),
        _ => Err(io::Error::other("it closed the connection")),
    }
}
