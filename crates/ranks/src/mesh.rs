//! Connections from each rank to every other rank, over which ranks exchange parts of an array.
//! MLX's ring passes a part from rank to rank, and its threads poll while they wait. Here a part
//! goes directly to the rank that needs it. A waiting rank sleeps after a short time, so that other
//! ranks can use its core.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::keys::{self, Seal, TAG};
use super::meet::Direct;
use super::watch;
use mlx_primitives::{Error, Result};

/// The length of a header, which contains the number of the message and the length of the part. The
/// part follows the header, and a tag follows the part.
const HEADER: usize = 16;
/// How long a rank polls its connections before it sleeps. Waking up takes long, so this is longer
/// than a message takes in a local network. While a rank polls, it yields its core to other
/// threads.
const WATCH: Duration = Duration::from_millis(3);
/// The maximum sleep before a rank checks whether the group is broken.
const NAP: Duration = Duration::from_millis(100);

pub(super) struct Mesh(Mutex<Vec<Peer>>);

/// The connection to another rank.
struct Peer {
    direct: Direct,
    /// The number of messages sent to that rank so far, and the number received from it.
    sent: u64,
    received: u64,
}

fn failed(reason: impl std::fmt::Display) -> Error {
    Error::distributed("exchange", reason)
}

impl Mesh {
    pub(super) fn new(ranks: Vec<Direct>) -> Self {
        let peer = |direct| Peer { direct, sent: 0, received: 0 };
        Self(Mutex::new(ranks.into_iter().map(peer).collect()))
    }

    /// Sends `own` to every other rank, and fills `parts[r]` with the bytes of rank `r`. The part
    /// of this rank stays unchanged.
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

    /// Fills `part` with the bytes that rank `from` sends to this rank alone.
    pub(super) fn receive(&self, from: usize, part: &mut [u8]) -> Result<()> {
        let mut part = Some(part);
        self.transfer(|peer| Ok((None, if peer == from { part.take() } else { None })))
    }

    /// Sends and receives until all messages are complete. For each other rank, `with` returns the
    /// bytes to send and the buffer for the bytes to receive, each of which may be absent.
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
        let mut hashed: Option<(&[u8], blake3::Hash)> = None;
        for Peer { direct, sent, received } in peers.iter_mut() {
            let (message, part) = with(direct.rank)?;
            *sent += u64::from(message.is_some());
            *received += u64::from(part.is_some());
            let title = header(*sent, message.map_or(0, <[u8]>::len));
            let tag = message.map_or([0; TAG], |message| {
                // A message that goes to several ranks is hashed only once.
                let known = hashed.filter(|(bytes, _)| std::ptr::eq(*bytes, message));
                let (_, content) =
                    *hashed.insert(known.unwrap_or_else(|| (message, blake3::hash(message))));
                *direct.to.next(&title, &content).as_bytes()
            });
            transfers.push(Transfer {
                peer: direct.rank,
                stream: &direct.stream,
                seal: &mut direct.from,
                title,
                message,
                tag,
                sent: 0,
                head: [0; HEADER],
                expected: header(*received, part.as_ref().map_or(0, |part| part.len())),
                proof: [0; TAG],
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

/// The transfer of one message to a rank and of one message from that rank.
struct Transfer<'a, 'b> {
    peer: usize,
    stream: &'b TcpStream,
    /// Computes the tag that the received part must have.
    seal: &'b mut Seal,
    /// The header of the sent message. `tag` is the tag of this message.
    title: [u8; HEADER],
    message: Option<&'a [u8]>,
    tag: [u8; TAG],
    /// The number of bytes sent so far, including header and tag.
    sent: usize,
    head: [u8; HEADER],
    /// The header that the received part must have.
    expected: [u8; HEADER],
    /// The received tag of the part.
    proof: [u8; TAG],
    /// The number of bytes read so far, including header and tag.
    read: usize,
    part: Option<&'a mut [u8]>,
}

impl Transfer<'_, '_> {
    /// Returns the number of bytes that are still to be sent, and the number that are still to be
    /// read.
    fn left(&self) -> (usize, usize) {
        let sends = self.message.map_or(0, |message| HEADER + message.len() + TAG);
        let reads = self.part.as_ref().map_or(0, |part| HEADER + part.len() + TAG);
        (sends - self.sent, reads - self.read)
    }

    /// Writes and reads as many bytes as the connection allows. Returns whether any bytes moved.
    fn advance(&mut self) -> Result<bool> {
        let (sends, reads) = self.left();
        let mut moved = false;
        if sends > 0 {
            moved |= self.write()?;
        }
        if reads > 0 {
            moved |= self.read()?;
        }
        Ok(moved)
    }

    fn write(&mut self) -> Result<bool> {
        let Some(message) = self.message else { return Ok(false) };
        let mut stream = self.stream;
        let mut slices = [&self.title[..], message, &self.tag].map(IoSlice::new);
        let mut slices = &mut slices[..];
        IoSlice::advance_slices(&mut slices, self.sent);
        let count = self.moved(stream.write_vectored(slices))?;
        self.sent += count;
        Ok(count > 0)
    }

    fn read(&mut self) -> Result<bool> {
        let Some(part) = &mut self.part else { return Ok(false) };
        let mut stream = self.stream;
        let mut slices = [&mut self.head[..], &mut **part, &mut self.proof].map(IoSliceMut::new);
        let mut slices = &mut slices[..];
        IoSliceMut::advance_slices(&mut slices, self.read);
        let count = match stream.read_vectored(slices) {
            Ok(0) => return Err(self.lost(&ErrorKind::UnexpectedEof.into())),
            result => self.moved(result)?,
        };
        let headed = self.read >= HEADER;
        self.read += count;
        if !headed && self.read >= HEADER && self.head != self.expected {
            return Err(failed(format_args!(
                "rank {} sent another part than this rank expects: the ranks differ in shapes or \
                 in the order of their operations",
                self.peer
            )));
        }
        if let (Some(part), (_, 0)) = (&self.part, self.left())
            && !keys::is_same(&self.seal.next(&self.head, &blake3::hash(part)), &self.proof)
        {
            return Err(failed(format_args!("rank {} sent what no rank sends", self.peer)));
        }
        Ok(count > 0)
    }

    /// Returns the number of bytes that a read or a write has moved; 0 if it would block.
    fn moved(&self, result: std::io::Result<usize>) -> Result<usize> {
        match result {
            Err(error) if waits(&error) => Ok(0),
            result => result.map_err(|error| self.lost(&error)),
        }
    }

    fn lost(&self, error: &std::io::Error) -> Error {
        failed(format_args!("the connection to rank {} was lost: {error}", self.peer))
    }
}

/// Whether a read or a write would block or was interrupted.
fn waits(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Sleeps until a connection is ready, or for `NAP`.
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
    // SAFETY: the pointer belongs to a list with this number of entries, whose sockets are open.
    unsafe {
        let count = waiting.len() as libc::nfds_t;
        libc::poll(waiting.as_mut_ptr(), count, NAP.as_millis() as libc::c_int);
    }
}

#[cfg(not(unix))]
fn sleep(_: &[Transfer<'_, '_>]) {
    thread::sleep(Duration::from_micros(50).min(NAP));
}
