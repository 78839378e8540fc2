//! How arrays print.

use std::fmt;

use super::Array;
use crate::ffi::bridge as ffi;

/// Prints the elements as MLX does: `array([1, 2, 3], dtype=int32)`.
///
/// This evaluates the array. If the evaluation fails, its error is printed instead of the elements.
///
/// ```
/// let x = mlx_primitives::Array::from_slice(&[1i32, 2, 3], 3)?;
/// assert_eq!(x.to_string(), "array([1, 2, 3], dtype=int32)");
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.eval().and_then(|()| Ok(ffi::to_text(self.raw())?)) {
            Ok(text) => f.write_str(&text),
            Err(error) => write!(f, "array(<{error}>)"),
        }
    }
}

/// Prints the shape, the type and the state of the array, and evaluates nothing.
///
/// The state is `lazy` with the name of the primitive that will compute the array; `scheduled` with
/// that name after MLX has handed the computation to the device; or `evaluated` if the elements are
/// in memory. An array with neither a primitive nor elements is `traced`, such as an argument of a
/// closure that a transform traces.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[half::f16::ONE; 16], (2, 8))?;
/// let y = ops::rms_norm(&x, None, 1e-5)?;
/// assert_eq!(format!("{y:?}"), "Array([2, 8] float16, lazy RmsNorm)");
/// y.eval()?;
/// assert_eq!(format!("{y:?}"), "Array([2, 8] float16, evaluated)");
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({:?} {}, ", self.shape(), self.dtype())?;
        match (self.is_scheduled(), self.primitive()) {
            (false, Some(name)) => write!(f, "lazy {name})"),
            (false, None) => f.write_str("traced)"),
            (true, Some(name)) => write!(f, "scheduled {name})"),
            (true, None) => f.write_str("evaluated)"),
        }
    }
}
