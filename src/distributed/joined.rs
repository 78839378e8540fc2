//! A group of more than one rank: its start, and its messages over the control connections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cxx::UniquePtr;

use super::control::{Control, YEAR};
use super::hosts::Place;
use super::mesh::{self, Mesh};
use super::{Options, frame, greeting, watch};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::ffi::distributed::bridge as ffi;

/// The shortest timeout: signs of life come four times as often.
const SHORTEST: Duration = Duration::from_millis(100);
/// Lets gathers take the ring, as on a GPU, for tests.
const TEST_RING: &str = "MLX_PRIMITIVES_TEST_RING";
/// MLX tries for half a minute to connect to a rank.
const CONNECT: Duration = Duration::from_secs(60);

/// This process's place in a group of more than one rank.
pub(super) struct Joined {
    pub rank: usize,
    pub size: usize,
    /// Whether ranks reach only their neighbors.
    pub ring: bool,
    pub ranks: Ranks,
    pub control: Arc<Control>,
    /// The number of messages so far. The lock is held while one is on its way.
    calls: Mutex<u64>,
    /// The connections for [`Group::gather_last`](super::Group::gather_last).
    pub mesh: Option<Mesh>,
    pub left: Mutex<bool>,
}

/// MLX's group.
pub(super) struct Ranks(pub UniquePtr<ffi::Ranks>);

// SAFETY: MLX's group is a shared pointer that is never changed. Building a collective copies it,
// and its count is atomic. Only MLX's streams touch the connections.
unsafe impl Send for Ranks {}
// SAFETY: as above.
unsafe impl Sync for Ranks {}

fn refused(reason: impl std::fmt::Display) -> Error {
    Error::distributed("join", reason)
}

impl Joined {
    /// Greets the other ranks and lets MLX connect them.
    pub(super) fn start(place: &Place, options: Options) -> Result<Self> {
        if options.timeout < SHORTEST {
            let got = options.timeout;
            return Err(Error::argument("join", format_args!("a timeout of 100 ms, got {got:?}")));
        }
        let timeout = options.timeout.min(YEAR);
        let stall = options.stall.unwrap_or(timeout * 10).min(YEAR);
        let links = match place.rank {
            0 => greeting::host(place, timeout)?,
            _ => greeting::call(place, timeout)?,
        };
        let control = Control::start(place.rank, links, timeout, stall).map_err(refused)?;
        Self::connect(place, control.clone(), stall)
            .inspect_err(|error| control.fail(&error.to_string()))
    }

    fn connect(place: &Place, control: Arc<Control>, stall: Duration) -> Result<Self> {
        let at = |error| refused(format_args!("rank {} at {}: {error}", place.rank, place.own));
        let connected = watch::waiting("the connection of the ranks", CONNECT, || {
            ffi::join_ranks(place.backend)
        });
        let ranks = Ranks(connected.map_err(|error: cxx::Exception| at(error.to_string()))?);
        let found = (ffi::rank_of(&ranks.0)?, ffi::size_of(&ranks.0)?);
        if found != (place.rank as i32, place.size as i32) {
            let (rank, size) = found;
            return Err(at(format!("MLX takes this for rank {rank} of {size}")));
        }
        watch::start(stall);
        let mut joined = Self {
            rank: place.rank,
            size: place.size,
            ring: place.backend == "ring",
            ranks,
            control,
            calls: Mutex::new(0),
            mesh: None,
            left: Mutex::new(false),
        };
        joined.check_order()?;
        if joined.ring && std::env::var_os(TEST_RING).is_none() {
            joined.mesh = Some(joined.connect_mesh(mesh::host_of(&place.own), stall)?);
        }
        Ok(joined)
    }

    /// The connections between all ranks.
    pub(super) fn mesh(&self) -> Result<&Mesh> {
        let mesh = self.mesh.as_ref();
        mesh.ok_or_else(|| Error::distributed("exchange", "the ranks are not connected"))
    }

