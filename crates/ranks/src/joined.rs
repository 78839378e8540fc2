//! A group of more than one rank, and its start.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::control::{Control, YEAR};
use super::hosts::{self, Place};
use super::keys::{self, Secret};
use super::mesh::Mesh;
use super::messages::Messages;
use super::ring::Ports;
use super::{Options, greeting, meet, watch};
use mlx_primitives::Array;
use mlx_primitives::collectives::Ranks;
use mlx_primitives::{Error, Result};

/// The shortest timeout: signs of life come four times as often.
const SHORTEST: Duration = Duration::from_millis(100);
/// Lets gathers take the ring, as on a GPU, for tests.
const TEST_RING: &str = "MLX_PRIMITIVES_TEST_RING";
/// MLX tries for half a minute to connect to a rank.
const CONNECT: Duration = Duration::from_secs(60);
/// How long the ranks' first exchanges may take at least, however short the timeout is.
const FIRST: Duration = Duration::from_secs(30);

/// This process's place in a group of more than one rank.
pub(super) struct Joined {
    pub rank: usize,
    pub size: usize,
    /// Whether ranks reach only their neighbors.
    pub ring: bool,
    pub ranks: Ranks,
    pub messages: Messages,
    /// The connections for [`Group::gather_last`](super::Group::gather_last).
    pub mesh: Option<Mesh>,
    pub left: Mutex<bool>,
}

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
        let secret = Secret::read(place)?;
        let timeout = options.timeout.min(YEAR);
        let stall = options.stall.unwrap_or(timeout * 10).min(YEAR);
        let links = match place.rank {
            0 => greeting::host(place, &secret, timeout)?,
            _ => greeting::call(place, &secret, timeout)?,
        };
        let control = Control::start(place.rank, links, timeout, stall).map_err(refused)?;
        Self::connect(place, &secret, control.clone(), timeout.max(FIRST))
            .inspect(|_| watch::start(stall))
            .inspect_err(|error| control.fail(&error.to_string()))
    }

    fn connect(
        place: &Place,
        secret: &Secret,
        control: Arc<Control>,
        limit: Duration,
    ) -> Result<Self> {
        let (rank, size, ring) = (place.rank, place.size, place.backend == "ring");
        let at = |error: String| {
            refused(format_args!("rank {rank} at {}: {error}", place.own().join(", ")))
        };
        let messages = Messages::new(rank, size, control);
        // Each rank tells the others a nonce, where it awaits them, and its addresses in the ring.
        let host = place.own().first().map_or("", |address| hosts::host_of(address));
        let direct = ring && std::env::var_os(TEST_RING).is_none();
        let listener = direct.then(|| meet::listen(host)).transpose()?;
        let ports = Ports::reserve(if ring { place.own() } else { &[] })
            .map_err(|error| at(error.to_string()))?;
        let nonce = blake3::Hash::from_bytes(keys::random()?).to_hex();
        let door = listener.as_ref().map_or("", |(_, address)| address);
        let mut own = vec![nonce.as_str(), door];
        own.extend(ports.addresses.iter().map(String::as_str));
        let told = messages.gather("connect", &own)?;
        if told.iter().any(|list| list.len() != own.len()) {
            return Err(refused("the ranks differ in the number of their addresses"));
        }

        let connected = watch::waiting("the connection of the ranks", CONNECT, || {
            let of_ring = |list: &Vec<String>| list[2..].to_vec();
            ports.join(place, &told.iter().map(of_ring).collect::<Vec<_>>())
        });
        let ranks = connected.map_err(|error| at(error.to_string()))?;
        let found = (ranks.rank()?, ranks.size()?);
        if found != (rank as i32, size as i32) {
            let (rank, size) = found;
            return Err(at(format!("MLX takes this for rank {rank} of {size}")));
        }
        watch::start(limit);
        let left = Mutex::new(false);
        let mut joined = Self { rank, size, ring, ranks, messages, mesh: None, left };
        joined.check_order()?;
        if let Some((listener, _)) = listener {
            joined.mesh = Some(Mesh::new(meet::all(rank, listener, secret, &told, limit)?));
        }
        Ok(joined)
    }

    /// The connections between all ranks.
    pub(super) fn mesh(&self) -> Result<&Mesh> {
        let mesh = self.mesh.as_ref();
        mesh.ok_or_else(|| Error::distributed("exchange", "the ranks are not connected"))
    }

    /// Host files that differ can connect the ranks in another order.
    fn check_order(&self) -> Result<()> {
        let own = Array::from_slice(&[self.rank as u32], 1)?;
        let all = self.ranks.all_gather(&own)?;
        let order = all.to_vec::<u32>()?;
        if order.iter().copied().ne(0..self.size as u32) {
            return Err(refused(format_args!("MLX connected the ranks in the order {order:?}")));
        }
        Ok(())
    }
}
