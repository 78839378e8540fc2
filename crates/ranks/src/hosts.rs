//! Reads the ranks from MLX's environment variables.

use std::env;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::Backend;
use mlx_primitives::support::files;
use mlx_primitives::{Error, Result};

/// Variables of MLX's NCCL backend: the address at which rank 0 waits for the other ranks, and the
/// number of ranks.
const NCCL_HOST: &str = "NCCL_HOST_IP";
pub(super) const NCCL_PORT: &str = "NCCL_PORT";
const SIZE: &str = "MLX_WORLD_SIZE";

impl Backend {
    /// Returns the backend that `Any` stands for. The environment determines it.
    pub(super) fn of_environment() -> Self {
        let is_set = |name: &str| env::var_os(name).is_some();
        match () {
            () if is_set("MLX_HOSTFILE") => Self::Ring,
            () if is_set(NCCL_HOST) => Self::Nccl,
            () if is_set("MLX_IBV_DEVICES") && is_set("MLX_JACCL_COORDINATOR") => Self::Jaccl,
            () => Self::Ring,
        }
    }
}

/// The rank of this process, the number of ranks, and the ways to reach them.
pub(super) struct Place {
    pub rank: usize,
    pub size: usize,
    /// The backend that connects the ranks; never `Any`.
    pub backend: Backend,
    /// The address, as `host:port`, at which rank 0 waits for the other ranks.
    pub first: String,
    /// The addresses of each rank in a ring; with another backend, the address of rank 0.
    pub hosts: Vec<Vec<String>>,
}

impl Place {
    /// The addresses of this rank in a ring. With another backend, only rank 0 has an address.
    pub(super) fn own(&self) -> &[String] {
        self.hosts.get(self.rank).map_or(&[], Vec::as_slice)
    }
}

/// Returns the host of `host:port`, as MLX reads it.
pub(super) fn host_of(address: &str) -> &str {
    address.split(':').next().unwrap_or_default()
}

/// Reads the same variables as MLX. Returns `None` if they describe a single rank.
pub(super) fn place(backend: Backend) -> Result<Option<Place>> {
    let Some(rank) = variable("MLX_RANK")? else { return Ok(None) };
    let backend = match backend {
        Backend::Any => Backend::of_environment(),
        named => named,
    };
    if backend == Backend::Nccl {
        return of_nccl(&rank);
    }
    let ring = backend == Backend::Ring;
    let name = if ring { "MLX_HOSTFILE" } else { "MLX_IBV_DEVICES" };
    let path = variable(name)?.filter(|path| !path.is_empty());
    let path = PathBuf::from(path.ok_or_else(|| {
        Error::argument(
            name,
            "the path of a file with an entry for each rank, since MLX_RANK is set",
        )
    })?);
    let text = files::read_to_string(&path)?;
    if text.trim().is_empty() {
        return Ok(None); // mlx.launch makes an empty file for one rank
    }
    let entries: Vec<serde_json::Value> = serde_json::from_str(&text)
        .map_err(|error| Error::file(&path, format_args!("not a JSON list: {error}")))?;
    let size = entries.len();
    if size == 0 {
        return Err(Error::file(&path, "the list has no ranks"));
    }
    let number = number(&rank, size, &path.display())?;
    let hosts = if ring {
        addresses(&path, &entries)?
    } else {
        let first = variable("MLX_JACCL_COORDINATOR")?.unwrap_or_default();
        check_address(&first).map_err(|reason| refused("MLX_JACCL_COORDINATOR", &reason))?;
        vec![vec![first]]
    };
    if size == 1 {
        return Ok(None);
    }
    let first = hosts[0][0].clone();
    Ok(Some(Place { rank: number, size, backend, first, hosts }))
}

/// Reads the ranks from the variables of MLX's NCCL backend.
fn of_nccl(rank: &str) -> Result<Option<Place>> {
    let set = |name: &str, value: &str| {
        variable(name)?.filter(|text| !text.is_empty()).ok_or_else(|| {
            Error::argument(name, format_args!("{value}, since NCCL is to connect the ranks"))
        })
    };
    let text = set(SIZE, "the number of ranks")?;
    let size =
        text.parse::<usize>().ok().filter(|size| *size > 0).ok_or_else(|| {
            Error::argument(SIZE, format_args!("the number of ranks, got {text:?}"))
        })?;
    let rank = number(rank, size, &SIZE)?;
    let host = set(NCCL_HOST, "the address of rank 0")?;
    let first = format!("{host}:{}", set(NCCL_PORT, "a port of rank 0")?);
    check_address(&first)
        .map_err(|reason| refused(&format!("{NCCL_HOST}, {NCCL_PORT}"), &reason))?;
    let hosts = vec![vec![first.clone()]];
    Ok((size > 1).then_some(Place { rank, size, backend: Backend::Nccl, first, hosts }))
}

/// Parses the rank of this process, which must be below `size`. `source` names the list of ranks in
/// the error.
fn number(rank: &str, size: usize, source: &dyn Display) -> Result<usize> {
    rank.parse().ok().filter(|rank| *rank < size).ok_or_else(|| {
        let last = size - 1;
        Error::argument(
            "MLX_RANK",
            format_args!("a rank from 0 to {last}, the ranks of {source}, got {rank:?}"),
        )
    })
}

fn variable(name: &str) -> Result<Option<String>> {
    match env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(Error::argument(name, "UTF-8 text")),
    }
}

/// Checks the addresses of the ranks: each rank has at least one, and all have the same number.
fn addresses(path: &Path, entries: &[serde_json::Value]) -> Result<Vec<Vec<String>>> {
    let of_rank = |(rank, entry): (usize, &serde_json::Value)| {
        let refuse = |reason: &str| Error::file(path, format_args!("rank {rank}: {reason}"));
        let list = entry.as_array().ok_or_else(|| refuse("expected a list of addresses"))?;
        let texts = list.iter().map(|address| {
            let text = address.as_str().ok_or_else(|| refuse("expected an address as text"))?;
            check_address(text).map_err(|reason| refuse(&reason))?;
            Ok(text.to_owned())
        });
        let texts = texts.collect::<Result<Vec<_>>>()?;
        if texts.is_empty() { Err(refuse("expected at least one address")) } else { Ok(texts) }
    };
    let hosts = entries.iter().enumerate().map(of_rank).collect::<Result<Vec<_>>>()?;
    if let Some(rank) = hosts.iter().position(|host| host.len() != hosts[0].len()) {
        let (first, other) = (hosts[0].len(), hosts[rank].len());
        let reason = format!("rank 0 has {first} addresses, but rank {rank} has {other}");
        return Err(Error::file(path, reason));
    }
    Ok(hosts)
}

/// Makes the error for a variable whose address [`check_address`] refuses.
fn refused(names: &str, reason: &str) -> Error {
    Error::argument(names, reason.trim_start_matches("expected "))
}

/// Checks that an address is `host:port`. MLX reads the text before the first colon as the host.
pub(super) fn check_address(text: &str) -> std::result::Result<(), String> {
    let parts = text
        .split_once(':')
        .filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0));
    match parts {
        Some(_) => Ok(()),
        None => Err(format!("expected an address such as 10.0.0.1:5000, got {text:?}")),
    }
}
