//! Custom primitives: one C++ class represents all of them, and calls these Rust functions.

use super::calls::{
    CustomOp, custom_eval, custom_in_place, custom_is_equivalent, custom_jvp, custom_launches,
    custom_name, custom_shapes, custom_vjp, custom_vmap,
};
use super::library::LibraryHandle;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod ffi {
    struct CustomOutput {
        shape: Vec<i32>,
        dtype: Dtype,
    }

    /// The kind of memory that is bound to a buffer index.
    #[repr(u8)]
    enum CustomBuffer {
        Input,
        Output,
        /// An output that an earlier launch has written, for reading.
        Written,
        /// Parameters by value.
        Parameters,
    }

    struct CustomBinding {
        buffer: CustomBuffer,
        index: u32,
        /// The number of the input or output.
        array: u32,
        bytes: Vec<u8>,
    }

    struct CustomConstant {
        index: u32,
        /// The number of an `MTL::DataType`.
        data_type: u32,
        /// The value, in the low bytes.
        bits: u64,
    }

    struct CustomMemory {
        index: u32,
        bytes: u32,
    }

    struct CustomLaunch {
        library: Box<LibraryHandle>,
        kernel: String,
        /// The kernel's name with its constants, which is the key of the pipeline in the cache.
        pipeline: String,
        constants: Vec<CustomConstant>,
        bindings: Vec<CustomBinding>,
        threadgroup: Vec<CustomMemory>,
        grid: [u32; 3],
        group: [u32; 3],
        grid_is_threads: bool,
    }

    /// An evaluated array. Its dimensions and strides are in two separate lists, which contain the
    /// values of all arrays one after the other.
    struct CustomView {
        data: *mut u8,
        bytes: usize,
        rank: usize,
        dtype: Dtype,
        row_contiguous: bool,
    }

    struct CustomBatch {
        arrays: UniquePtr<CxxVector<MlxArray>>,
        axes: Vec<i32>,
    }

    unsafe extern "C++" {
        include!("bridge/custom.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Dtype = crate::ffi::bridge::Dtype;

        /// Builds one lazy node and returns its outputs. Inputs without `any_layout` are made
        /// row-contiguous.
        fn custom(
            op: Box<CustomOp>,
            inputs: &CxxVector<MlxArray>,
            any_layout: &[bool],
            outputs: &[CustomOutput],
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;

        /// The strides of an evaluated array, in elements.
        fn custom_strides(array: &MlxArray) -> &[i64];
    }

    extern "Rust" {
        type CustomOp;
        type LibraryHandle;

        /// The arrays are the inputs, then the outputs. Their memory lives until the call
        /// returns. Each output has its own memory, which nothing else uses.
        unsafe fn custom_eval(
            op: &CustomOp,
            arrays: &[CustomView],
            inputs: usize,
            shapes: &[i32],
            strides: &[i64],
        ) -> Result<()>;
        fn custom_launches(
            op: &CustomOp,
            inputs: &CxxVector<MlxArray>,
            outputs: &CxxVector<MlxArray>,
            max_threads: u32,
        ) -> Result<Vec<CustomLaunch>>;
        fn custom_name(op: &CustomOp) -> &str;
        /// The number of the input whose memory the first output takes over, or -1. That output
        /// contains the input's elements when C++ calls `custom_eval`.
        fn custom_in_place(op: &CustomOp) -> i32;
        fn custom_shapes(op: &CustomOp, inputs: &CxxVector<MlxArray>) -> Result<Vec<CustomOutput>>;
        fn custom_vjp(
            op: &CustomOp,
            primals: &CxxVector<MlxArray>,
            cotangents: &CxxVector<MlxArray>,
            argnums: &[i32],
            outputs: &CxxVector<MlxArray>,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        fn custom_jvp(
            op: &CustomOp,
            primals: &CxxVector<MlxArray>,
            tangents: &CxxVector<MlxArray>,
            argnums: &[i32],
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        fn custom_vmap(
            op: &CustomOp,
            inputs: &CxxVector<MlxArray>,
            axes: &[i32],
        ) -> Result<CustomBatch>;
        fn custom_is_equivalent(a: &CustomOp, b: &CustomOp) -> bool;

        /// The unique name of the library.
        fn name(self: &LibraryHandle) -> &str;
        /// The path of the metallib, or an empty string for a library that has only source.
        fn metallib(self: &LibraryHandle) -> Result<String>;
        /// Tells the library that MLX has loaded the metallib.
        fn loaded(self: &LibraryHandle);
        /// The source, or an error for a metallib without source.
        fn source(self: &LibraryHandle) -> Result<String>;
    }
}
