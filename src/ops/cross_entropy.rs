use crate::array::Array;
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::{chosen, rows};

/// The options of [`cross_entropy`]: by default no label smoothing and no target to ignore.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropy {
    /// The share of each target's weight that is spread evenly over all classes, in `[0, 1)`
    /// ([Szegedy et al. 2015](https://arxiv.org/abs/1512.00567)).
    pub label_smoothing: f32,
    /// The loss and the gradient of a row with this target are zero, for any logits.
    pub ignore_index: Option<i32>,
}

/// Cross-entropy of logits and target classes, with one loss for each row:
/// `logsumexp(logits) - logits[target]`. With label smoothing `s` the loss is
/// `logsumexp(logits) - (1 - s) * logits[target] - s * mean(logits)`, as in `mlx.nn.losses`.
///
/// `logits` is `[..., classes]` of float32, float16 or bfloat16, and `targets` is `[...]` of any
/// integer type. The result has the shape of the targets and the type of the logits. The kernel
/// subtracts each row's maximum, computes in float32 and rounds once. It reads the logits once. The
/// loss and the gradient of a row are NaN if its target is not ignored, and is negative or not
/// below the number of classes. [`linear_cross_entropy`](super::linear_cross_entropy) computes the
/// logits too, and never has all of them in memory.
///
/// Differentiable in the logits.
///
/// # Cost
///
/// One kernel moves `r n + 4 r` elements in float32 for r rows of n classes, and computes `4 r n`
/// operations, or `5 r n` with smoothing. Two elements of each row stay in memory for the gradient.
/// The gradient takes one kernel, which reads the logits again: no softmax is kept.
///
/// # Errors
///
/// Returns an error if the logits are a scalar, have no classes or have another type, if the
/// targets have another shape or a type that is not an integer, or if the smoothing is outside
/// `[0, 1)`.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let logits = Array::from_slice(&[2.0f32, -1.0, -1.0, 2.0], &[2, 2])?;
/// let targets = Array::from_slice(&[0i32, 1], &[2])?;
/// let loss = ops::cross_entropy(&logits, &targets, Default::default())?.to_vec::<f32>()?;
/// assert!(loss.iter().all(|loss| (loss - 0.048587).abs() < 1e-6));
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn cross_entropy(logits: &Array, targets: &Array, options: CrossEntropy) -> Result<Array> {
    let CrossEntropy { label_smoothing, ignore_index } = options;
    let (ignores, ignored) = (ignore_index.is_some(), ignore_index.unwrap_or(0));
    let built = ffi::cross_entropy(logits.raw(), targets.raw(), label_smoothing, ignores, ignored);
    chosen("cross_entropy", || rows(logits), built)
}
