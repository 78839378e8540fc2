//! Metal in a simulator, for tests: what the stand-in for MLX's Metal device asks of it.

use crate::simulate::*;
use crate::simulator::chosen_simulation;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
mod bridge {
    extern "Rust" {
        type SimulatedLibrary;
        type SimulatedKernel;
        type SimulatedDispatch;
        fn simulated_library(source: &str) -> Result<Box<SimulatedLibrary>>;
        /// The kernel with these bits as its function constants of these indices.
        fn simulated_kernel(
            of: &SimulatedLibrary,
            name: &str,
            indices: &[u32],
            bits: &[u64],
        ) -> Result<Box<SimulatedKernel>>;
        /// 1 if this thread asked for it, 0 if it asked not to, -1 if it did not say.
        fn chosen_simulation() -> i8;
        fn simulated_dispatch(grid: [u32; 3], group: [u32; 3]) -> Box<SimulatedDispatch>;
        fn bind(self: &mut SimulatedDispatch, index: u32, at: usize, bytes: usize, writable: bool);
        fn bind_constant(self: &mut SimulatedDispatch, index: u32, at: usize, bytes: usize);
        fn reserve(self: &mut SimulatedDispatch, index: u32, bytes: usize);
        fn count_threads(self: &mut SimulatedDispatch);
        /// What is bound is valid until this returns.
        unsafe fn simulate(kernel: &SimulatedKernel, dispatch: &SimulatedDispatch) -> Result<()>;
    }
}
