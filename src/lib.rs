//! Custom [MLX](https://github.com/ml-explore/mlx) primitives from Rust: our own Metal and CPU
//! kernels behind lazy arrays, with gradients and vmap, and a small Llama built on them.
//!
//! ```
//! use mlx_primitives::{Array, ops};
//!
//! # fn main() -> mlx_primitives::Result<()> {
//! let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
//! let weight = Array::ones::<f32>(&[2])?;
//! let y = ops::rms_norm(&x, Some(&weight), 1e-5)?; // nothing is computed yet
//! assert_eq!(y.shape(), [2, 2]);
//! assert!((y.to_vec::<f32>()?[0] - 0.632455).abs() < 1e-5);
//! # Ok(())
//! # }
//! ```
//!
//! - [`ops`]: our primitives. [`builtin`]: MLX's own versions of them, for comparison.
//! - [`custom`]: primitives of your own, in Rust and Metal.
//! - [`conformance`]: holds an op to a reference on every path.
//! - [`simulator`]: Metal kernels on Linux, watched, for tests.
//! - [`Array`]: a lazy array with operators, indexing and MLX's general ops as methods.
//! - [`prelude`]: the names that most programs use.
//! - [`transforms`]: `grad`, `vjp`, `jvp`, `vmap`, `checkpoint`, `compile` of Rust closures.
//! - [`device`], [`memory`], [`random`], [`io`]: the rest of MLX's runtime.
//! - [`tune`]: whether ops run our kernels or MLX's own, by what was measured on this machine.
#![cfg_attr(
    feature = "llama",
    doc = "- [`llama`]: a Llama's weights, cache, sampling and decode loop."
)]
#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![deny(unsafe_op_in_unsafe_fn)]

#[allow(clippy::missing_errors_doc)]
mod array;
pub mod builtin;
pub mod conformance;
pub mod custom;
pub mod device;
mod dtype;
mod error;
mod ffi;
#[doc(hidden)]
pub mod files;
pub mod graph;
#[cfg(feature = "llama")]
mod hash;
pub mod io;
#[cfg(feature = "llama")]
pub mod llama;
pub mod memory;
pub mod ops;
pub mod random;
#[cfg_attr(not(all(feature = "simulate-metal", target_os = "linux")), path = "no_simulator.rs")]
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
use mlx_primitives_kernels as cpu;

/// What most programs use: `use mlx_primitives::prelude::*;`.
///
/// [`Result`] stands for the one of the standard library with [`Error`] as its default error.
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

/// Parts of the library that only this package's tests use. They may change at any time.
#[doc(hidden)]
pub mod internals {
    #[cfg(feature = "llama")]
    pub use crate::array::{Block, LINE};
    pub use crate::custom::supported_metal;
}