    /// Connects every rank with every other one.
    fn connect_mesh(&self, host: &str, limit: Duration) -> Result<Mesh> {
        let (listener, address) = mesh::listen(host)?;
        // A number that no other group is likely to have.
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let key = clock.as_nanos() as u64 ^ u64::from(std::process::id()) << 40;
        let all = self.gather("connect", &[&address, &key.to_string()])?;
        let part = |list: &Vec<String>, at: usize| list.get(at).cloned().unwrap_or_default();
        let addresses: Vec<_> = all.iter().map(|list| part(list, 0)).collect();
        let key = all.first().map(|list| part(list, 1)).unwrap_or_default();
        let key = key.parse().map_err(|_| refused("rank 0 sent no key"))?;
        Mesh::connect(self.rank, &listener, &addresses, key, limit)
    }

    /// Host files that differ can connect the ranks in another order.
    fn check_order(&self) -> Result<()> {
        let own = Array::from_slice(&[self.rank as u32], 1)?;
        let all = Array::from_bridge(ffi::all_gather(&self.ranks.0, own.raw()))?;
        let order = all.to_vec::<u32>()?;
        if order.iter().copied().ne(0..self.size as u32) {
            return Err(refused(format_args!(
                "the host files connect the ranks in the order {order:?}"
            )));
        }
        Ok(())
    }

    /// The lists of all ranks, by way of rank 0.
    pub(super) fn gather(&self, op: &str, texts: &[&str]) -> Result<Vec<Vec<String>>> {
        let (_calls, header) = self.header(op);
        let malformed = |rank| Error::distributed(op, format_args!("rank {rank} sent no list"));
        if self.rank != 0 {
            let text = serde_json::to_vec(texts).map_err(|_| malformed(self.rank))?;
            self.post(op, 0, &header, &text)?;
            let reply = self.take(op, 0, &header, false)?;
            let all: Vec<Vec<String>> = serde_json::from_slice(&reply).map_err(|_| malformed(0))?;
            return if all.len() == self.size { Ok(all) } else { Err(malformed(0)) };
        }
        let mut all = vec![texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()];
        for rank in 1..self.size {
            let bytes = self.take(op, rank, &header, false)?;
            all.push(serde_json::from_slice(&bytes).map_err(|_| malformed(rank))?);
        }
        let reply = serde_json::to_vec(&all).map_err(|_| malformed(0))?;
        for rank in 1..self.size {
            self.post(op, rank, &header, &reply)?;
        }
        Ok(all)
    }

    pub(super) fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let (_calls, header) = self.header("broadcast");
        if self.rank != 0 {
            return self.take("broadcast", 0, &header, true);
        }
        for rank in 1..self.size {
            self.post("broadcast", rank, &header, bytes)?;
        }
        Ok(bytes.to_owned())
    }

    /// The first bytes of a message: its operation and number, which all ranks have to count alike.
    fn header(&self, op: &str) -> (MutexGuard<'_, u64>, String) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls += 1;
        let header = format!("{op}, the control message {}\n", *calls);
        (calls, header)
    }

    fn post(&self, op: &str, rank: usize, header: &str, payload: &[u8]) -> Result<()> {
        if header.len() + payload.len() > frame::LIMIT {
            let (limit, got) = (frame::LIMIT - header.len(), payload.len());
            return Err(Error::argument(op, format_args!("at most {limit} bytes, got {got}")));
        }
        self.control.send(op, rank, &[header.as_bytes(), payload].concat())
    }

    fn take(&self, op: &str, rank: usize, header: &str, patient: bool) -> Result<Vec<u8>> {
        let mut message = self.control.receive(op, rank, patient)?;
        if !message.starts_with(header.as_bytes()) {
            let line = message.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let (theirs, own) = (frame::printable(line), header.trim_end());
            let reason = format!("rank {rank} is at {theirs}, but rank {} at {own}", self.rank);
            return Err(Error::distributed(op, reason));
        }
        Ok(message.split_off(header.len()))
    }
}
