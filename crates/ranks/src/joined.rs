//! A group of more than one rank, and its start.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::control::{Control, YEAR};
use super::hosts::{self, Place};
use super::keys::{self, Secret};
use super::mesh::Mesh;
use super::messages::Messages;
use super::ring::Ports;
use super::{Backend, Options, cards, greeting, is_available, meet, watch};
use mlx_primitives::collectives::{Peers, Ranks};
use mlx_primitives::device::{self, Device};
use mlx_primitives::{Array, Dtype};
use mlx_primitives::{Error, Result};

/// The shortest allowed timeout. A rank sends at least four heartbeats in each timeout.
const SHORTEST: Duration = Duration::from_millis(100);
/// A variable for tests. If it is set, ranks open no direct connections and share no GPU memory, so
/// every gather uses MLX's ring or NCCL. With the value `gathers`, a rank also uses gathers instead
/// of a send to one rank, as with NCCL.
const TEST_RING: &str = "MLX_PRIMITIVES_TEST_RING";
/// The oldest version of MLX whose ring notices a lost rank.
const OLDEST_MLX: [u64; 3] = [0, 32, 1];
/// The types that MLX can exchange through NCCL.
const OF_NCCL: [Dtype; 9] = [
    Dtype::Uint8,
    Dtype::Uint32,
    Dtype::Uint64,
    Dtype::Int8,
    Dtype::Int32,
    Dtype::Int64,
    Dtype::Float16,
    Dtype::Float32,
    Dtype::Bfloat16,
];
/// How long MLX may take to connect the ranks. MLX tries for half a minute to reach a rank.
const CONNECT: Duration = Duration::from_secs(60);
/// The minimum time limit for the ranks' first exchanges, even if the timeout is shorter.
const FIRST: Duration = Duration::from_secs(30);

/// The state of this process in a group of more than one rank.
pub(super) struct Joined {
    pub rank: usize,
    pub size: usize,
    pub backend: Backend,
    /// Whether a rank can send to a single other rank.
    pub sends: bool,
    pub ranks: Ranks,
    pub messages: Messages,
    /// The direct connections, for [`Group::gather_last`](super::Group::gather_last) and for the
    /// sends of a pipeline.
    pub mesh: Option<Mesh>,
    /// The GPU memory that ranks on one machine share for
    /// [`Group::all_gather`](super::Group::all_gather).
    peers: Option<Peers>,
    pub left: Mutex<bool>,
}

fn refused(reason: impl std::fmt::Display) -> Error {
    Error::distributed("join", reason)
}

