//! The start of a group: every rank connects to rank 0 and is compared with it, before MLX connects
//! the ranks. MLX itself would wait for a missing rank without an end, and compares nothing.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::frame::{self, Kind};
use super::hosts::Place;
use crate::error::{Error, Result};
use crate::ffi::bridge as ffi;

/// The first bytes of a greeting. Connections that begin with others are closed.
const MAGIC: &[u8; 16] = b"mlx-primitives 1";
/// The largest greeting; it is far smaller.
const LONGEST: usize = 2048;
/// How many connections may be open that have not greeted, and for how long.
const STRANGERS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);
/// How long rank 0 waits for further ranks after it has found that the group cannot work: they get
/// the reason too.
const LAST_CALL: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);
/// Replace the versions of this crate and of MLX, for tests.
const TEST_VERSION: &str = "MLX_PRIMITIVES_TEST_VERSION";
const TEST_MLX: &str = "MLX_PRIMITIVES_TEST_MLX_VERSION";

/// The connections to other ranks.
pub(super) type Links = BTreeMap<usize, TcpStream>;

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
    std::env::var(TEST_MLX).unwrap_or_else(|_| ffi::library_version())
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

    /// The reason why a rank with this greeting cannot join the group of `first`, rank 0.
    fn refusal(&self, first: &Self) -> Option<String> {
        let rank = self.rank;
        if self.version != first.version {
            let (other, own) = (&self.version, &first.version);
            return Some(format!("rank {rank} runs mlx-primitives {other}, but rank 0 runs {own}"));
        }
        if self.mlx != first.mlx {
            let (other, own) = (&self.mlx, &first.mlx);
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

/// The addresses of `host:port`. MLX connects by IPv4.
fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(address.to_socket_addrs()?.filter(SocketAddr::is_ipv4).collect())
}

fn failed(reason: impl std::fmt::Display) -> Error {
    Error::distributed("join", reason)
}

/// A connection that has not greeted yet.
struct Pending {
    stream: TcpStream,
    since: Instant,
    bytes: Vec<u8>,
}

enum Heard {
    /// Not enough yet.
    Part,
    /// No rank of ours, or a closed connection.
    Stranger,
    Whole(Greeting),
}

impl Pending {
    fn hear(&mut self) -> Heard {
        let mut buffer = [0; 512];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Heard::Stranger,
                Ok(count) => self.bytes.extend(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return Heard::Stranger,
            }
            if self.bytes.len() > LONGEST {
                return Heard::Stranger;
            }
        }
        let magic = self.bytes.len().min(MAGIC.len());
        if self.bytes[..magic] != MAGIC[..magic] || self.since.elapsed() > PATIENCE {
            return Heard::Stranger;
        }
        match frame::read(&mut &self.bytes[magic..]) {
            Ok(Some((Kind::Data, payload))) => {
                serde_json::from_slice(&payload).map_or(Heard::Stranger, Heard::Whole)
            }
            Ok(Some(_)) => Heard::Stranger,
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => Heard::Stranger,
            Ok(None) | Err(_) => Heard::Part,
        }
    }
}

