//! MLX's collective operations for the crate `mlx-primitives-ranks`, and the hooks with which that
//! crate watches evaluations.

use std::sync::OnceLock;

use cxx::UniquePtr;

use crate::array::Array;
use crate::dtype::Dtype;
use crate::error::Result;

pub use ffi::Reduction;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
mod ffi {
    #[repr(u8)]
    /// The operation that combines the arrays of all ranks.
    enum Reduction {
        /// Their sum.
        Sum,
        /// The largest elements.
        Max,
        /// The smallest elements.
        Min,
    }

    unsafe extern "C++" {
        include!("bridge/distributed.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;
        /// MLX's group of ranks.
        type Ranks;
        type Peers;

        fn ranks_available(backend: &str) -> Result<bool>;
        fn gpu_count() -> Result<i32>;
        fn gpu_uuid() -> Result<String>;
        /// Waits until the ranks are connected.
        fn join_ranks(backend: &str) -> Result<UniquePtr<Ranks>>;
        fn rank_of(ranks: &Ranks) -> Result<i32>;
        fn size_of(ranks: &Ranks) -> Result<i32>;
        fn all_reduce(
            ranks: &Ranks,
            reduction: Reduction,
            x: &MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        fn all_gather(ranks: &Ranks, x: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        fn share_memory(ranks: &Ranks) -> Result<UniquePtr<Peers>>;
        fn handle_of(peers: &Peers) -> Result<Vec<u8>>;
        fn reach_peers(peers: &Peers, handles: &[u8]) -> Result<()>;
        fn all_gather_by(peers: &Peers, ranks: &Ranks, x: &MlxArray)
        -> Result<UniquePtr<MlxArray>>;
        fn send_to(ranks: &Ranks, x: &MlxArray, to: i32) -> Result<UniquePtr<MlxArray>>;
        fn receive_from(
            ranks: &Ranks,
            shape: &[i32],
            dtype: Dtype,
            from: i32,
        ) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
        /// Calls the observer before an evaluation waits for MLX, and returns the number that the
        /// observer gives to the wait. Returns 0 without an observer. An error prevents the
        /// evaluation: the group of ranks is unusable after an earlier failure.
        fn begin_wait() -> Result<u64>;
        /// Calls the observer after a wait. If the wait `failed`, the group becomes unusable.
        fn end_wait(id: u64, failed: bool);
    }
}

/// MLX's group of ranks.
pub struct Ranks(UniquePtr<ffi::Ranks>);

// SAFETY: MLX's group is a shared pointer that nothing changes. Building a collective copies the
// pointer, and its reference count is atomic. Only MLX's streams use the connections.
unsafe impl Send for Ranks {}
// SAFETY: as above.
unsafe impl Sync for Ranks {}

impl Ranks {
    /// Connects this process to the ranks that the environment variables describe, by MLX's
    /// communication backend of that name. Waits until all ranks are connected.
    pub fn join(backend: &str) -> Result<Self> {
        Ok(Self(ffi::join_ranks(backend)?))
    }

    pub fn rank(&self) -> Result<i32> {
        Ok(ffi::rank_of(&self.0)?)
    }

    pub fn size(&self) -> Result<i32> {
        Ok(ffi::size_of(&self.0)?)
    }

    pub fn all_reduce(&self, reduction: Reduction, x: &Array) -> Result<Array> {
        Array::from_bridge(ffi::all_reduce(&self.0, reduction, x.raw()))
    }

    pub fn all_gather(&self, x: &Array) -> Result<Array> {
        Array::from_bridge(ffi::all_gather(&self.0, x.raw()))
    }

    pub fn send(&self, x: &Array, to: i32) -> Result<Array> {
        Array::from_bridge(ffi::send_to(&self.0, x.raw(), to))
    }

    pub fn receive(&self, shape: &[i32], dtype: Dtype, from: i32) -> Result<Array> {
        Array::from_bridge(ffi::receive_from(&self.0, shape, dtype.into(), from))
    }
}

/// Whether the loaded MLX has the backend of that name.
pub fn is_available(backend: &str) -> Result<bool> {
    Ok(ffi::ranks_available(backend)?)
}

/// GPU memory that the ranks of one machine share, through which they exchange small arrays.
pub struct Peers(UniquePtr<ffi::Peers>);

// SAFETY: the value is a shared pointer. Only one thread connects the ranks. All ranks evaluate
// their exchanges in the same order, so only one thread at a time changes the memory.
unsafe impl Send for Peers {}
// SAFETY: as above.
unsafe impl Sync for Peers {}

impl Peers {
    /// Allocates memory on this rank's GPU that other ranks can open.
    pub fn share(ranks: &Ranks) -> Result<Self> {
        Ok(Self(ffi::share_memory(&ranks.0)?))
    }

    /// The handle with which other ranks open the memory; empty if they cannot open it.
    pub fn handle(&self) -> Result<Vec<u8>> {
        Ok(ffi::handle_of(&self.0)?)
    }

    /// Opens the memory of all ranks. `handles` contains their handles in the order of the ranks.
    pub fn reach(&self, handles: &[u8]) -> Result<()> {
        Ok(ffi::reach_peers(&self.0, handles)?)
    }

    /// Like [`Ranks::all_gather`], but exchanges small arrays through this memory.
    pub fn all_gather(&self, ranks: &Ranks, x: &Array) -> Result<Array> {
        Array::from_bridge(ffi::all_gather_by(&self.0, &ranks.0, x.raw()))
    }
}

/// The number of GPUs that MLX sees.
pub fn gpu_count() -> Result<i32> {
    Ok(ffi::gpu_count()?)
}

/// The UUID of the first GPU; empty if MLX reports none.
pub fn gpu_uuid() -> Result<String> {
    Ok(ffi::gpu_uuid()?)
}

/// Functions that run before and after every wait of an evaluation for MLX.
#[derive(Clone, Copy)]
pub struct WaitObserver {
    /// Runs before the call of MLX, and returns a number for the wait. An error prevents the call.
    pub begin: fn() -> Result<u64>,
    /// Runs after the wait of that number; the flag tells whether the wait failed.
    pub end: fn(u64, bool),
}

static OBSERVER: OnceLock<WaitObserver> = OnceLock::new();

/// Registers the observer of this process; a second one is ignored.
pub fn observe_waits(observer: WaitObserver) {
    let _ = OBSERVER.set(observer);
}

fn begin_wait() -> Result<u64> {
    OBSERVER.get().map_or(Ok(0), |observer| (observer.begin)())
}

fn end_wait(id: u64, failed: bool) {
    if let Some(observer) = OBSERVER.get() {
        (observer.end)(id, failed);
    }
}
