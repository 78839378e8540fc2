//! The C++ bridge to MLX's function transforms.

use super::Closure;

#[cxx::bridge(namespace = "mlx_primitives::bridge")]
pub(crate) mod ffi {
    struct ListPair {
        first: UniquePtr<CxxVector<MlxArray>>,
        second: UniquePtr<CxxVector<MlxArray>>,
    }

    unsafe extern "C++" {
        include!("bridge/transforms.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type MlxArray = crate::ffi::bridge::MlxArray;
        type Compiled;

        fn vjp(
            f: &Closure,
            primals: &CxxVector<MlxArray>,
            cotangents: &CxxVector<MlxArray>,
        ) -> Result<ListPair>;
        fn jvp(
            f: &Closure,
            primals: &CxxVector<MlxArray>,
            tangents: &CxxVector<MlxArray>,
        ) -> Result<ListPair>;
        fn value_and_grad(
            f: &Closure,
            argnums: &[i32],
            inputs: &CxxVector<MlxArray>,
        ) -> Result<ListPair>;
        fn vmap(
            f: &Closure,
            inputs: &CxxVector<MlxArray>,
            in_axes: &[i32],
            out_axes: &[i32],
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        fn compile(f: Box<Closure>, shapeless: bool) -> Result<UniquePtr<Compiled>>;
        fn checkpoint(
            f: Box<Closure>,
            inputs: &CxxVector<MlxArray>,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        /// Gives `f` the custom derivative `vjp`, whose arguments are the inputs and then the
        /// cotangents of the outputs of `f`.
        fn with_vjp(
            f: Box<Closure>,
            vjp: Box<Closure>,
            inputs: &CxxVector<MlxArray>,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
        /// Returns `array` as a node that waits for `others` and, on a machine without a GPU, for
        /// all earlier work of the stream.
        fn after(array: &MlxArray, others: &CxxVector<MlxArray>) -> Result<UniquePtr<MlxArray>>;
        /// Returns true if the array is a placeholder in a function that MLX traces.
        fn is_tracer(array: &MlxArray) -> bool;
        /// The depth, in arrays, of MLX's recursive walk from the outputs to the inputs.
        fn nesting(inputs: &CxxVector<MlxArray>, outputs: &CxxVector<MlxArray>) -> Result<usize>;
        fn call_compiled(
            f: &Compiled,
            inputs: &CxxVector<MlxArray>,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
    }

    extern "Rust" {
        type Closure;

        fn call(
            self: &Closure,
            inputs: &CxxVector<MlxArray>,
        ) -> Result<UniquePtr<CxxVector<MlxArray>>>;
    }
}
