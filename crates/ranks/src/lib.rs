//! Runs one program as several processes, on one or more machines, with MLX's distributed engine.
//!
//! Each process is a *rank* of a group and runs the same program. MLX's environment variables
//! describe the group: `MLX_RANK` is the number of this process, from 0, and `MLX_HOSTFILE` names a
//! JSON file with the addresses of all ranks, `[["10.0.0.1:5000"], ["10.0.0.2:5000"]]`.
//! `mlx.launch` sets them. A process without them is the only rank of its group, and the operations
//! return their arguments:
//!
//! ```
//! use mlx_primitives_ranks::{Group, Options};
//! use mlx_primitives::Array;
//!
//! let group = Group::join(Options::default())?;
//! let x = Array::from_slice(&[1.0f32, 2.0], 2)?;
//! let sum = group.all_sum(&x)?; // of the arrays of all ranks
//! assert_eq!(sum.size(), x.size());
//! group.leave()?;
//! # Ok::<(), mlx_primitives::Error>(())
//! ```
//!
//! # One order on all ranks
//!
//! The data of a collective does not name its operation. If ranks call different collectives, or
//! use different shapes or types, they compute wrong numbers or wait for each other. All ranks must
//! build the same collectives in the same order, and evaluate them. Each collective must depend on
//! the result of the previous collective. [`Group::agree`] compares the settings on which the
//! collectives depend, such as options, files and shapes.
//!
//! # Trust
//!
//! Ranks prove to each other that they know a secret of 16 bytes or more. It is in
//! `MLX_PRIMITIVES_RANK_SECRET`, or in the file that `MLX_PRIMITIVES_RANK_SECRET_FILE` names.
//! Without a secret, all addresses must be loopback addresses. On the connections that this crate
//! opens, messages are authenticated but not encrypted. The connections that MLX opens are neither
//! authenticated nor encrypted. The book's page on several machines explains the consequences.
//!
//! # Failures
//!
//! [`Group::join`] opens a control connection from each rank to rank 0 before MLX connects the
//! ranks. Through this connection, ranks of different versions refuse each other. If a rank ends,
//! stops or fails, all ranks end with a message that names the failed rank. MLX itself has no time
//! limits.
#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![deny(unsafe_op_in_unsafe_fn)]

mod cards;
mod control;
mod cuts;
mod end;
mod frame;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod gather;
mod greeting;
mod group;
mod hosts;
mod joined;
mod keys;
mod lobby;
mod meet;
mod mesh;
mod messages;
mod part;
mod pass;
mod ring;
mod saved_parts;
mod scheme;
mod split;
mod traffic;
mod watch;

use std::time::Duration;

use mlx_primitives::collectives;

pub use group::Group;
pub use scheme::Scheme;
pub use split::Split;

/// MLX's ways to connect ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// The backend that the environment describes: the ring if `MLX_HOSTFILE` is set, NCCL if
    /// `NCCL_HOST_IP` is set, JACCL if both of its variables are set, otherwise the ring.
    #[default]
    Any,
    /// TCP connections from each rank to the next, on every system.
    Ring,
    /// Remote memory access over Thunderbolt, on macOS 26.2 and later. It needs the variables
    /// `MLX_JACCL_COORDINATOR` and `MLX_IBV_DEVICES`. This crate passes the choice on to MLX, and
    /// was not tested with JACCL.
    Jaccl,
    /// NVIDIA's library, between GPUs of one machine. Each rank computes on a different GPU. Rank 0
    /// awaits the others at the address in `NCCL_HOST_IP` and `NCCL_PORT`, and `MLX_WORLD_SIZE` is
    /// the number of ranks. NCCL needs Linux and MLX for CUDA. [`Group::send`] does not work with
    /// NCCL, because MLX does not support it there.
    ///
    /// GPUs that can access each other's memory exchange small arrays through this memory. For
    /// other exchanges, MLX captures each exchange into a CUDA graph. The capture takes longer on
    /// the CPU than the start of an exchange, so a program of many small exchanges is faster with
    /// `MLX_USE_CUDA_GRAPHS=0`.
    Nccl,
}

impl Backend {
    /// MLX's name.
    fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Ring => "ring",
            Self::Jaccl => "jaccl",
            Self::Nccl => "nccl",
        }
    }
}

/// How [`Group::join`] joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The connections between the ranks.
    pub backend: Backend,
    /// Whether to return an error if the environment describes only one rank.
    pub strict: bool,
    /// How long ranks wait for each other at the start. After the start, a rank that is silent for
    /// this time counts as lost. The time must be at least 100 ms, and longer than any time for
    /// which the system may pause a rank. Ranks that are stopped and continued together do not
    /// count each other as lost.
    pub timeout: Duration,
    /// The limit for an evaluation, or for another wait for the other ranks, while all ranks send
    /// heartbeats. `None` means ten times [`Options::timeout`]. The limit also holds for
    /// evaluations that read large files.
    pub stall: Option<Duration>,
}

impl Default for Options {
    /// Any backend, not strict, and a timeout of 60 seconds.
    fn default() -> Self {
        let timeout = Duration::from_secs(60);
        Self { backend: Backend::Any, strict: false, timeout, stall: None }
    }
}

/// Whether the loaded MLX was built with a backend.
///
/// ```
/// use mlx_primitives_ranks::{is_available, Backend};
///
/// assert!(is_available(Backend::Ring) || !is_available(Backend::Jaccl));
/// ```
pub fn is_available(backend: Backend) -> bool {
    collectives::is_available(backend.name()).unwrap_or(false)
}
