//! MLX's connections between ranks. MLX accepts any process that connects first as a rank. This
//! module therefore does not use the ports of the host file, which other users may know. Each rank
//! reserves other ports and tells the ranks their numbers over the control connections.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tempfile::NamedTempFile;

use super::Backend;
use super::hosts::{self, NCCL_PORT, Place};
use mlx_primitives::collectives::Ranks;
use mlx_primitives::{Error, Result};

/// The variable with the path of the host file that MLX reads.
const HOSTS: &str = "MLX_HOSTFILE";

/// The ports at which MLX will wait for the previous rank. With NCCL, rank 0 waits there for all
/// others.
pub(super) struct Ports {
    /// Bound sockets that do not listen. They keep other programs from getting the ports.
    _held: Vec<Socket>,
    pub addresses: Vec<String>,
}

impl Ports {
    /// Reserves a free port on the host of each address.
    pub(super) fn reserve(own: &[String]) -> io::Result<Self> {
        let (mut held, mut addresses) = (Vec::new(), Vec::new());
        for address in own {
            let host = hosts::host_of(address);
            let found = (host, 0).to_socket_addrs()?.find(SocketAddr::is_ipv4);
            let found = found.ok_or_else(|| io::Error::other("it has no IPv4 address"))?;
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.bind(&found.into())?;
            // MLX sets the same options, so it may bind to the port too. They are set after this
            // socket is bound. Otherwise the system could give one port to two processes.
            socket.set_reuse_address(true)?;
            #[cfg(unix)]
            socket.set_reuse_port(true)?;
            let port = socket.local_addr()?.as_socket().map_or(0, |local| local.port());
            addresses.push(format!("{host}:{port}"));
            held.push(socket);
        }
        Ok(Self { _held: held, addresses })
    }

    /// Lets MLX connect the ranks. `all` has the addresses of each rank in the ring.
    pub(super) fn join(self, place: &Place, all: &[Vec<String>]) -> Result<Ranks> {
        let init = || Ranks::join(place.backend.name());
        for address in all.iter().flatten() {
            hosts::check_address(address).map_err(|reason| Error::distributed("join", reason))?;
        }
        if place.backend != Backend::Ring {
            let first = all.first().and_then(|list| list.first());
            if let Some((_, port)) = first.and_then(|address| address.split_once(':')) {
                set(NCCL_PORT, port.as_ref());
            }
            return init();
        }
        let file = write(all).map_err(|error| Error::distributed("join", error))?;
        if place.rank + 1 == place.size {
            // MLX on this rank first connects to rank 0, which needs a moment to listen. If the
            // connection fails, MLX sleeps for a second.
            thread::sleep(Duration::from_millis(30));
        }
        let given = std::env::var_os(HOSTS);
        set(HOSTS, file.path().as_os_str());
        let ranks = init();
        if let Some(given) = given {
            set(HOSTS, &given);
        }
        ranks
    }
}

/// Writes a host file. Dropping the result removes the file.
fn write(all: &[Vec<String>]) -> io::Result<NamedTempFile> {
    let file = NamedTempFile::new()?;
    serde_json::to_writer(&file, all)?;
    Ok(file)
}

/// Sets a variable that MLX reads. The variable exists already, since this rank has read it. So
/// only the entry of this variable changes: by one store of a pointer on Linux, under the system's
/// lock on macOS.
fn set(name: &str, text: &std::ffi::OsStr) {
    // SAFETY: threads that search for other variables at the same time read the old or the new text
    // of this entry. Neither text is freed, and only MLX, on this thread, keeps a pointer to the
    // text.
    unsafe { std::env::set_var(name, text) }
}
