//! Messages over the control connections. Every rank sends them in the same order.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::control::Control;
use super::frame;
use mlx_primitives::{Error, Result};

/// The maximum number of characters of another rank's message that an error shows.
const LINE: usize = 200;

pub(super) struct Messages {
    pub rank: usize,
    pub size: usize,
    pub control: Arc<Control>,
    /// The number of messages so far. A thread holds the lock while it exchanges a message.
    calls: Mutex<u64>,
}

impl Messages {
    pub(super) fn new(rank: usize, size: usize, control: Arc<Control>) -> Self {
        Self { rank, size, control, calls: Mutex::new(0) }
    }

    /// Gathers a list of texts from every rank through rank 0.
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

    /// Returns the first bytes of a message: its operation and its number, which must be equal on
    /// all ranks.
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
            let theirs = frame::printable(&String::from_utf8_lossy(line), LINE);
            let own = header.trim_end();
            let reason = format!("rank {rank} is at {theirs}, but rank {} at {own}", self.rank);
            return Err(Error::distributed(op, reason));
        }
        Ok(message.split_off(header.len()))
    }
}
