//! The control connections of a group. Each rank has a connection to rank 0. The connections carry
//! heartbeats, the reason why a rank fails, and small messages. MLX's own connections have no time
//! limits.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::frame::{self, FrameKind};
use super::greeting::Links;
use super::keys::Seal;
use super::{end, watch};
use mlx_primitives::{Error, Result};

/// The timeout consists of this number of slices. A rank counts as lost if none of them brings
/// data.
const SLICES: u32 = 4;
/// The maximum number of bytes of messages that wait to be read.
const INBOX: usize = 64 << 20;
/// How long a failing rank waits for another rank's reason, since the other rank is more often the
/// cause. Also how long a rank tries to tell the other ranks its reason.
const VERDICT: Duration = Duration::from_secs(1);
/// The maximum number of characters that are shown of another rank's reason.
const REASON: usize = 1000;
/// Stands for a wait without a limit.
pub(super) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long this process waits before it ends, so that its last messages arrive.
const LINGER: Duration = Duration::from_millis(100);

pub(super) struct Control {
    rank: usize,
    /// A rank that is silent for this time counts as lost.
    timeout: Duration,
    /// The limit for any other wait.
    stall: Duration,
    writers: BTreeMap<usize, Mutex<Writer>>,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether this process is ending. The thread that sets the value reports the reason.
    ending: Mutex<bool>,
}

/// The sending half of a connection.
struct Writer {
    stream: TcpStream,
    seal: Seal,
}

impl Writer {
    fn write(&mut self, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
        frame::write(&mut self.stream, &mut self.seal, kind, payload)
    }
}

