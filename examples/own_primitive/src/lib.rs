//! Two custom primitives, with CPU kernels in Rust and Metal kernels in `metal/own.metal`. One
//! primitive is elementwise, the other is a reduction.

mod mean_square;
mod soft_cap;

use half::{bf16, f16};
use mlx_primitives::custom::Spec;
use mlx_primitives::{Dtype, Element, Error, Result};

pub use mean_square::mean_square;
pub use soft_cap::soft_cap;

/// The types for which there are kernels. The kernels compute in `f32`.
pub(crate) trait Float: Element {
    fn to_f32(self) -> f32;
    fn of_f32(value: f32) -> Self;
}

impl Float for f32 {
    fn to_f32(self) -> f32 {
        self
    }
    fn of_f32(value: f32) -> Self {
        value
    }
}

impl Float for f16 {
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    fn of_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
}

impl Float for bf16 {
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
    fn of_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }
}

/// Calls a generic function for the type of an array. `one_float` has already refused other types.
macro_rules! with_float {
    ($dtype:expr, $run:ident($($argument:expr),*)) => {
        match $dtype {
            mlx_primitives::Dtype::Float16 => $run::<half::f16>($($argument),*),
            mlx_primitives::Dtype::Bfloat16 => $run::<half::bf16>($($argument),*),
            _ => $run::<f32>($($argument),*),
        }
    };
}
pub(crate) use with_float;

/// Returns the only input of an op, or an error if there are no kernels for its type.
pub(crate) fn one_float<'a>(op: &str, inputs: &'a [Spec]) -> Result<&'a Spec> {
    match inputs {
        [x] if [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16].contains(&x.dtype) => Ok(x),
        _ => Err(Error::argument(op, format_args!("one float array, got {inputs:?}"))),
    }
}
