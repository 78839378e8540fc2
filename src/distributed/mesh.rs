//! Connections from each rank to each other one, over which ranks exchange parts of an array. MLX's
//! ring passes a part on from rank to rank, and its threads poll while they wait; here a part takes
//! one step, and a rank that waits sleeps, which leaves its core to the others.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::watch;
use crate::error::{Error, Result};

/// The first bytes of a connection, before the key of the group and the number of the rank.
const MAGIC: &[u8; 8] = b"mlxpmesh";
const HELLO: usize = 24;
/// The number of an exchange and the bytes of the part that follows.
const HEADER: usize = 16;
/// How long a rank looks at its connections before it sleeps, from which it wakes late: longer than a
/// message takes in a local network. Meanwhile other threads may have its core.
const WATCH: Duration = Duration::from_millis(3);
/// The longest sleep before it looks whether the group still works.
const NAP: Duration = Duration::from_millis(100);
/// How long a stranger may take to say hello.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Mesh(Mutex<Vec<Peer>>);

/// The connection to another rank.
struct Peer {
    rank: usize,
    stream: TcpStream,
    /// The numbers of messages to and from that rank so far.
    sent: u64,
    received: u64,
}

fn failed(reason: impl std::fmt::Display) -> Error {
    Error::distributed("exchange", reason)
}

/// A socket at this rank's address that awaits the ranks before it, and the text that tells them
/// where.
pub(super) fn listen(host: &str) -> Result<(TcpListener, String)> {
    let refuse = |error| failed(format_args!("cannot listen at {host}: {error}"));
    let listener = TcpListener::bind((host, 0)).map_err(refuse)?;
    listener.set_nonblocking(true).map_err(refuse)?;
    let port = listener.local_addr().map_err(refuse)?.port();
    Ok((listener, format!("{host}:{port}")))
}

impl Mesh {
    /// Connects this rank to the ranks at these addresses. `key` is the group's, and tells ranks from
    /// strangers.
    pub(super) fn connect(
        rank: usize,
        listener: &TcpListener,
        addresses: &[String],
        key: u64,
        timeout: Duration,
    ) -> Result<Self> {
        let deadline = Instant::now() + timeout;
        let mut peers = Vec::new();
        for (peer, address) in addresses.iter().enumerate().skip(rank + 1) {
            let reach = || -> std::io::Result<TcpStream> {
                let address = address.to_socket_addrs()?.next();
                let address = address.ok_or_else(|| std::io::Error::other("it has no address"))?;
                let left = deadline.saturating_duration_since(Instant::now());
                let mut stream = TcpStream::connect_timeout(&address, left.max(PATIENCE))?;
                stream.set_write_timeout(Some(timeout))?;
                let number = (rank as u64).to_le_bytes();
                stream.write_all(&[&MAGIC[..], &key.to_le_bytes(), &number].concat())?;
                Ok(stream)
            };
            let stream = reach().map_err(|error| failed(format_args!("rank {peer}: {error}")))?;
            peers.push((peer, stream));
        }
        while peers.len() + 1 < addresses.len() {
            if Instant::now() >= deadline {
                return Err(failed("another rank did not connect to this one in time"));
            }
            let Ok((mut stream, _)) = listener.accept() else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            let mut hello = [0; HELLO];
            let heard = stream
                .set_nonblocking(false)
                .and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
                .and_then(|()| stream.read_exact(&mut hello));
            let word = |at: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&hello[at..at + 8]);
                u64::from_le_bytes(word)
            };
            let peer = usize::try_from(word(16)).unwrap_or(usize::MAX);
            let known = heard.is_ok() && hello.starts_with(MAGIC) && word(8) == key && peer < rank;
            if known && peers.iter().all(|(other, _)| *other != peer) {
                peers.push((peer, stream));
            }
        }
        for (peer, stream) in &peers {
            let ready = stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true));
            ready.map_err(|error| failed(format_args!("rank {peer}: {error}")))?;
        }
        let peer = |(rank, stream)| Peer { rank, stream, sent: 0, received: 0 };
        Ok(Self(Mutex::new(peers.into_iter().map(peer).collect())))
    }

    /// Sends `own` to every other rank, and fills `parts[r]` with the bytes of rank `r`; the part of
    /// this rank is left as it is.
    pub(super) fn exchange(&self, own: &[u8], parts: &mut [&mut [u8]]) -> Result<()> {
        let mut parts: Vec<_> = parts.iter_mut().map(Some).collect();
        self.transfer(|peer| {
            let part = parts.get_mut(peer).and_then(Option::take);
            let part = part.ok_or_else(|| failed(format_args!("no part for rank {peer}")))?;
            Ok((Some(own), Some(&mut **part)))
        })
    }

    /// Sends `bytes` to rank `to` alone.
    pub(super) fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        self.transfer(|peer| Ok(((peer == to).then_some(bytes), None)))
    }

    /// Fills `part` with the bytes that rank `from` sends to this one alone.
    pub(super) fn receive(&self, from: usize, part: &mut [u8]) -> Result<()> {
        let mut part = Some(part);
        self.transfer(|peer| Ok((None, if peer == from { part.take() } else { None })))
    }

    /// Sends and receives what `with` says for each other rank, until all of it is done.
    fn transfer<'a>(
        &self,
        mut with: impl FnMut(usize) -> Result<(Option<&'a [u8]>, Option<&'a mut [u8]>)>,
    ) -> Result<()> {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let header = |number: u64, bytes: usize| {
            let mut header = [0; HEADER];
            header[..8].copy_from_slice(&number.to_le_bytes());
            header[8..].copy_from_slice(&(bytes as u64).to_le_bytes());
            header
        };
        let mut transfers = Vec::new();
        for peer in peers.iter_mut() {
            let (message, part) = with(peer.rank)?;
            peer.sent += u64::from(message.is_some());
            peer.received += u64::from(part.is_some());
            transfers.push(Transfer {
                peer: peer.rank,
                stream: &peer.stream,
                title: header(peer.sent, message.map_or(0, <[u8]>::len)),
                message,
                sent: 0,
                head: [0; HEADER],
                expected: header(peer.received, part.as_ref().map_or(0, |part| part.len())),
                read: 0,
                part,
            });
        }
        let mut since = Instant::now();
        loop {
            let (mut moved, mut done) = (false, true);
            for transfer in &mut transfers {
                moved |= transfer.advance()?;
                done &= transfer.left() == (0, 0);
            }
            if done {
                return Ok(());
            }
            if moved {
                since = Instant::now();
            } else if since.elapsed() < WATCH {
                thread::yield_now();
            } else {
                sleep(&transfers);
                if watch::is_broken() {
                    return Err(watch::broken("exchange"));
                }
            }
        }
    }
}