#[derive(Default)]
struct State {
    inbox: BTreeMap<usize, VecDeque<Vec<u8>>>,
    bytes: usize,
    left: Vec<usize>,
    /// Whether this rank has left.
    done: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    /// Starts the threads that read from the connections and send heartbeats.
    pub(super) fn start(
        rank: usize,
        links: Links,
        timeout: Duration,
        stall: Duration,
    ) -> io::Result<Arc<Self>> {
        let mut writers = BTreeMap::new();
        let mut readers = Vec::new();
        for (peer, link) in links {
            let stream = link.stream;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(timeout / SLICES))?;
            stream.set_write_timeout(Some(timeout))?;
            readers.push((peer, stream.try_clone()?, link.from));
            writers.insert(peer, Mutex::new(Writer { stream, seal: link.to }));
        }
        let state = Mutex::default();
        let (changed, ending) = (Condvar::new(), Mutex::new(false));
        let control = Arc::new(Self { rank, timeout, stall, writers, state, changed, ending });
        let spawn = |name: String, run: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name).spawn(run).map(drop)
        };
        for (peer, stream, seal) in readers {
            let control = control.clone();
            spawn(format!("from rank {peer}"), Box::new(move || control.read(peer, stream, seal)))?;
        }
        let beating = control.clone();
        spawn("signs of life".into(), Box::new(move || beating.beat()))?;
        Ok(control)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn silence(&self, peer: usize) -> String {
        let seconds = self.timeout.as_secs_f64();
        format!("rank {peer} has not answered for {seconds} s; it may be stopped or unreachable")
    }

    /// Reads a rank's frames until the connection ends. If the rank has not announced that it
    /// leaves, the end of the connection is an error.
    fn read(&self, peer: usize, stream: TcpStream, mut seal: Seal) {
        let mut stream = Listener { stream, slice: self.timeout / SLICES, quiet: 0 };
        let reason = loop {
            match frame::read(&mut stream, &mut seal) {
                Ok(Some((FrameKind::Beat, _))) => {}
                Ok(Some((FrameKind::Data, payload))) => {
                    let mut state = self.state();
                    state.bytes += payload.len();
                    if state.bytes > INBOX {
                        break format!("rank {peer} sent more messages than this rank reads");
                    }
                    state.inbox.entry(peer).or_default().push_back(payload);
                    self.changed.notify_all();
                }
                Ok(Some((FrameKind::Fail, text))) => {
                    break frame::printable(&String::from_utf8_lossy(&text), REASON);
                }
                Ok(Some((FrameKind::Leave, _))) => {
                    self.state().left.push(peer);
                    self.changed.notify_all();
                }
                Err(error) if silent(&error) => break self.silence(peer),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    break format!("rank {peer} sent what no rank sends");
                }
                Ok(None) | Err(_) => break format!("rank {peer} ended before the others"),
            }
        };
        let state = self.state();
        if !state.done && !state.left.contains(&peer) {
            drop(state);
            self.end(&reason);
        }
    }

    /// Sends heartbeats, and checks whether a wait of this process has exceeded its limit.
    fn beat(&self) {
        let pause = (self.timeout / SLICES).min(Duration::from_secs(1));
        let mut last = Instant::now();
        while !self.state().done {
            // If more time than two pauses and a second has passed, the whole process was stopped.
            let stopped = last.elapsed().saturating_sub(2 * pause + Duration::from_secs(1));
            watch::forgive(stopped);
            last = Instant::now();
            for writer in self.writers.values() {
                // If another thread is writing to a connection, this thread need not send a
                // heartbeat there. The reading thread notices errors.
                if let Ok(mut writer) = writer.try_lock() {
                    let _ = writer.write(FrameKind::Beat, &[]);
                }
            }
            if let Some(wait) = watch::overdue() {
                return self.end(&format!("rank {}: {wait}", self.rank));
            }
            thread::sleep(pause);
        }
    }

    /// Ends this process because another rank fails, or because a wait of this process exceeded its
    /// limit. First tells the other ranks the reason. Does nothing if this process already ends.
    fn end(&self, reason: &str) {
        let mut ending = lock(&self.ending);
        if !std::mem::replace(&mut *ending, true) {
            self.tell(reason);
            // The lock is held until the process ends, so no other thread reports another reason.
            end::now(&format!("[rank {}] error: {reason}", self.rank));
        }
    }

    /// Tells the reason for the end to all ranks that this rank can reach.
    fn tell(&self, reason: &str) {
        let deadline = Instant::now() + VERDICT;
        for writer in self.writers.values() {
            while Instant::now() < deadline {
                if let Ok(mut writer) = writer.try_lock() {
                    let _ = writer.stream.set_write_timeout(Some(VERDICT));
                    let _ = writer.write(FrameKind::Fail, reason.as_bytes());
                    let _ = writer.stream.shutdown(Shutdown::Write);
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        thread::sleep(LINGER);
    }

    /// Tells the other ranks why this rank ends. If an evaluation failed, another rank is probably
    /// the cause. This rank then waits first, because the other rank's reason may arrive and end
    /// this process.
    pub(super) fn fail(&self, reason: &str) {
        if watch::is_broken() {
            thread::sleep(VERDICT);
        }
        let mut ending = lock(&self.ending);
        if !self.state().done && !std::mem::replace(&mut *ending, true) {
            self.tell(&format!("rank {}: {reason}", self.rank));
        }
    }

    /// Sends a message to a rank.
    pub(super) fn send(&self, op: &str, peer: usize, payload: &[u8]) -> Result<()> {
        let writer = self.writers.get(&peer);
        let writer =
            writer.ok_or_else(|| Error::distributed(op, format_args!("no rank {peer}")))?;
        let sent = lock(writer).write(FrameKind::Data, payload);
        sent.map_err(|error| match silent(&error) {
            true => Error::distributed(op, self.silence(peer)),
            false => Error::distributed(op, format_args!("rank {peer}: {error}")),
        })
    }

    /// Waits for a message from a rank. If `patient`, the wait has no limit, but the end of the
    /// other rank still ends this process.
    pub(super) fn receive(&self, op: &str, peer: usize, patient: bool) -> Result<Vec<u8>> {
        let limit = if patient { YEAR } else { self.stall };
        let found = self.wait(limit, |state| {
            let payload = state.inbox.get_mut(&peer)?.pop_front()?;
            state.bytes -= payload.len();
            Some(payload)
        });
        found.ok_or_else(|| {
            let seconds = self.stall.as_secs_f64();
            let reason = format!("rank {peer} has not taken part in `{op}` for {seconds} s");
            Error::distributed(op, reason)
        })
    }

    fn wait<R>(
        &self,
        limit: Duration,
        mut ready: impl FnMut(&mut State) -> Option<R>,
    ) -> Option<R> {
        let deadline = Instant::now() + limit;
        let mut state = self.state();
        loop {
            if let Some(found) = ready(&mut state) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until every rank has left.
    pub(super) fn leave(&self) -> Result<()> {
        let farewell = |peers: &BTreeMap<usize, Mutex<Writer>>| {
            for writer in peers.values() {
                let _ = lock(writer).write(FrameKind::Leave, &[]);
            }
        };
        if self.rank != 0 {
            farewell(&self.writers);
        }
        let all = |state: &mut State| {
            let left = self.writers.keys().all(|peer| state.left.contains(peer));
            state.done |= left;
            left.then_some(())
        };
        let done = self.wait(self.stall, all);
        if self.rank == 0 && done.is_some() {
            farewell(&self.writers);
        }
        done.ok_or_else(|| {
            let state = self.state();
            let peers = self.writers.keys().filter(|peer| !state.left.contains(peer));
            let late = super::greeting::ranks(&peers.copied().collect::<Vec<_>>());
            let seconds = self.stall.as_secs_f64();
            Error::distributed("leave", format_args!("{late} did not leave within {seconds} s"))
        })
    }
}

/// Reads from a rank. Fails if no data arrives within the timeout. Time in which this process was
/// stopped does not count, because the other rank may have been stopped too.
struct Listener {
    stream: TcpStream,
    slice: Duration,
    quiet: u32,
}

impl Read for Listener {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let start = Instant::now();
            let result = self.stream.read(buffer);
            match &result {
                Err(error) if silent(error) => {}
                // When a stopped process continues, Linux interrupts reads with a time limit.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                _ => {
                    self.quiet = 0;
                    return result;
                }
            }
            self.quiet = if start.elapsed() > 2 * self.slice { 0 } else { self.quiet + 1 };
            if self.quiet >= SLICES {
                return result;
            }
        }
    }
}

/// Whether a read or a write ended because no bytes moved before the time limit.
fn silent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
