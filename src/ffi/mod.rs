//! The bridge to C++, which only converts arguments and results. This file declares its core, and
//! `ops.rs` the ops. Other modules declare the parts that only they use; `cmake/bridge.rs` lists
//! all files.
//!
//! A function that can reach throwing code returns `Result`, since an exception in a function
//! without a `Result` would end the process. So a function without a `Result`, such as one that
//! only reads an array's description, must not throw.

pub(crate) mod ops;

use std::cell::Cell;

use cxx::CxxVector;

use crate::dtype::Dtype;
use mlx_primitives_kernels as cpu;

/// Runs parts of kernels on this thread until the arrays are computed, or no kernel has run for a
/// while. Returns an error if the evaluation of an array has failed.
fn lend_thread(arrays: &CxxVector<bridge::MlxArray>) -> Result<(), cxx::Exception> {
    let error = Cell::new(None);
    cpu::lend_thread(&|| {
        arrays.iter().all(|array| {
            bridge::finished(array).unwrap_or_else(|e| {
                error.set(Some(e));
                true
            })
        })
    });
    error.take().map_or(Ok(()), Err)
}

fn lend_thread_until(signal: &bridge::Signal) {
    cpu::lend_thread(&|| bridge::is_set(signal));
}

#[allow(clippy::missing_errors_doc)]
#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod bridge {
    /// MLX's element types, in `mlx::core::Dtype::Val` order (asserted in cpp/bridge/core.cpp).
    #[repr(u8)]
    enum Dtype {
        Bool,
        Uint8,
        Uint16,
        Uint32,
        Uint64,
        Int8,
        Int16,
        Int32,
        Int64,
        Float16,
        Float32,
        Float64,
        Bfloat16,
        Complex64,
    }

    #[repr(u8)]
    enum UnaryOp {
        Abs,
        Cos,
        Erf,
        Exp,
        IsNan,
        Log,
        LogicalNot,
        Negative,
        Reciprocal,
        Rsqrt,
        Sigmoid,
        Sin,
        Sqrt,
        Square,
        Tanh,
    }

    #[repr(u8)]
    enum BinaryOp {
        Add,
        Divide,
        Equal,
        Greater,
        GreaterEqual,
        Less,
        LessEqual,
        LogicalAnd,
        LogicalOr,
        Matmul,
        Maximum,
        Minimum,
        Multiply,
        NotEqual,
        Power,
        Subtract,
    }

    #[repr(u8)]
    enum ReduceOp {
        All,
        Any,
        LogSumExp,
        Max,
        Mean,
        Min,
        Prod,
        Sum,
        Var,
    }

    /// The place where ops run: the default device and stream, a device, or one stream.
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Place {
        explicit_device: bool,
        gpu: bool,
        /// The index of a stream, or -1 for the default stream of the device.
        stream: i32,
    }

    /// A kernel of `metal/<stem>.metal`.
    struct MetalKernel {
        stem: String,
        name: String,
    }

    /// A Metal dispatch of a primitive, planned without a GPU.
    struct LaunchPlan {
        kernel: String,
        /// The number of threadgroups in each dimension.
        grid: [u32; 3],
        /// The number of threads of a threadgroup in each dimension.
        group: [u32; 3],
        threadgroup_bytes: u32,
    }

    /// A node that has not been evaluated.
    struct GraphNode {
        name: String,
        input_bytes: usize,
        last_input_bytes: usize,
        output_bytes: usize,
        /// Whether the primitive is one of ours; only ours report the next two fields.
        ours: bool,
        dispatches: u32,
        device_bytes: usize,
    }

    unsafe extern "C++" {
        include!("bridge/core.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray;
        type Signal;

        fn is_set(signal: &Signal) -> bool;

        // Versions, devices, memory.
        fn header_version() -> String;
        fn library_version() -> String;
        fn check_version() -> Result<()>;
        fn be_guest();
        fn gpu_available() -> Result<bool>;
        fn default_is_gpu() -> Result<bool>;
        fn device_name(gpu: bool) -> Result<String>;
        /// The most bytes that should stay resident for an Apple GPU; 0 without an Apple GPU.
        fn recommended_working_set() -> Result<usize>;
        fn kernels_origin() -> Result<String>;
        fn metal_kernels() -> Vec<MetalKernel>;
        fn metal_kernel_threads(kernel: &MetalKernel) -> Result<u32>;
        fn current_place() -> Place;
        fn set_place(place: Place);
        fn new_stream(gpu: bool) -> Result<i32>;
        fn synchronize(place: Place) -> Result<()>;
        /// The number of groups of tasks that MLX has queued or is running.
        fn active_tasks() -> Result<i32>;
        fn clear_streams() -> Result<()>;
        fn active_memory() -> usize;
        fn peak_memory() -> usize;
        fn cache_memory() -> usize;
        fn reset_peak_memory();
        fn clear_cache() -> Result<()>;
        fn set_cache_limit(bytes: usize) -> Result<usize>;
        fn memory_limit() -> usize;
        fn set_memory_limit(bytes: usize) -> Result<usize>;
        fn set_wired_limit(bytes: usize) -> Result<usize>;
        fn prefetch(arrays: &CxxVector<MlxArray>) -> Result<()>;

        // Lists of arrays.
        fn new_list() -> UniquePtr<CxxVector<MlxArray>>;
        fn push(list: Pin<&mut CxxVector<MlxArray>>, array: &MlxArray);

        // Handles and descriptors.
        fn share(array: &MlxArray) -> UniquePtr<MlxArray>;
        /// The address of the list that `shape` returns, and its length.
        fn shape_words(array: &MlxArray) -> [usize; 2];
        fn assign(place: Pin<&mut MlxArray>, array: &MlxArray);
        fn shape(array: &MlxArray) -> &[i32];
        fn strides(array: &MlxArray) -> Vec<i64>;
        fn dtype(array: &MlxArray) -> Dtype;
        fn is_scheduled(array: &MlxArray) -> bool;
        fn is_row_contiguous(array: &MlxArray) -> bool;
        fn primitive_name(array: &MlxArray) -> String;
        fn to_text(array: &MlxArray) -> Result<String>;

        // Evaluation.
        fn eval(arrays: &CxxVector<MlxArray>) -> Result<()>;
        fn async_eval(arrays: &CxxVector<MlxArray>) -> Result<()>;
        /// Whether an array that was evaluated asynchronously has been computed.
        fn finished(array: &MlxArray) -> Result<bool>;
        fn contents(array: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        /// The evaluated array, without a graph and with memory that no other array uses.
        fn detached(array: UniquePtr<MlxArray>) -> Result<UniquePtr<MlxArray>>;
        /// The address of the first element of an array that `contents` returned.
        fn data(array: &MlxArray) -> *const u8;

        // Creation.
        fn from_bytes(bytes: &[u8], shape: &[i32], dtype: Dtype) -> Result<UniquePtr<MlxArray>>;
        /// Uninitialized memory, as an array of 64-bit words.
        #[allow(dead_code)] // used only with the feature llama
        fn block(bytes: usize) -> Result<UniquePtr<MlxArray>>;
        /// A view of a block from byte `offset` on. The view begins and ends at multiples of 8.
        #[allow(dead_code)]
        fn within(
            block: &MlxArray,
            offset: usize,
            shape: &[i32],
            dtype: Dtype,
        ) -> Result<UniquePtr<MlxArray>>;
        fn full(shape: &[i32], value: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        fn arange(start: f64, stop: f64, step: f64, dtype: Dtype) -> Result<UniquePtr<MlxArray>>;

        // Built-in ops of MLX.
        fn unary(op: UnaryOp, a: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        fn binary(op: BinaryOp, a: &MlxArray, b: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        fn reduce(
            op: ReduceOp,
            a: &MlxArray,
            axes: &[i32],
            keepdims: bool,
        ) -> Result<UniquePtr<MlxArray>>;
        fn reshape(a: &MlxArray, shape: &[i32]) -> Result<UniquePtr<MlxArray>>;
        fn transpose(a: &MlxArray, axes: &[i32]) -> Result<UniquePtr<MlxArray>>;
        fn slice(
            a: &MlxArray,
            start: &[i32],
            stop: &[i32],
            steps: &[i32],
        ) -> Result<UniquePtr<MlxArray>>;
        fn slice_update(
            a: &MlxArray,
            update: &MlxArray,
            start: &[i32],
            stop: &[i32],
        ) -> Result<UniquePtr<MlxArray>>;
        fn broadcast_to(a: &MlxArray, shape: &[i32]) -> Result<UniquePtr<MlxArray>>;
        fn expand_dims(a: &MlxArray, axes: &[i32]) -> Result<UniquePtr<MlxArray>>;
        fn squeeze(a: &MlxArray, axes: &[i32]) -> Result<UniquePtr<MlxArray>>;
        fn astype(a: &MlxArray, dtype: Dtype) -> Result<UniquePtr<MlxArray>>;
        fn contiguous(a: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        fn concatenate(arrays: &CxxVector<MlxArray>, axis: i32) -> Result<UniquePtr<MlxArray>>;
        fn stack(arrays: &CxxVector<MlxArray>, axis: i32) -> Result<UniquePtr<MlxArray>>;
        fn split_at(a: &MlxArray, place: i32, axis: i32) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        fn take(a: &MlxArray, indices: &MlxArray, axis: i32) -> Result<UniquePtr<MlxArray>>;
        fn take_along_axis(
            a: &MlxArray,
            indices: &MlxArray,
            axis: i32,
        ) -> Result<UniquePtr<MlxArray>>;
        fn put_along_axis(
            a: &MlxArray,
            indices: &MlxArray,
            values: &MlxArray,
            axis: i32,
        ) -> Result<UniquePtr<MlxArray>>;
        fn select(condition: &MlxArray, a: &MlxArray, b: &MlxArray) -> Result<UniquePtr<MlxArray>>;
        fn argmax(a: &MlxArray, axis: i32, keepdims: bool) -> Result<UniquePtr<MlxArray>>;
        fn argsort(a: &MlxArray, axis: i32) -> Result<UniquePtr<MlxArray>>;
        fn sort(a: &MlxArray, axis: i32) -> Result<UniquePtr<MlxArray>>;
        fn cumsum(a: &MlxArray, axis: i32) -> Result<UniquePtr<MlxArray>>;
        fn stop_gradient(a: &MlxArray) -> Result<UniquePtr<MlxArray>>;

        // Random numbers. If the key is null, MLX uses this thread's sequence of keys.
        fn random_seed(seed: u64) -> Result<()>;
        fn random_key(seed: u64) -> Result<UniquePtr<MlxArray>>;
        fn random_split(key: &MlxArray, count: i32) -> Result<UniquePtr<MlxArray>>;
        unsafe fn random_uniform(
            low: f32,
            high: f32,
            shape: &[i32],
            dtype: Dtype,
            key: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn random_normal(
            shape: &[i32],
            dtype: Dtype,
            key: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn random_randint(
            low: i32,
            high: i32,
            shape: &[i32],
            key: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;
        unsafe fn random_categorical(
            logits: &MlxArray,
            axis: i32,
            key: *const MlxArray,
        ) -> Result<UniquePtr<MlxArray>>;

        // Graphs.
        fn graph_nodes(arrays: &CxxVector<MlxArray>) -> Result<Vec<GraphNode>>;
        /// The dispatches that the evaluation of one of our lazy nodes would make on a GPU.
        fn dispatches(array: &MlxArray, max_threads: u32) -> Result<Vec<LaunchPlan>>;
        /// A graph of MLX's own ops that computes the values of one of our nodes. The node does not
        /// change.
        fn composition(array: &MlxArray) -> Result<UniquePtr<CxxVector<MlxArray>>>;
    }

    extern "Rust" {
        /// Runs parts of kernels until the arrays are computed, or no kernel has run for a while.
        fn lend_thread(arrays: &CxxVector<MlxArray>) -> Result<()>;

        /// Runs parts of kernels until the signal is set, or no kernel has run for a while.
        fn lend_thread_until(signal: &Signal);
    }
}

/// Converts between [`Dtype`] and C++'s type, which has the same variants.
macro_rules! dtypes {
    ($($variant:ident)*) => {
        impl From<Dtype> for bridge::Dtype {
            fn from(dtype: Dtype) -> Self {
                match dtype {
                    $(Dtype::$variant => Self::$variant,)*
                }
            }
        }

        impl From<bridge::Dtype> for Dtype {
            fn from(dtype: bridge::Dtype) -> Self {
                match dtype {
                    $(bridge::Dtype::$variant => Self::$variant,)*
                    // core.cpp asserts that the two enums have equal values. The list has all types
                    // of MLX.
                    _ => unreachable!("MLX's dtypes are all listed"),
                }
            }
        }
    };
}

dtypes! {
    Bool Uint8 Uint16 Uint32 Uint64 Int8 Int16 Int32 Int64 Float16 Float32 Float64 Bfloat16 Complex64
}
