//! MLX's collective operations between the ranks of a group, and what evaluations report to it.

use crate::collectives::{begin_wait, end_wait};

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    #[repr(u8)]
    /// How the arrays of all ranks become one.
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

        fn ranks_available(backend: &str) -> Result<bool>;
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
        fn send_to(ranks: &Ranks, x: &MlxArray, to: i32) -> Result<UniquePtr<MlxArray>>;
        fn receive_from(
            ranks: &Ranks,
            shape: &[i32],
            dtype: Dtype,
            from: i32,
        ) -> Result<UniquePtr<MlxArray>>;
    }

    extern "Rust" {
        /// Registers a wait for MLX, and returns 0 unless ranks are joined. An error if the group
        /// is broken: MLX must not be entered again.
        fn begin_wait() -> Result<u64>;
        /// Ends a wait. If it failed, the group is broken.
        fn end_wait(id: u64, failed: bool);
    }
}
