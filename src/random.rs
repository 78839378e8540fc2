//! Random arrays. If the caller passes a key, the numbers are a function of the key. Otherwise they
//! come from the random sequence of the calling thread, which [`seed`] restarts.

use crate::array::{Array, IntoShape, or_null, require_addressable};
use crate::dtype::{Dtype, Element};
use crate::error::Result;
use crate::ffi::bridge as ffi;

/// Restarts the random sequence of the calling thread.
///
/// # Errors
///
/// Returns an error if MLX has no memory for the key.
pub fn seed(seed: u64) -> Result<()> {
    Ok(ffi::random_seed(seed)?)
}

/// Makes a key for the functions of this module: a uint32 array `[2]`.
///
/// # Errors
///
/// Returns an error if MLX has no memory for the key.
pub fn key(seed: u64) -> Result<Array> {
    Array::from_bridge(ffi::random_key(seed))
}

/// Makes `count` new keys from `key`: a uint32 array `[count, 2]`.
///
/// # Errors
///
/// Returns an error if `key` is not a `uint32` array of two elements, or `count` is negative.
///
/// ```
/// # use mlx_primitives::random;
/// let keys = random::split(&random::key(7)?, 3)?;
/// assert_eq!(keys.shape(), [3, 2]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn split(key: &Array, count: i32) -> Result<Array> {
    Array::from_bridge(ffi::random_split(key.raw(), count))
}

/// An array of `shape` and the floating-point type `T`, uniformly distributed in `[low, high)`.
///
/// # Errors
///
/// Returns an error if the shape has a negative length or more elements than memory can address,
/// `T` is not a floating-point type, or `key` is not a `uint32` array of two elements.
///
/// ```
/// # use mlx_primitives::random;
/// let key = random::key(7)?;
/// let a = random::uniform::<f32>(0.0, 1.0, 4, Some(&key))?.to_vec::<f32>()?;
/// let b = random::uniform::<f32>(0.0, 1.0, 4, Some(&key))?.to_vec::<f32>()?;
/// assert_eq!(a, b);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn uniform<T: Element>(
    low: f32,
    high: f32,
    shape: impl IntoShape,
    key: Option<&Array>,
) -> Result<Array> {
    let shape = shape.dims();
    let shape = shape.as_ref();
    require_addressable("uniform", shape, T::DTYPE)?;
    // SAFETY: the pointer is null or belongs to a borrowed array, which outlives the call.
    Array::from_bridge(unsafe {
        ffi::random_uniform(low, high, shape, T::DTYPE.into(), or_null(key))
    })
}

/// An array of `shape` and the floating type `T`, normally distributed with mean 0 and variance 1.
///
/// # Errors
///
/// Returns an error if the shape has a negative length or more elements than memory can address,
/// `T` is not a floating-point type, or `key` is not a `uint32` array of two elements.
pub fn normal<T: Element>(shape: impl IntoShape, key: Option<&Array>) -> Result<Array> {
    normal_of(shape, T::DTYPE, key)
}

/// Like [`normal`], but takes the type at run time.
///
/// # Errors
///
/// Returns an error if the shape has a negative length or more elements than memory can address,
/// `dtype` is not a floating-point type, or `key` is not a `uint32` array of two elements.
pub fn normal_of(shape: impl IntoShape, dtype: Dtype, key: Option<&Array>) -> Result<Array> {
    let shape = shape.dims();
    let shape = shape.as_ref();
    require_addressable("normal", shape, dtype)?;
    // SAFETY: the pointer is null or belongs to a borrowed array, which outlives the call.
    Array::from_bridge(unsafe { ffi::random_normal(shape, dtype.into(), or_null(key)) })
}

/// An int32 array of `shape`, uniformly distributed in `[low, high)`.
///
/// # Errors
///
/// Returns an error if the shape has a negative length or more elements than memory can address, or
/// `key` is not a `uint32` array of two elements.
pub fn randint(low: i32, high: i32, shape: impl IntoShape, key: Option<&Array>) -> Result<Array> {
    let shape = shape.dims();
    let shape = shape.as_ref();
    require_addressable("randint", shape, Dtype::Int32)?;
    // SAFETY: the pointer is null or belongs to a borrowed array, which outlives the call.
    Array::from_bridge(unsafe { ffi::random_randint(low, high, shape, or_null(key)) })
}

/// Draws an index along `axis` with probability proportional to `exp(logits)`. The result is uint32
/// and has the shape of the logits without this axis.
///
/// # Errors
///
/// Returns an error if `logits` has no axis `axis`, or `key` is not a `uint32` array of two
/// elements.
pub fn categorical(logits: &Array, axis: i32, key: Option<&Array>) -> Result<Array> {
    // SAFETY: the pointer is null or belongs to a borrowed array, which outlives the call.
    Array::from_bridge(unsafe { ffi::random_categorical(logits.raw(), axis, or_null(key)) })
}
