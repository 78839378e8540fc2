//! The compilation of kernels for NVIDIA GPUs, which the encoder for CUDA calls.

use crate::cuda::*;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// A buffer index that a launch binds to an array, or to this number of bytes by value.
    struct CudaBound {
        index: u32,
        bytes: u32,
    }

    struct CudaConstant {
        index: u32,
        data_type: u32,
        bits: u64,
    }

    /// An argument of a kernel: kind 0 is the contents of a buffer index, 1 the place of
    /// threadgroup memory, 2 the threads of the grid.
    struct CudaArgument {
        kind: u8,
        index: u32,
    }

    struct CudaCode {
        code: Vec<u8>,
        symbol: String,
        arguments: Vec<CudaArgument>,
    }

    extern "Rust" {
        /// Compiles a kernel of Metal source for an architecture, 90 for `sm_90`.
        fn cuda_kernel(
            source: &str,
            kernel: &str,
            bound: &[CudaBound],
            constants: &[CudaConstant],
            counts_threads: bool,
            architecture: u32,
        ) -> Result<CudaCode>;
        fn cuda_description() -> String;
    }
}
