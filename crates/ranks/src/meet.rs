//! Connects each rank to every other rank. The ranks have told each other a nonce and an address
//! over the authenticated control connections. Each end of a new connection first sends a proof
//! over all nonces and addresses, so the proof is valid in this group only.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use blake3::Hash;

use super::keys::{self, Seal, Secret, TAG};
use super::lobby::{Heard, Lobby, PATIENCE};
use mlx_primitives::{Error, Result};

/// The first bytes of a connection. The sender's rank and proof follow.
const MAGIC: &[u8; 8] = b"mlxpmesh";
const HELLO: usize = MAGIC.len() + 8 + TAG;
/// The pause before a rank tries to connect again.
const PAUSE: Duration = Duration::from_millis(20);
/// The purposes for which proofs and keys are derived from the secret.
const OF_LOWER: &str = "a rank connects to a later one";
const OF_HIGHER: &str = "a rank answers an earlier one";
const DIRECT: &str = "a direct connection";

/// An authenticated connection to another rank.
pub(super) struct Direct {
    pub rank: usize,
    pub stream: TcpStream,
    pub to: Seal,
    pub from: Seal,
}

fn failed(reason: impl std::fmt::Display) -> Error {
    Error::distributed("exchange", reason)
}

/// Opens a listening socket at this rank's address, to which the lower ranks connect. Returns the
/// socket and its address as text.
pub(super) fn listen(host: &str) -> Result<(TcpListener, String)> {
    let refuse = |error| failed(format_args!("cannot listen at {host}: {error}"));
    let listener = TcpListener::bind((host, 0)).map_err(refuse)?;
    listener.set_nonblocking(true).map_err(refuse)?;
    let port = listener.local_addr().map_err(refuse)?.port();
    Ok((listener, format!("{host}:{port}")))
}

/// Connects this rank to all other ranks. `told[r]` begins with the nonce of rank `r` and the
/// address of its listener.
pub(super) fn all(
    rank: usize,
    listener: TcpListener,
    secret: &Secret,
    told: &[Vec<String>],
    timeout: Duration,
) -> Result<Vec<Direct>> {
    let deadline = Instant::now() + timeout;
    let group = told.iter().flatten().map(String::as_bytes).collect::<Vec<_>>();
    let group = *secret.prove("what the ranks told each other", &group).as_bytes();
    let number = |rank: usize| (rank as u64).to_le_bytes();
    let prove = |who: &str, low: usize, high: usize| {
        secret.prove(who, &[&group, &number(low), &number(high)])
    };
    let lost = |peer: usize| move |error| failed(format_args!("rank {peer}: {error}"));

    let greet = |peer: usize| {
        let address = told.get(peer).and_then(|list| list.get(1)).map_or("", String::as_str);
        let mut stream = reach(address, deadline)?;
        let proof = prove(OF_LOWER, rank, peer);
        stream.write_all(&[&MAGIC[..], &number(rank), proof.as_bytes()].concat())?;
        Ok(stream)
    };

    // The operating system completes a connection before the other rank accepts it, so no rank
    // waits here.
    let mut higher = Vec::new();
    for peer in rank + 1..told.len() {
        higher.push((peer, greet(peer).map_err(lost(peer))?));
    }
    let mut peers = Vec::new();
    let mut lobby = Lobby::new(listener);
    while peers.len() < rank {
        if Instant::now() >= deadline {
            return Err(failed("another rank did not connect to this one in time"));
        }
        let ranks = lobby
            .round(|_| Some(()), |(), bytes| judge(bytes, rank, |low| prove(OF_LOWER, low, rank)));
        for (mut stream, peer) in ranks {
            // Another program can repeat the first bytes of a rank, but does not have the keys for
            // the messages that follow.
            if peers.iter().all(|(other, _)| *other != peer) {
                let proof = prove(OF_HIGHER, peer, rank);
                stream.write_all(proof.as_bytes()).map_err(lost(peer))?;
                peers.push((peer, stream));
            }
        }
    }
    for (peer, mut stream) in higher {
        // If other programs open many connections, the other rank may close this one. Then connect
        // again.
        while let Err(error) = check(&stream, deadline, &prove(OF_HIGHER, rank, peer)) {
            if Instant::now() >= deadline {
                return Err(lost(peer)(error));
            }
            thread::sleep(PAUSE);
            stream = greet(peer).map_err(lost(peer))?;
        }
        peers.push((peer, stream));
    }
    let direct = |(peer, stream): (usize, TcpStream)| {
        stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map_err(lost(peer))?;
        let (low, high) = (number(rank.min(peer)), number(rank.max(peer)));
        let (up, down) = secret.seals(DIRECT, &[&group, &low, &high]);
        let (to, from) = if rank < peer { (up, down) } else { (down, up) };
        Ok(Direct { rank: peer, stream, to, from })
    };
    peers.into_iter().map(direct).collect()
}

fn reach(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let address = address.to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other("it has no address"))?;
    let left = deadline.saturating_duration_since(Instant::now()).max(PATIENCE);
    let stream = TcpStream::connect_timeout(&address, left)?;
    stream.set_write_timeout(Some(left))?;
    Ok(stream)
}

/// Returns the rank below `rank` that sent these bytes, if its proof is right.
fn judge(bytes: &[u8], rank: usize, proof: impl Fn(usize) -> Hash) -> Heard<usize> {
    let magic = bytes.len().min(MAGIC.len());
    if bytes[..magic] != MAGIC[..magic] || bytes.len() > HELLO {
        return Heard::Stranger;
    }
    if bytes.len() < HELLO {
        return Heard::Part;
    }
    let (number, tag) = bytes[MAGIC.len()..].split_at(8);
    let low = number.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    match usize::try_from(low) {
        Ok(low) if low < rank && keys::is_same(&proof(low), tag) => Heard::Rank(low),
        _ => Heard::Stranger,
    }
}

/// Reads and checks the proof that the other rank sends as an answer.
fn check(mut stream: &TcpStream, deadline: Instant, expected: &Hash) -> io::Result<()> {
    let mut proof = [0; TAG];
    let mut read = 0;
    while read < TAG {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut proof[read..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => read += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    match keys::is_same(expected, &proof) {
        true => Ok(()),
        false => Err(io::Error::other("a stranger answers at its address")),
    }
}