/// Whether the other side of a connection that does not block has closed it.
fn closed(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// The ranks of a list in words: "rank 1", "ranks 1 and 2", "ranks 1, 2 and 3".
pub(super) fn ranks(list: &[usize]) -> String {
    let words: Vec<_> = list.iter().map(usize::to_string).collect();
    match words.split_last() {
        None => "no rank".into(),
        Some((only, [])) => format!("rank {only}"),
        Some((last, rest)) => format!("ranks {} and {last}", rest.join(", ")),
    }
}

/// Rank 0: awaits the other ranks at its address until the deadline, then closes the address for
/// MLX, which uses it next.
pub(super) fn host(place: &Place, timeout: Duration) -> Result<Links> {
    let deadline = Instant::now() + timeout;
    let first = &place.first;
    let unusable = |error| failed(format_args!("rank 0 cannot listen at {first}: {error}"));
    let listener = TcpListener::bind(&*resolve(first).map_err(unusable)?).map_err(unusable)?;
    listener.set_nonblocking(true).map_err(unusable)?;

    let own = Greeting::of(place);
    let mut until = deadline;
    let (mut pending, mut refused) = (Vec::<Pending>::new(), Vec::new());
    let (mut links, mut reason) = (Links::new(), None);
    while links.len() + 1 < place.size && Instant::now() < until {
        while let Ok((stream, _)) = listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                pending.push(Pending { stream, since: Instant::now(), bytes: Vec::new() });
            }
        }
        let excess = pending.len().saturating_sub(STRANGERS);
        pending.drain(..excess);
        links.retain(|_, stream| !closed(stream));
        for mut connection in std::mem::take(&mut pending) {
            match connection.hear() {
                Heard::Part => pending.push(connection),
                Heard::Stranger => {}
                Heard::Whole(greeting) => {
                    let rank = greeting.rank;
                    let twice = || format!("two processes have rank {rank}");
                    let taken = links.contains_key(&rank).then(twice);
                    let refusal = greeting.refusal(&own).or(taken);
                    if let Some(refusal) = refusal {
                        reason.get_or_insert(refusal);
                        until = until.min(Instant::now() + LAST_CALL);
                        refused.push(connection.stream);
                    } else {
                        links.insert(rank, connection.stream);
                    }
                }
            }
        }
        thread::sleep(PAUSE);
    }
    drop(listener);

    let missing: Vec<_> = (1..place.size).filter(|rank| !links.contains_key(rank)).collect();
    if reason.is_none() && !missing.is_empty() {
        let seconds = timeout.as_secs_f64();
        reason = Some(format!("{} did not start within {seconds} s", ranks(&missing)));
    }
    let answer = Answer { refused: reason };
    // The last rank connects to this one at once, so it is told last.
    for stream in refused.iter().chain(links.values()) {
        // A rank that cannot be reached is noticed by the control connection.
        let _ = stream.set_nonblocking(false).and_then(|()| tell(stream, &answer));
    }
    answer.refused.map_or(Ok(links), |reason| Err(failed(reason)))
}

fn tell(mut stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    frame::write(&mut stream, Kind::Data, &serde_json::to_vec(message)?)
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

/// Another rank than 0: connects to rank 0, again and again until the deadline, and awaits its
/// answer.
pub(super) fn call(place: &Place, timeout: Duration) -> Result<Links> {
    let deadline = Instant::now() + timeout;
    loop {
        let error = match attempt(place, deadline) {
            Ok((_, Answer { refused: Some(reason) })) => {
                return Err(failed(frame::printable(reason.as_bytes())));
            }
            Ok((stream, _)) => {
                if place.rank + 1 == place.size {
                    // MLX on this rank connects to rank 0 first, which needs a moment to listen. If
                    // it fails, MLX sleeps for a second.
                    thread::sleep(Duration::from_millis(30));
                }
                return Ok(Links::from([(0, stream)]));
            }
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            let (first, seconds) = (&place.first, timeout.as_secs_f64());
            return Err(failed(format_args!(
                "rank 0 did not start within {seconds} s, or cannot be reached at {first}: {error}"
            )));
        }
        thread::sleep(10 * PAUSE);
    }
}

fn attempt(place: &Place, deadline: Instant) -> io::Result<(TcpStream, Answer)> {
    let address = resolve(&place.first)?.into_iter().next();
    let address = address.ok_or_else(|| io::Error::other("it has no IPv4 address"))?;
    let left = deadline.saturating_duration_since(Instant::now());
    let limit = left.clamp(Duration::from_millis(10), PATIENCE);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    if stream.local_addr()? == stream.peer_addr()? {
        // The system gave this end the port that nobody listens on yet.
        return Err(ErrorKind::ConnectionRefused.into());
    }
    stream.write_all(MAGIC)?;
    tell(&stream, &Greeting::of(place))?;
    match frame::read(&mut Until(&stream, deadline))? {
        Some((Kind::Data, payload)) => Ok((stream, serde_json::from_slice(&payload)?)),
        _ => Err(io::Error::other("it closed the connection")),
    }
}
