//! Custom primitives, written in Rust, with Metal kernels.
//!
//! [`apply`] turns a value whose type implements [`CustomPrimitive`] into a node of MLX's lazy
//! graph. The node runs on the CPU and on the GPU, inside `compile`, and has the derivatives and
//! the `vmap` that the type implements. [The
//! guide](https://github.com/mlx-primitives/mlx-primitives/blob/main/docs/write-your-own-primitive.md)
//! goes from an empty folder to a tested crate.
//!
//! ```
//! use mlx_primitives::custom::{self, CustomPrimitive, Spec, View, ViewMut};
//! use mlx_primitives::{Array, Result};
//!
//! /// y = x + step.
//! struct Shift {
//!     step: f32,
//! }
//!
//! impl CustomPrimitive for Shift {
//!     fn name(&self) -> &str {
//!         "shift"
//!     }
//!     fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
//!         Ok(vec![inputs[0].clone()])
//!     }
//!     fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
//!         let x = inputs[0].as_slice::<f32>()?;
//!         for (y, x) in outputs[0].as_mut_slice::<f32>()?.iter_mut().zip(x) {
//!             *y = x + self.step;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! let x = Array::from_slice(&[1.0f32, 2.0], &[2])?;
//! let y = &custom::apply(Shift { step: 0.5 }, &[&x])?[0]; // lazy
//! assert_eq!(y.to_vec::<f32>()?, [1.5, 2.5]);
//! # Ok::<(), mlx_primitives::Error>(())
//! ```

mod bridge;
mod calls;
mod launch;
pub(crate) mod library;
mod metallib;
mod view;

use crate::array::Array;
use crate::error::{Error, Result};

pub use calls::{apply, apply_one};
pub use launch::{Call, Constant, Launch};
pub use library::MetalLibrary;
pub use metallib::MetalVersion;
#[doc(hidden)]
pub use metallib::{check_for as check_metallib, release_of, supported as supported_metal};
pub use view::{Elements, Spec, View, ViewMut};

/// The memory layout in which a primitive takes an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// In row-major order without gaps. An input with another layout is copied first, in the graph.
    RowContiguous,
    /// In place, with any strides: zero for broadcast axes, negative for reversed ones.
    Any,
}

/// A custom op: its outputs, its computation and, if it has them, its derivatives. A value of the
/// type holds the parameters of one node.
///
/// `eval_cpu` runs on the thread of a CPU stream. The other methods run on the thread that builds
/// or evaluates the graph. The type is therefore `Send` and `Sync`. If a method panics or returns
/// an `Err`, the op, the transform or the evaluation returns an `Err` that names the primitive.
/// (With `panic = "abort"`, a panic ends the program.) The outputs of a failed `eval_cpu` cannot be
/// read.
pub trait CustomPrimitive: Send + Sync + 'static {
    /// The name of the primitive in errors and graphs.
    fn name(&self) -> &str;

    /// The shapes and types of the outputs. There is at least one output.
    ///
    /// The result may depend on `self` and the inputs only, because `compile` calls the method
    /// again for other shapes.
    ///
    /// # Errors
    ///
    /// Returns an error to refuse the inputs.
    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>>;

    /// The layout that the primitive needs for input number `input`; [`Layout::RowContiguous`] by
    /// default.
    fn layout(&self, input: usize) -> Layout {
        let _ = input;
        Layout::RowContiguous
    }

    /// The number of an input whose memory output 0 takes over; `None` by default. The input must
    /// have the shape and type of output 0. MLX does not copy the input if nothing else will read
    /// it.
    ///
    /// `eval_cpu` then finds the input's elements in output 0, and only there. Kernels get one
    /// buffer for the input and the output.
    fn in_place(&self) -> Option<usize> {
        None
    }

    /// Computes all elements of all outputs on the CPU. Outputs are row-contiguous. They share no
    /// memory with inputs and are not initialized, except output 0 if `in_place` names an input.
    /// MLX does not call this method if no output has elements.
    ///
    /// # Errors
    ///
    /// Returns an error if the outputs cannot be computed; the evaluation then returns this error.
    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()>;

    /// The kernels to dispatch on a GPU, in order.
    ///
    /// The method is called again with a smaller [`Call::max_threads`] if a kernel needs more
    /// registers than its pipeline has for that number of threads in a threadgroup.
    ///
    /// # Errors
    ///
    /// Returns an error if nothing can be dispatched, as the default method always does.
    fn launch(&self, call: &Call) -> Result<Vec<Launch>> {
        let _ = call;
        Err(self.lacks("Metal kernel"))
    }

    /// The vector-Jacobian product. `cotangents` has an array for each output. Returns the
    /// gradients of the primals whose indices are in `argnums`, in that order. Each gradient has
    /// the shape and type of its primal.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such derivative, as the default method always does.
    fn vjp(
        &self,
        primals: &[Array],
        cotangents: &[Array],
        argnums: &[usize],
        outputs: &[Array],
    ) -> Result<Vec<Array>> {
        let _ = (primals, cotangents, argnums, outputs);
        Err(self.lacks("vjp"))
    }

    /// The Jacobian-vector product: the derivatives of the outputs along `tangents`. There is one
    /// tangent for each primal whose index is in `argnums`. The other primals are constant.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such derivative, as the default method always does.
    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Result<Vec<Array>> {
        let _ = (primals, tangents, argnums);
        Err(self.lacks("jvp"))
    }

    /// The op mapped over an additional axis of its inputs. `axes` tells the position of that axis
    /// in each input, or `None` for an input without it. Returns the outputs, and the position of
    /// the axis in each output.
    ///
    /// # Errors
    ///
    /// Returns an error if the op cannot be mapped, as the default method always does.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Result<(Vec<Array>, Vec<usize>)> {
        let _ = (inputs, axes);
        Err(self.lacks("vmap"))
    }

    /// Whether `other` computes the same outputs from the same inputs, so that `compile` may merge
    /// the two nodes; false by default.
    fn is_equivalent(&self, other: &Self) -> bool
    where
        Self: Sized,
    {
        let _ = other;
        false
    }

    /// The error of a default method, which the primitive does not override.
    #[doc(hidden)]
    fn lacks(&self, what: &str) -> Error {
        Error::argument(self.name(), format_args!("a primitive with a {what}, got one without"))
    }
}

/// Opens, at its first use, the library that `mlx-primitives-build` made in the build script of the
/// calling crate. Evaluates to a `Result` of a [`MetalLibrary`](crate::custom::MetalLibrary), which
/// is an error for a metallib that this machine cannot run.
///
/// ```ignore
/// let library = mlx_primitives::metal_library!("own")?; // of metal/own.metal
/// ```
#[macro_export]
macro_rules! metal_library {
    ($name:literal) => {{
        static LIBRARY: ::std::sync::OnceLock<$crate::custom::MetalLibrary> =
            ::std::sync::OnceLock::new();
        match LIBRARY.get() {
            ::std::option::Option::Some(library) => ::std::result::Result::Ok(library.clone()),
            ::std::option::Option::None => $crate::custom::MetalLibrary::from_build(
                include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".metallib")),
                include_str!(concat!(env!("OUT_DIR"), "/", $name, ".metal")),
            )
            .map(|library| LIBRARY.get_or_init(|| library).clone()),
        }
    }};
}
