//! The connections to a port that have not yet proved that they come from a rank. Anyone who
//! reaches the port can open many connections, so their number and their duration are limited.

use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// The maximum number of open connections, and the maximum duration of each.
const SEATS: usize = 128;
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The maximum number of bytes that one connection may send.
pub(super) const LONGEST: usize = 2048;
/// How long [`Lobby::round`] sleeps if there was no new connection and no rank.
const PAUSE: Duration = Duration::from_millis(2);

/// The judgment about the sender of a connection's bytes.
pub(super) enum Heard<T> {
    /// The bytes are not complete yet.
    Part,
    /// The sender is not a rank, so the connection is closed.
    Stranger,
    Rank(T),
}

/// Connections that are not yet known to come from ranks. Each has a state `S`.
pub(super) struct Lobby<S> {
    listener: TcpListener,
    guests: Vec<Guest<S>>,
}

struct Guest<S> {
    stream: TcpStream,
    address: IpAddr,
    since: Instant,
    bytes: Vec<u8>,
    state: S,
}

impl<S> Lobby<S> {
    /// Makes an empty lobby. The listener must be nonblocking.
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, guests: Vec::new() }
    }

    /// Accepts the waiting connections for which `greet` succeeds, and reads from all open
    /// connections. Returns the connections that `judge` recognizes as ranks. Sleeps briefly if
    /// there was no new connection and no rank.
    pub(super) fn round<T>(
        &mut self,
        greet: impl Fn(&TcpStream) -> Option<S>,
        judge: impl Fn(&S, &[u8]) -> Heard<T>,
    ) -> Vec<(TcpStream, T)> {
        let mut came = false;
        // The bound ends this loop even if new connections keep arriving.
        for _ in 0..SEATS {
            let Ok((stream, address)) = self.listener.accept() else { break };
            came = true;
            let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            let Some(state) = ready.ok().and_then(|()| greet(&stream)) else { continue };
            if self.guests.len() >= SEATS {
                self.dismiss();
            }
            let (address, since) = (address.ip(), Instant::now());
            self.guests.push(Guest { stream, address, since, bytes: Vec::new(), state });
        }
        let mut ranks = Vec::new();
        for mut guest in std::mem::take(&mut self.guests) {
            match guest.hear(&judge) {
                Heard::Part => self.guests.push(guest),
                Heard::Stranger => {}
                Heard::Rank(rank) => ranks.push((guest.stream, rank)),
            }
        }
        if !came && ranks.is_empty() {
            thread::sleep(PAUSE);
        }
        ranks
    }

    /// Closes the oldest connection of the address that has the most connections. If a machine
    /// opens too many connections, only its own connections are therefore closed.
    fn dismiss(&mut self) {
        let mut counts = HashMap::new();
        for guest in &self.guests {
            *counts.entry(guest.address).or_insert(0) += 1;
        }
        let busiest = counts.into_iter().max_by_key(|(_, count)| *count);
        let of_busiest = |guest: &Guest<S>| busiest.is_some_and(|(busy, _)| guest.address == busy);
        if let Some(oldest) = self.guests.iter().position(of_busiest) {
            self.guests.remove(oldest);
        }
    }
}

impl<S> Guest<S> {
    fn hear<T>(&mut self, judge: impl Fn(&S, &[u8]) -> Heard<T>) -> Heard<T> {
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
        match judge(&self.state, &self.bytes) {
            Heard::Part if self.since.elapsed() > PATIENCE => Heard::Stranger,
            heard => heard,
        }
    }
}
