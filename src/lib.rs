//! Custom [MLX](https://github.com/ml-explore/mlx) primitives from Rust: our own Metal and CPU
//! kernels behind lazy arrays, with derivatives, `vmap` and `compile`.
//!
//! ```
//! use mlx_primitives::{Array, Result, ops, transforms};
//!
//! fn main() -> Result<()> {
//!     let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], (2, 2))?; // [rows, features]
//!     let weight = Array::ones::<f32>(2)?;
//!
//!     let y = ops::rms_norm(&x, Some(&weight), 1e-5)?; // lazy: nothing is computed yet
//!     let first = ((&y - 0.5)? * 2.0)?.i((.., 0))?; // operators and indices add to the graph
//!     assert_eq!(first.shape(), [2]);
//!     assert!((y.to_vec::<f32>()?[0] - 0.632455).abs() < 1e-5); // computed now
//!
//!     let loss = |w: Array| ops::rms_norm(&x, Some(&w), 1e-5)?.square()?.mean(..);
//!     let gradient = transforms::grad(loss, &weight)?; // by the derivative of the primitive
//!     assert_eq!(gradient.shape(), weight.shape());
//!     Ok(())
//! }
//! ```
//!
//! # Crates
//!
//! | crate | contents |
//! |---|---|
//! | `mlx-primitives` | this one: arrays, ops, transforms, primitives that you write |
//! | `mlx-primitives-llama` | a Llama on these ops: checkpoints, tokenizers, generation |
//! | `mlx-primitives-ranks` | one program, or one Llama, on several processes or machines |
//! | `mlx-primitives-check` | tests of an op against a reference, with every transform and device |
//! | `mlx-primitives-build` | compiles your Metal kernels in `build.rs` |
//! | `mlx-primitives-cli` | the command `mlx-primitives`: text, measurements, checks |
//!
//! The build needs MLX 0.32.3 or 0.32.4, a C++ compiler and CMake. [Getting
//! started](https://github.com/mlx-primitives/mlx-primitives/blob/main/docs/getting-started.md)
//! says where the build looks for MLX and what to put in `build.rs`.
//!
//! # Map of the crate
//!
//! | item | contents |
//! |---|---|
//! | [`Array`] | lazy arrays: operators, indexing, and MLX's general ops as methods |
//! | [`prelude`] | the names that most programs use |
//! | [`ops`] | our primitives: norms, softmax, attention, products, reductions, losses |
//! | [`builtin`] | MLX's own versions of some of these primitives, to compare with |
//! | [`transforms`] | `grad`, `vjp`, `jvp`, `vmap`, `checkpoint` and `compile` of Rust closures |
//! | [`custom`] | your own primitives, written in Rust and Metal |
//! | [`simulator`] | Metal kernels on Linux, every access checked (feature `simulate-metal`) |
//! | [`io`] | safetensors and GGUF files |
//! | [`random`] | random arrays |
//! | [`device`], [`memory`] | devices, streams, threads and versions; the allocator's memory |
//! | [`graph`] | the cost of a lazy graph on a GPU, before its evaluation |
//! | [`tune`] | the choice between our kernels and MLX's own, measured on this machine |
//! | [`Error`], [`Result`] | the error of every fallible function |
//!
//! # Further reading
//!
//! - [The book](https://github.com/mlx-primitives/mlx-primitives/blob/main/docs/introduction.md):
//!   installing, models, Python, exactness, platforms, and the errors that people meet.
//! - [All ops](https://github.com/mlx-primitives/mlx-primitives/blob/main/docs/ops.md), with their
//!   speed compared with MLX's.
//! - [Write your own
//!   primitive](https://github.com/mlx-primitives/mlx-primitives/blob/main/docs/write-your-own-primitive.md),
//!   from an empty folder to a tested crate.
//! - [Architecture](https://github.com/mlx-primitives/mlx-primitives/blob/main/ARCHITECTURE.md):
//!   one op through the layers.
#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![deny(unsafe_op_in_unsafe_fn)]

mod array;
#[cfg(doctest)]
mod book;
pub mod builtin;
#[doc(hidden)]
pub mod collectives;
#[cfg(all(feature = "cuda", target_os = "linux"))]
mod cuda;
pub mod custom;
pub mod device;
mod dtype;
mod environment;
mod error;
mod ffi;
#[doc(hidden)]
pub mod files;
pub mod graph;
#[path = "../cmake/hash.rs"]
mod hash;
pub mod io;
pub mod memory;
pub mod ops;
#[doc(hidden)]
pub mod panics;
#[doc(hidden)]
pub mod pipelines;
#[doc(hidden)]
pub mod printable;
pub mod random;
#[cfg(all(feature = "simulate-metal", target_os = "linux"))]
mod simulate;
pub mod simulator;
pub mod transforms;
pub mod tune;

#[cfg(all(feature = "simulate-metal", target_os = "linux"))]
#[doc(hidden)]
pub use simulate::{Change, Dispatched, Encoded, Planted, dispatched, with_planted};

pub use array::{
    Array, Ellipsis, Index, IntoAxes, IntoIndex, IntoShape, NewAxis, Operand, SendArray,
    async_eval, concatenate, eval, select, stack, step,
};
pub use dtype::{Dtype, Element};
pub use error::{Error, Result};

/// The names that most programs use: `use mlx_primitives::prelude::*;`.
///
/// [`Result`] is the `Result` of the standard library with [`Error`] as its default error.
///
/// ```
/// use mlx_primitives::prelude::*;
///
/// fn scaled(x: &Array) -> Result<Array> {
///     let rstd = (x.square()?.mean_keepdims(-1)? + 1e-5)?.rsqrt()?;
///     ((x - x.mean_keepdims(-1))? * &rstd)?.i((Ellipsis, step(.., -1)))
/// }
///
/// let x = Array::from_slice(&[1.0f32, 3.0], (1, 2))?;
/// let slope = transforms::grad(|x| ops::sum(&scaled(&x)?, ..), &x)?;
/// assert_eq!((slope.dims2()?, slope.dtype()), ((1, 2), Dtype::Float32));
/// # Ok::<(), Error>(())
/// ```
pub mod prelude {
    pub use crate::{
        Array, Dtype, Element, Ellipsis, Error, Index, IntoAxes, IntoIndex, IntoShape, NewAxis,
        Operand, Result, concatenate, eval, ops, select, stack, step, transforms,
    };
}

/// Parts of the library that the other crates of this project use. They may change at any time.
#[doc(hidden)]
pub mod support {
    /// Whether this build runs the kernels on NVIDIA GPUs.
    pub const CUDA: bool = cfg!(all(feature = "cuda", target_os = "linux"));

    pub use crate::array::{from_list, guest, require_addressable, to_list};
    pub use crate::hash::Fnv;
    pub use crate::io::block::Block;
    pub use crate::ops::linear::gated_linear;
    pub use crate::panics::panic_message;
    pub use crate::transforms::differentiates;
    pub use crate::tune::only_ours;
    pub use crate::{files, panics, printable};
}

/// Parts of the library that only tests use. They may change at any time.
#[doc(hidden)]
pub mod internals {
    pub use crate::custom::{check_metallib, release_of, supported_metal};
    pub use crate::io::block::{Block, LINE};
    pub use crate::ops::attention::dequantizing_composition;
    pub use crate::support::CUDA;
    pub use crate::tune::has_neural_kernels;
}