/// The first three numbers of a version.
fn numbers(version: &str) -> [u64; 3] {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

impl Joined {
    /// Exchanges greetings with the other ranks and lets MLX connect them.
    pub(super) fn start(place: &Place, options: Options) -> Result<Self> {
        if options.timeout < SHORTEST {
            let got = options.timeout;
            return Err(Error::argument("join", format_args!("a timeout of 100 ms, got {got:?}")));
        }
        let version = greeting::mlx_version();
        if numbers(&version) < OLDEST_MLX {
            return Err(refused(format_args!(
                "more than one rank needs MLX 0.32.1 or later, in which a rank notices that \
                 another one is lost (ml-explore/mlx#4060), but this is MLX {version}"
            )));
        }
        cards::choose(place)?;
        if place.backend == Backend::Nccl && !is_available(Backend::Nccl) {
            return Err(refused(format_args!(
                "NCCL needs MLX for CUDA, as `pip install \"mlx[cuda13]\"` installs it, but this is \
                 MLX {version} without NCCL"
            )));
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
        let (rank, size, backend) = (place.rank, place.size, place.backend);
        let at = |error: String| {
            refused(format_args!("rank {rank} at {}: {error}", place.own().join(", ")))
        };
        let messages = Messages::new(rank, size, control);
        // Each rank tells the others a nonce, the address of its listener, its GPU, and the
        // addresses at which MLX listens on this rank.
        let card = cards::own(place)?;
        let host = place.own().first().map_or("", |address| hosts::host_of(address));
        let test = std::env::var_os(TEST_RING);
        let direct = backend == Backend::Ring && test.is_none();
        let sends = backend != Backend::Nccl && test.is_none_or(|how| how != "gathers");
        let listener = direct.then(|| meet::listen(host)).transpose()?;
        let ports = match backend {
            Backend::Jaccl => &[],
            _ => place.own(),
        };
        let ports = Ports::reserve(ports).map_err(|error| at(error.to_string()))?;
        let nonce = blake3::Hash::from_bytes(keys::random()?).to_hex();
        let door = listener.as_ref().map_or("", |(_, address)| address);
        let mut own = vec![nonce.as_str(), door, &card];
        own.extend(ports.addresses.iter().map(String::as_str));
        let told = messages.gather("connect", &own)?;
        let ring = backend == Backend::Ring;
        if told.iter().any(|list| list.len() < 3 || ring && list.len() != own.len()) {
            return Err(refused("the ranks differ in the number of their addresses"));
        }
        cards::check(told.iter().filter_map(|list| list.get(2).map(String::as_str)))?;

        let connected = watch::waiting("the connection of the ranks", CONNECT, || {
            let of_ring = |list: &Vec<String>| list[3..].to_vec();
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
        let (mesh, peers) = (None, None);
        let mut joined = Self { rank, size, backend, sends, ranks, messages, mesh, peers, left };
        joined.check_order()?;
        joined.peers = joined.meet_peers()?;
        if let Some((listener, _)) = listener {
            joined.mesh = Some(Mesh::new(meet::all(rank, listener, secret, &told, limit)?));
        }
        Ok(joined)
    }

    /// Returns an error if NCCL cannot exchange `x`, because of its type or because the device is
    /// the CPU.
    pub(super) fn check(&self, op: &str, x: &Array) -> Result<()> {
        if self.backend != Backend::Nccl {
            return Ok(());
        }
        if device::current()? == Device::Cpu {
            return Err(Error::argument(op, "a GPU, which NCCL connects, got the CPU"));
        }
        let dtype = x.dtype();
        if OF_NCCL.contains(&dtype) {
            return Ok(());
        }
        Err(Error::argument(op, format_args!("a type that NCCL exchanges, got {dtype}")))
    }

    /// Returns the memory through which the GPUs of one machine exchange small arrays faster than
    /// through NCCL. `None` for other backends, or if a rank cannot reach the memory of another
    /// rank.
    fn meet_peers(&self) -> Result<Option<Peers>> {
        if self.backend != Backend::Nccl {
            return Ok(None);
        }
        let peers = match std::env::var_os(TEST_RING) {
            None => Peers::share(&self.ranks).ok(),
            Some(_) => None,
        };
        let handle = peers.as_ref().and_then(|peers| peers.handle().ok()).unwrap_or_default();
        let handle: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
        let handles = self.messages.gather("meet", &[&handle])?.concat();
        let byte = |digits: &[u8]| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok();
        let bytes = handles.concat().as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>();
        let all = handles.len() == self.size && handles.iter().all(|handle| !handle.is_empty());
        let reached =
            all && peers.as_ref().zip(bytes).is_some_and(|(peers, b)| peers.reach(&b).is_ok());
        let said = self.messages.gather("meet", &[if reached { "reached" } else { "" }])?;
        let all = said.concat().iter().all(|text| text == "reached");
        Ok(peers.filter(|_| all))
    }

    /// Joins the arrays of all ranks along the first axis.
    pub(super) fn all_gather(&self, x: &Array) -> Result<Array> {
        self.check("all_gather", x)?;
        match &self.peers {
            Some(peers) => peers.all_gather(&self.ranks, x),
            None => self.ranks.all_gather(x),
        }
    }

    /// Returns the direct connections between all ranks.
    pub(super) fn mesh(&self) -> Result<&Mesh> {
        let mesh = self.mesh.as_ref();
        mesh.ok_or_else(|| Error::distributed("exchange", "the ranks are not connected"))
    }

    /// Returns an error if MLX connected the ranks in another order, which happens if their host
    /// files differ.
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
