//! The functions of the simulator that the stand-in for MLX's Metal device calls, for tests.

use crate::simulate::*;
use crate::simulator::chosen_simulation;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
mod bridge {
    extern "Rust" {
        type SimulatedLibrary;
        type SimulatedKernel;
        type SimulatedDispatch;
        fn simulated_library(source: &str) -> Result<Box<SimulatedLibrary>>;
        /// The kernel of that name, with function constants of these indices and bits.
        fn simulated_kernel(
            of: &SimulatedLibrary,
            name: &str,
            indices: &[u32],
            bits: &[u64],
        ) -> Result<Box<SimulatedKernel>>;
        /// Whether this thread simulates Metal: 1 if so, 0 if not, -1 if the environment decides.
        fn chosen_simulation() -> i8;
        fn simulated_dispatch(grid: [u32; 3], group: [u32; 3]) -> Box<SimulatedDispatch>;
        fn bind(self: &mut SimulatedDispatch, index: u32, at: usize, bytes: usize, writable: bool);
        fn bind_constant(self: &mut SimulatedDispatch, index: u32, at: usize, bytes: usize);
        fn reserve(self: &mut SimulatedDispatch, index: u32, bytes: usize);
        fn count_threads(self: &mut SimulatedDispatch);
        /// The memory that is bound must be valid until the function returns.
        unsafe fn simulate(kernel: &SimulatedKernel, dispatch: &SimulatedDispatch) -> Result<()>;
    }
}
