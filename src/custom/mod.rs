//! Primitives of your own, written in Rust, with Metal kernels of your own.
//!
//! A type that implements [`CustomPrimitive`] becomes a node of MLX's lazy graph by [`apply`]: it
//! runs on the CPU and on the GPU, inside `compile`, and differentiates and vectorises as far as it
//! says how. `docs/write-your-own-primitive.md` goes from an empty folder to a tested crate.
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

pub(crate) mod calls;
mod launch;
pub(crate) mod library;
mod metallib;
mod view;

use crate::array::{Array, from_list, to_list};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ffi::custom::bridge as ffi;

pub use launch::{Call, Constant, Launch};
pub use library::MetalLibrary;
pub use metallib::MetalVersion;
#[doc(hidden)]
pub use metallib::supported as supported_metal;
pub use view::{Elements, View, ViewMut};

/// Shape and type of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The length of each dimension.
    pub shape: Vec<i32>,
    /// The type of the elements.
    pub dtype: Dtype,
}

impl Spec {
    /// An array of this shape and type.
    pub fn new(shape: impl Into<Vec<i32>>, dtype: Dtype) -> Self {
        Self { shape: shape.into(), dtype }
    }

    /// The shape and type of an array.
    pub fn of(array: &Array) -> Self {
        Self::new(array.shape(), array.dtype())
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        self.shape.iter().fold(1, |size, &dim| size.saturating_mul(dim as usize))
    }
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape)
    }
}

impl From<Spec> for ffi::CustomOutput {
    fn from(spec: Spec) -> Self {
        Self { shape: spec.shape, dtype: spec.dtype.into() }
    }
}

/// How a primitive takes an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// In row-major order without gaps; what is not so is copied first, in the graph.
    RowContiguous,
    /// As it lies in memory, with any strides: zero for broadcast axes, negative for reversed ones.
    Any,
}

/// An op that MLX knows nothing of: what it returns, how it is computed, and, if it has them, its
/// derivatives. A value of the type is one node's parameters.
///
/// `eval_cpu` runs on the thread of a CPU stream, the other methods on the thread that builds or
/// evaluates the graph, which is why the type is `Send` and `Sync`. An `Err` or a panic in any of
/// them is an `Err` of the op, of the transform or of the evaluation, and names the primitive (a
/// panic in a program built with `panic = "abort"` ends it); what a failed `eval_cpu` left in its
/// outputs is never given out.
pub trait CustomPrimitive: Send + Sync + 'static {
    /// The name in errors and graphs.
    fn name(&self) -> &str;

    /// Shapes and types of the outputs, at least one.
    ///
    /// Depends on nothing but `self` and the inputs: `compile` asks again for other shapes.
    ///
    /// # Errors
    ///
    /// Returns an error to refuse the inputs.
    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>>;

    /// How input number `input` is wanted; [`Layout::RowContiguous`] unless overridden.
    fn layout(&self, input: usize) -> Layout {
        let _ = input;
        Layout::RowContiguous
    }

    /// The input whose memory output 0, of the same shape and type, is to take over; none unless
    /// overridden. Nothing is copied where nobody else will read the input.
    ///
    /// `eval_cpu` then finds the input's elements in output 0, and only there. Kernels have to bear
    /// that the two are one buffer.
    fn in_place(&self) -> Option<usize> {
        None
    }

    /// Computes all elements of all outputs. Outputs are row-contiguous, share memory with no
    /// input, and hold anything before. Not called where no output has elements.
    ///
    /// # Errors
    ///
    /// Returns an error if the outputs cannot be computed; the evaluation then fails with it.
    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()>;

    /// The kernels to dispatch on a GPU, in order.
    ///
    /// Called again, with fewer threads, if a kernel needs so many registers that its pipeline
    /// allows no more than that in a threadgroup.
    ///
    /// # Errors
    ///
    /// Returns an error if nothing can be dispatched, which a primitive without this method always does.
    fn launch(&self, call: &Call) -> Result<Vec<Launch>> {
        let _ = call;
        Err(self.lacks("Metal kernel"))
    }

    /// The cotangents pulled back to the primals numbered `argnums`: for each of them, in that
    /// order, an array of the primal's shape and type. There is a cotangent for each output.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such derivative, as for a primitive without this method.
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

    /// The derivatives of the outputs along `tangents`, one for each primal numbered in `argnums`;
    /// the others stay as they are.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such derivative, as for a primitive without this method.
    fn jvp(&self, primals: &[Array], tangents: &[Array], argnums: &[usize]) -> Result<Vec<Array>> {
        let _ = (primals, tangents, argnums);
        Err(self.lacks("jvp"))
    }

    /// The op over an axis more: `axes` says which axis of each input is mapped, if any. Returns
    /// the outputs and the axis of each that is the mapped one.
    ///
    /// # Errors
    ///
    /// Returns an error if the op cannot be mapped, as for a primitive without this method.
    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Result<(Vec<Array>, Vec<usize>)> {
        let _ = (inputs, axes);
        Err(self.lacks("vmap"))
    }

    /// Whether `other` computes the same from the same inputs: `compile` then merges the two. Never
    /// unless overridden.
    fn is_equivalent(&self, other: &Self) -> bool
    where
        Self: Sized,
    {
        let _ = other;
        false
    }

    /// The error of a method that is not there.
    #[doc(hidden)]
    fn lacks(&self, what: &str) -> Error {
        Error::argument(self.name(), format_args!("a primitive with a {what}, got one without"))
    }
}

/// The outputs of a primitive, as one lazy node on the current device and stream.
///
/// # Errors
///
/// Returns an error if the primitive refuses the inputs, says no outputs, or says shapes that no
/// memory holds.
pub fn apply<P: CustomPrimitive>(primitive: P, inputs: &[&Array]) -> Result<Vec<Array>> {
    let op = calls::CustomOp::new(primitive)?;
    let specs: Vec<Spec> = inputs.iter().map(|input| Spec::of(input)).collect();
    let outputs: Vec<_> = op.outputs(&specs)?.into_iter().map(ffi::CustomOutput::from).collect();
    let any_layout = op.any_layout(specs.len())?;
    let list = to_list(inputs.iter().copied());
    Ok(from_list(&*ffi::custom(Box::new(op), &list, &any_layout, &outputs)?))
}

/// [`apply`] for a primitive of one output.
///
/// # Errors
///
/// Returns an error if the primitive has more than one output, or [`apply`] fails.
pub fn apply_one<P: CustomPrimitive>(primitive: P, inputs: &[&Array]) -> Result<Array> {
    let mut outputs = apply(primitive, inputs)?;
    match (outputs.pop(), outputs.len()) {
        (Some(output), 0) => Ok(output),
        (_, more) => Err(Error::argument(
            "apply_one",
            format_args!("a primitive of one output, got one of {}", more + 1),
        )),
    }
}

/// The library that `mlx-primitives-build` made in this crate's build script, opened once: a
/// [`MetalLibrary`](crate::custom::MetalLibrary), or the error of a metallib that this machine cannot run.
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
