//! Primitives that a user of the crate wrote: their one C++ class, and what it asks of Rust.

use crate::hosted::calls::{
    HostedOp, hosted_eval, hosted_in_place, hosted_is_equivalent, hosted_jvp, hosted_launches,
    hosted_name, hosted_shapes, hosted_vjp, hosted_vmap,
};
use crate::hosted::library::LibraryHandle;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    struct HostedOutput {
        shape: Vec<i32>,
        dtype: Dtype,
    }

    /// What is bound to a buffer index.
    #[repr(u8)]
    enum HostedBuffer {
        Input,
        Output,
        /// An output that an earlier launch has written, to be read.
        Written,
        /// Bytes by value.
        Parameters,
    }

    struct HostedBinding {
        buffer: HostedBuffer,
        index: u32,
        /// Which of the inputs or outputs.
        array: u32,
        bytes: Vec<u8>,
    }

    struct HostedConstant {
        index: u32,
        /// An `MTL::DataType`.
        data_type: u32,
        /// The value in its low bytes.
        bits: u64,
    }

    struct HostedMemory {
        index: u32,
        bytes: u32,
    }

    struct HostedLaunch {
        library: Box<LibraryHandle>,
        kernel: String,
        /// The kernel's name with its constants: what the pipeline is cached under.
        pipeline: String,
        constants: Vec<HostedConstant>,
        bindings: Vec<HostedBinding>,
        threadgroup: Vec<HostedMemory>,
        grid: [u32; 3],
        group: [u32; 3],
        grid_is_threads: bool,
    }

    /// An evaluated array: its dimensions and strides lie beside, after those of the arrays before.
    struct HostedView {
        data: *mut u8,
        bytes: usize,
        rank: usize,
        dtype: Dtype,
        row_contiguous: bool,
    }

    struct HostedBatch {
        arrays: UniquePtr<CxxVector<MlxArray>>,
        axes: Vec<i32>,
    }

    unsafe extern "C++" {
        include!("bridge/hosted.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        /// The outputs of one lazy node. Inputs whose `any_layout` is not set are made
        /// row-contiguous.
        fn hosted(
            op: Box<HostedOp>,
            inputs: &CxxVector<MlxArray>,
            any_layout: &[bool],
            outputs: &[HostedOutput],
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;

        /// Elements to step over in memory for each dimension, as evaluated.
        fn hosted_strides(array: &MlxArray) -> &[i64];
    }

    extern "Rust" {
        type HostedOp;
        type LibraryHandle;

        /// The arrays are the inputs, then the outputs. Their memory lives until the call
        /// returns; nothing else touches that of the outputs, each of which has its own.
        unsafe fn hosted_eval(
            op: &HostedOp,
            arrays: &[HostedView],
            inputs: usize,
            shapes: &[i32],
            strides: &[i64],
        ) -> Result<()>;
        fn hosted_launches(
            op: &HostedOp,
            inputs: &CxxVector<MlxArray>,
            outputs: &CxxVector<MlxArray>,
            max_threads: u32,
        ) -> Result<Vec<HostedLaunch>>;
        fn hosted_name(op: &HostedOp) -> &str;
        /// The input whose memory the first output takes over, or -1; the output then holds the
        /// input's elements when `hosted_eval` is called.
        fn hosted_in_place(op: &HostedOp) -> i32;
        fn hosted_shapes(op: &HostedOp, inputs: &CxxVector<MlxArray>) -> Result<Vec<HostedOutput>>;
        fn hosted_vjp(
            op: &HostedOp,
            primals: &CxxVector<MlxArray>,
            cotangents: &CxxVector<MlxArray>,
            argnums: &[i32],
            outputs: &CxxVector<MlxArray>,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        fn hosted_jvp(
            op: &HostedOp,
            primals: &CxxVector<MlxArray>,
            tangents: &CxxVector<MlxArray>,
            argnums: &[i32],
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        fn hosted_vmap(
            op: &HostedOp,
            inputs: &CxxVector<MlxArray>,
            axes: &[i32],
        ) -> Result<HostedBatch>;
        fn hosted_is_equivalent(a: &HostedOp, b: &HostedOp) -> bool;

        /// A name that no other library has.
        fn name(self: &LibraryHandle) -> &str;
        /// The path of a metallib, or nothing for a library of source alone.
        fn metallib(self: &LibraryHandle) -> Result<String>;
        /// To be called once MLX has loaded the metallib.
        fn loaded(self: &LibraryHandle);
        /// An error for a metallib whose source is not known.
        fn source(self: &LibraryHandle) -> Result<String>;
    }
}