/// The messages to and from one rank.
struct Transfer<'a, 'b> {
    peer: usize,
    stream: &'b TcpStream,
    /// The header of the message.
    title: [u8; HEADER],
    message: Option<&'a [u8]>,
    /// The bytes sent so far, those of the header included.
    sent: usize,
    head: [u8; HEADER],
    /// The header of the part that this rank waits for.
    expected: [u8; HEADER],
    /// The bytes read so far, those of the header included.
    read: usize,
    part: Option<&'a mut [u8]>,
}

impl Transfer<'_, '_> {
    /// The numbers of bytes to send and to read.
    fn left(&self) -> (usize, usize) {
        let sends = self.message.map_or(0, |message| HEADER + message.len());
        let reads = self.part.as_ref().map_or(0, |part| HEADER + part.len());
        (sends - self.sent, reads - self.read)
    }

    /// Writes and reads the bytes that the connection takes and has. Returns whether there were any.
    fn advance(&mut self) -> Result<bool> {
        let mut stream = self.stream;
        let lost =
            |error| failed(format_args!("the connection to rank {} was lost: {error}", self.peer));
        let (sends, reads) = self.left();
        let mut moved = false;
        if let Some(message) = self.message.filter(|_| sends > 0) {
            let title = self.title.get(self.sent..).unwrap_or_default();
            let rest = message.get(self.sent.saturating_sub(HEADER)..).unwrap_or_default();
            match stream.write_vectored(&[IoSlice::new(title), IoSlice::new(rest)]) {
                Ok(count) => {
                    self.sent += count;
                    moved |= count > 0;
                }
                Err(error) if waits(&error) => {}
                Err(error) => return Err(lost(error)),
            }
        }
        if let Some(part) = self.part.as_mut().filter(|_| reads > 0) {
            let to = match self.read.checked_sub(HEADER) {
                None => &mut self.head[self.read..],
                Some(read) => &mut part[read..],
            };
            match stream.read(to) {
                Ok(0) => return Err(lost(ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    self.read += count;
                    moved = true;
                }
                Err(error) if waits(&error) => {}
                Err(error) => return Err(lost(error)),
            }
            if self.read == HEADER && self.head != self.expected {
                return Err(failed(format_args!(
                    "rank {} sent another part than this rank expects: the ranks differ in shapes or \
                     in the order of their operations",
                    self.peer
                )));
            }
        }
        Ok(moved)
    }
}

/// Whether a read or a write found nothing to do.
fn waits(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Sleeps until a connection can go on, but not for long.
#[cfg(unix)]
fn sleep(transfers: &[Transfer<'_, '_>]) {
    use std::os::fd::AsRawFd;
    let wanted = |transfer: &Transfer<'_, '_>| {
        let (sends, reads) = transfer.left();
        let write = if sends > 0 { libc::POLLOUT } else { 0 };
        let read = if reads > 0 { libc::POLLIN } else { 0 };
        let fd = transfer.stream.as_raw_fd();
        (write | read != 0).then_some(libc::pollfd { fd, events: write | read, revents: 0 })
    };
    let mut waiting: Vec<_> = transfers.iter().filter_map(wanted).collect();
    // SAFETY: the pointer is that of a list of as many entries, whose sockets are open.
    unsafe {
        let count = waiting.len() as libc::nfds_t;
        libc::poll(waiting.as_mut_ptr(), count, NAP.as_millis() as libc::c_int);
    }
}

#[cfg(not(unix))]
fn sleep(_: &[Transfer<'_, '_>]) {
    thread::sleep(Duration::from_micros(50).min(NAP));
}

/// The host of the first of a rank's addresses, `host:port, host:port`.
pub(super) fn host_of(addresses: &str) -> &str {
    addresses.split(':').next().unwrap_or_default()
}
