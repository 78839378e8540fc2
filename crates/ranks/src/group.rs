//! The handle of a group of ranks.

use std::sync::{Arc, Mutex, PoisonError};

use super::joined::Joined;
use super::{Backend, Options, frame, greeting, hosts, watch};
use mlx_primitives::Dtype;
use mlx_primitives::collectives::Reduction;
use mlx_primitives::support::require_addressable;
use mlx_primitives::{Array, IntoShape};
use mlx_primitives::{Error, Result};

/// The group that this process has joined. It is never dropped, because MLX's threads use its
/// connections until the process ends.
static JOINED: Mutex<Option<Group>> = Mutex::new(None);

/// All ranks of a program, of which this process is one. Clones are handles of the same group.
///
/// A group can be used on several threads, but the order of the calls has to be the same on all
/// ranks.
#[derive(Clone)]
pub struct Group {
    /// `None` in a group of one rank.
    pub(super) joined: Option<Arc<Joined>>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group(rank {} of {})", self.rank(), self.size())
    }
}

fn refused(reason: impl std::fmt::Display) -> Error {
    Error::distributed("join", reason)
}

impl Group {
    /// Joins the group that MLX's environment variables describe, and waits until all of its ranks
    /// have started. A process joins only once, and later calls return the same group.
    ///
    /// The group has one rank and no connections if `MLX_RANK` is not set, or if the host file is
    /// empty or has one entry. `mlx.launch -n 1` writes an empty host file.
    ///
    /// # The end of the process
    ///
    /// After this call, the library **ends the process** with status 1 and a line on stderr, such
    /// as `[rank 2] error: rank 1 ended before the others`, if another rank ends without
    /// [`Group::leave`], gives no sign of life for [`Options::timeout`], or calls [`Group::fail`].
    /// It also ends the process if an evaluation takes longer than [`Options::stall`]. An error
    /// value is not possible, because the thread that evaluates waits inside MLX and cannot be
    /// stopped.
    ///
    /// If a rank is lost while this rank evaluates, the evaluation may return an error before the
    /// line is written. Later evaluations and operations of the group then return errors too, since
    /// MLX would wait without a limit. The program should call [`Group::fail`] and end, because the
    /// other ranks may wait for it.
    ///
    /// # Errors
    ///
    /// Returns an error if the environment or the host file does not describe a group, or if
    /// [`Options::strict`] is set and there is one rank. Returns an error if a rank does not start
    /// within [`Options::timeout`], has another version of MLX or of this crate, or has the number
    /// of another rank. Returns an error if a port cannot be used, if an address is not a loopback
    /// address and there is no secret, if the secret is too short, or if its file cannot be read.
    /// The error names the variable, the file, the rank or the address.
    ///
    /// Also returns an error for MLX before 0.32.1 if there is more than one rank: a rank that lost
    /// another rank would hang (ml-explore/mlx#4060). NCCL needs MLX for CUDA and a separate GPU
    /// for each rank. With NCCL, this call sets `CUDA_VISIBLE_DEVICES` so that the process sees
    /// only its GPU. Call it before any other code uses a GPU.
    ///
    /// ```
    /// use mlx_primitives_ranks::{Backend, Group, Options};
    ///
    /// let group = Group::join(Options { backend: Backend::Ring, ..Options::default() })?;
    /// assert!(group.rank() < group.size());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn join(options: Options) -> Result<Self> {
        let mut joined = JOINED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = &*joined {
            return Ok(group.clone());
        }
        let Some(place) = hosts::place(options.backend)? else {
            if options.strict {
                return Err(refused("expected several ranks, but MLX's variables describe one"));
            }
            return Ok(Self { joined: None });
        };
        let group = Self { joined: Some(Arc::new(Joined::start(&place, options)?)) };
        *joined = Some(group.clone());
        Ok(group)
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.joined.as_ref().map_or(0, |joined| joined.rank)
    }

    /// The number of ranks, at least 1.
    pub fn size(&self) -> usize {
        self.joined.as_ref().map_or(1, |joined| joined.size)
    }

    /// Adds the ranks' arrays. Every rank gets the sum, in the type of `x`. All ranks give the same
    /// shape and type. MLX implements derivatives and `vmap`: each rank passes its cotangent on to
    /// its input.
    ///
    /// In a ring of more than two ranks, the order of additions follows the ring, and differs from
    /// element to element. All ranks get the same bits.
    ///
    /// # Errors
    ///
    /// Returns an error if the group was left or is broken, or MLX cannot build the operation. With
    /// NCCL, also returns an error on the CPU, and for a type that MLX cannot exchange through
    /// NCCL.
    ///
    /// ```
    /// # use mlx_primitives_ranks::{Group, Options};
    /// # use mlx_primitives::Array;
    /// let group = Group::join(Options::default())?;
    /// let x = Array::full(3, 2.0f32)?;
    /// assert_eq!(group.all_sum(&x)?.to_vec::<f32>()?, [2.0 * group.size() as f32; 3]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn all_sum(&self, x: &Array) -> Result<Array> {
        self.reduce("all_sum", Reduction::Sum, x)
    }

    /// Returns, on every rank, the largest of the ranks' elements at each index. [`Group::all_sum`]
    /// has an example.
    ///
    /// # Errors
    ///
    /// Returns an error for the causes that [`Group::all_sum`] lists.
    pub fn all_max(&self, x: &Array) -> Result<Array> {
        self.reduce("all_max", Reduction::Max, x)
    }

    /// Returns, on every rank, the smallest of the ranks' elements at each index.
    /// [`Group::all_sum`] has an example.
    ///
    /// # Errors
    ///
    /// Returns an error for the causes that [`Group::all_sum`] lists.
    pub fn all_min(&self, x: &Array) -> Result<Array> {
        self.reduce("all_min", Reduction::Min, x)
    }

    fn reduce(&self, op: &str, reduction: Reduction, x: &Array) -> Result<Array> {
        let Some(joined) = self.usable(op)? else { return Ok(x.clone()) };
        joined.check(op, x)?;
        joined.ranks.all_reduce(reduction, x)
    }

    /// Joins the ranks' arrays along the first axis in the order of the ranks. Every rank gets the
    /// result. All ranks give the same shape and type. With more than one rank, scalars become an
    /// array with one axis. MLX implements derivatives and `vmap`. The cotangent of a rank's input
    /// is the matching part of the output's cotangent on this rank. `vmap` is right only if the
    /// mapped axis is not the first one, because MLX 0.32 would join along the mapped axis.
    ///
    /// # Errors
    ///
    /// Returns an error for the causes that [`Group::all_sum`] lists.
    ///
    /// ```
    /// # use mlx_primitives_ranks::{Group, Options};
    /// # use mlx_primitives::Array;
    /// let group = Group::join(Options::default())?;
    /// let x = Array::ones::<f32>((2, 3))?;
    /// assert_eq!(group.all_gather(&x)?.shape(), [2 * group.size() as i32, 3]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn all_gather(&self, x: &Array) -> Result<Array> {
        let Some(joined) = self.usable("all_gather")? else { return Ok(x.clone()) };
        joined.all_gather(x)
    }

    /// Sends an array to rank `to` when the result, which equals `x`, is evaluated. The other rank
    /// receives it by [`Group::recv`].
    ///
    /// # Errors
    ///
    /// Returns an error for the causes that [`Group::all_sum`] lists, if `to` is not another rank,
    /// and in a ring if `to` is not a neighbor. Also returns an error with NCCL, since MLX cannot
    /// send to a single rank through NCCL.
    ///
    /// ```
    /// # use mlx_primitives_ranks::{Group, Options};
    /// # use mlx_primitives::{Array, Dtype};
    /// # let group = Group::join(Options::default())?;
    /// # let x = Array::ones::<f32>(4)?;
    /// if group.size() == 2 {
    ///     match group.rank() {
    ///         0 => group.send(&x, 1)?.eval()?,
    ///         _ => assert_eq!(group.recv(4, Dtype::Float32, 0)?.to_vec::<f32>()?, [1.0; 4]),
    ///     }
    /// }
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn send(&self, x: &Array, to: usize) -> Result<Array> {
        let (joined, to) = self.neighbor("send", to)?;
        joined.ranks.send(x, to)
    }

    /// Receives the array of this shape and type that rank `from` sends. [`Group::send`] has an
    /// example.
    ///
    /// # Errors
    ///
    /// Returns an error for the causes that [`Group::send`] lists, and for a shape with a negative
    /// length or with more elements than memory can address.
    pub fn recv(&self, shape: impl IntoShape, dtype: Dtype, from: usize) -> Result<Array> {
        let (joined, from) = self.neighbor("recv", from)?;
        let shape = shape.dims();
        let shape = shape.as_ref();
        require_addressable("recv", shape, dtype)?;
        joined.ranks.receive(shape, dtype, from)
    }

    /// Compares a text, such as a hash of the options or of a file, between all ranks. All ranks
    /// have to call it, in the same order.
    ///
    /// # Errors
    ///
    /// If the texts are not all equal, returns the same error on every rank. It names `what` and
    /// the ranks that differ from rank 0, and shows excerpts of the texts of up to eight of them.
    /// Also returns an error for the causes that [`Group::gather_text`] lists.
    ///
    /// ```
    /// # use mlx_primitives_ranks::{Group, Options};
    /// let group = Group::join(Options::default())?;
    /// group.agree("the temperature", "0.7")?;
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn agree(&self, what: &str, value: &str) -> Result<()> {
        let texts = self.gather("agree", &[what, value])?;
        let part = |rank: usize, part: usize| texts[rank].get(part).map_or("", String::as_str);
        for index in 0..2 {
            let ranks = (1..texts.len()).filter(|rank| part(*rank, index) != part(0, index));
            let ranks: Vec<_> = ranks.collect();
            if ranks.is_empty() {
                continue;
            }
            let own = part(0, index);
            let other = |rank: &usize| {
                let (first, other) = frame::excerpts(own, part(*rank, index));
                (first, format!("rank {rank} has {other}"))
            };
            let (mut firsts, others): (Vec<_>, Vec<_>) = ranks.iter().take(8).map(other).unzip();
            let (first, others) = (firsts.swap_remove(0), others.join(", "));
            let ranks = greeting::ranks(&ranks);
            let subject = match index {
                0 => "the subject of the comparison".to_owned(),
                _ => frame::printable(part(0, 0), 200),
            };
            return Err(Error::distributed(
                "agree",
                format_args!("{subject} differs on {ranks}: rank 0 has {first}, {others}"),
            ));
        }
        Ok(())
    }

    /// Returns the texts of all ranks, in the order of the ranks, on every rank. All ranks must
    /// call this method in the same order. The texts may have different lengths.
    ///
    /// # Errors
    ///
    /// Returns an error if the group was left or is broken, if a rank calls another operation, or
    /// if the texts together take 16 MiB or more.
    ///
    /// ```
    /// # use mlx_primitives_ranks::{Group, Options};
    /// let group = Group::join(Options::default())?;
    /// let texts = group.gather_text(&format!("rank {}", group.rank()))?;
    /// assert_eq!((&*texts[0], texts.len()), ("rank 0", group.size()));
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn gather_text(&self, text: &str) -> Result<Vec<String>> {
        let texts = self.gather("gather_text", &[text])?;
        Ok(texts.into_iter().map(|list| list.concat()).collect())
    }

    fn gather(&self, op: &str, texts: &[&str]) -> Result<Vec<Vec<String>>> {
        match self.usable(op)? {
            Some(joined) => joined.messages.gather(op, texts),
            None => Ok(vec![texts.iter().map(|text| (*text).to_owned()).collect()]),
        }
    }

    /// On every rank, returns the bytes that rank 0 gives. Ignores the bytes that other ranks give.
    /// The control connections carry the bytes. Use it for small messages, of less than 16 MiB,
    /// such as a prompt.
    ///
    /// The other ranks wait as long as rank 0 is alive, since rank 0 may be waiting for its user.
    /// Rank 0 does not wait for the other ranks. They store up to 64 MiB of messages until they
    /// call this method.
    ///
    /// # Errors
    ///
    /// Returns an error for the causes that [`Group::gather_text`] lists.
    ///
    /// ```
    /// # use mlx_primitives_ranks::{Group, Options};
    /// let group = Group::join(Options::default())?;
    /// let prompt = if group.rank() == 0 { "Once upon a time" } else { "" };
    /// assert_eq!(group.broadcast(prompt.as_bytes())?, b"Once upon a time");
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        match self.usable("broadcast")? {
            Some(joined) => joined.messages.broadcast(bytes),
            None => Ok(bytes.to_owned()),
        }
    }

    /// Leaves the group. Waits until every rank has left, so that no rank ends while another rank
    /// still reads from it. Every rank calls this method at its end, after it has evaluated all
    /// arrays that it sends. A second call does nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the group is broken, or another rank does not leave within
    /// [`Options::stall`]. The first page of this crate's documentation has an example.
    pub fn leave(&self) -> Result<()> {
        let Some(joined) = &self.joined else { return Ok(()) };
        let mut left = joined.left.lock().unwrap_or_else(PoisonError::into_inner);
        if *left {
            return Ok(());
        }
        if watch::is_broken() {
            return Err(watch::broken("leave"));
        }
        joined.messages.control.leave()?;
        watch::stop();
        *left = true;
        Ok(())
    }

    /// Tells the other ranks why this rank ends. Each of them writes the reason to stderr, as
    /// `[rank 0] error: rank 1: interrupted`, and ends with status 1. The caller then ends this
    /// process too.
    ///
    /// If an evaluation has failed on this rank, another rank is probably the cause. The call then
    /// waits for up to a second, in which the other rank's reason may arrive and end this process.
    ///
    /// It does nothing in a group of one rank or after [`Group::leave`], and may be called on any
    /// thread, for example when the user interrupts the program.
    ///
    /// ```
    /// # use mlx_primitives_ranks::{Group, Options};
    /// let group = Group::join(Options::default())?;
    /// group.fail("interrupted");
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn fail(&self, reason: &str) {
        if let Some(joined) = &self.joined {
            joined.messages.control.fail(reason);
        }
    }

    /// Returns the connections for an operation; `None` if this is the only rank.
    pub(super) fn usable(&self, op: &str) -> Result<Option<&Joined>> {
        let Some(joined) = &self.joined else { return Ok(None) };
        if watch::is_broken() {
            return Err(watch::broken(op));
        }
        if *joined.left.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(Error::distributed(op, "this rank has left the group"));
        }
        Ok(Some(joined))
    }

    fn neighbor(&self, op: &str, other: usize) -> Result<(&Joined, i32)> {
        let (rank, size) = (self.rank(), self.size());
        let joined = self.usable(op)?.filter(|_| other < size && other != rank);
        let joined = joined.ok_or_else(|| {
            let expected = format_args!("another rank of {size}, got {other} on rank {rank}");
            Error::argument(op, expected)
        })?;
        if !joined.sends {
            return Err(Error::argument(op, "a backend that sends to one rank, got NCCL in MLX"));
        }
        let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
        if joined.backend == Backend::Ring && other != next && other != last {
            return Err(Error::argument(
                op,
                format_args!(
                    "rank {last} or {next}, the neighbors of rank {rank} in the ring, got {other}"
                ),
            ));
        }
        Ok((joined, other as i32))
    }
}
