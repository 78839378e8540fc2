//! One program on several processes or machines, by MLX's distributed engine.
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
//! The messages between ranks have no names: if ranks call different operations, or with different
//! shapes or types, they compute wrong numbers or wait for each other. All ranks have to build the
//! same collectives in the same order, with a data dependence from each to the next, and evaluate
//! them. [`Group::agree`] compares whatever decides about that: options, files, shapes.
//!
//! # Trust
//!
//! Ranks prove to each other that they know the secret in `MLX_PRIMITIVES_RANK_SECRET`, or in the
//! file that `MLX_PRIMITIVES_RANK_SECRET_FILE` names, of 16 bytes or more. Without one, all
//! addresses have to be loopback ones. Messages are authenticated and not encrypted, and the
//! connections of MLX's ring are neither: the book's page on several machines says what that means.
//!
//! # Failures
//!
//! [`Group::join`] opens a control connection from each rank to rank 0 before MLX connects the
//! ranks. Through it, ranks of different versions refuse each other, and a rank that ends, stops or
//! fails ends all ranks with a message that names it. MLX itself has no time limits.
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
    /// The one that the environment describes: the ring if `MLX_HOSTFILE` is set, NCCL if
    /// `NCCL_HOST_IP` is, else JACCL.
    #[default]
    Any,
    /// TCP connections from each rank to the next, on every system.
    Ring,
    /// Remote memory access over Thunderbolt, on macOS 26.2 and later. It needs
    /// `MLX_JACCL_COORDINATOR` and `MLX_IBV_DEVICES`. This crate passes it on to MLX; it was not
    /// tested with it.
    Jaccl,
    /// NVIDIA's library, between GPUs of one machine: each rank computes on another one.
    /// `NCCL_HOST_IP` and `NCCL_PORT` say where rank 0 awaits the others, and `MLX_WORLD_SIZE` how
    /// many ranks there are. It needs MLX for CUDA and Linux. MLX has no [`Group::send`] for it.
    ///
    /// GPUs that reach each other's memory exchange small arrays through it. Elsewhere MLX captures
    /// each exchange into a CUDA graph, which takes a processor longer than to start it: a program
    /// of many small exchanges is faster with `MLX_USE_CUDA_GRAPHS=0`.
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
    /// Whether it is an error that the environment describes only one rank.
    pub strict: bool,
    /// How long ranks wait for each other at the start, and the silence after which a rank counts
    /// as lost: at least 100 ms, and longer than any pause that the system makes. Ranks that are
    /// stopped and continued together do not miss each other.
    pub timeout: Duration,
    /// How long an evaluation, or another wait for the other ranks, may take although all of them
    /// give signs of life. `None` stands for ten times [`Options::timeout`]. Evaluations that read
    /// large files count too.
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
