use std::ops::Range;

use super::{
    CrossEntropy, Linear, LinearWeight, QuantizedLinear, QuantizedMode, QuantizedWeight,
    cross_entropy, linear, quantized_linear,
};
use crate::array::{Array, concatenate};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::transforms;

const OP: &str = "linear_cross_entropy";

/// By default, the number of logits in memory at a time: 64 MB of float32.
const LOGITS: usize = 1 << 24;

/// The options of [`linear_cross_entropy`]: by default no bias, no label smoothing, no target
/// to ignore, and chunks of 2^24 logits.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinearCrossEntropy<'a> {
    /// The vector `[classes]` that is added to each row of logits.
    pub bias: Option<&'a Array>,
    /// The label smoothing, and the target class to ignore.
    pub cross_entropy: CrossEntropy,
    /// The number of rows of a chunk, at least 1. On a machine without a GPU, only the logits of
    /// one chunk are in memory at a time. With `None`, a chunk has about 2^24 logits, which are
    /// 64 MB of float32.
    pub chunk_rows: Option<usize>,
}

/// Cross-entropy of a linear layer's outputs and target classes, with one loss for each row:
/// `cross_entropy(x · wᵀ + bias, targets)`. The logits are never all in memory.
///
/// `x` is `[..., k]`, `weight` is `[classes, k]`, an array or a [`QuantizedWeight`], and `targets`
/// is `[...]` of any integer type. The loss has the shape of the targets and the type that `x`, the
/// weight and the bias promote to. Each logit is rounded to that type, as in [`linear`] and
/// [`quantized_linear`]. The loss of a row is computed as in [`cross_entropy`].
///
/// The rows of `x` are processed in chunks, one after the other, and the backward pass computes the
/// logits of each chunk again. So a chunk needs memory for the logits of only `chunk_rows` rows,
/// and for their gradient; in exchange a training step computes the product with the weight one
/// more time. Gradients of the weight and the bias are summed over the chunks in float32. The sum
/// takes one float32 array of the weight's shape, in addition to the gradient of a chunk.
///
/// Differentiable in `x`, `bias` and a plain `weight`; a packed weight is a constant. On a machine
/// without a GPU, evaluation waits for each chunk before it queues the next one, even in
/// [`async_eval`](crate::async_eval), so one chunk is in memory at a time. On other machines, only
/// MLX's limits for queued work bound the number of chunks in memory.
///
/// # Cost
///
/// Two kernels run for each chunk of r rows. With n classes and a plain weight, they move
/// `r k + n k + 2 r n + 4 r` elements in float32, and compute `2 r k n + 4 r n` operations. The
/// gradient keeps no logits in memory.
///
/// # Errors
///
/// Returns an error if the shapes do not fit together, if a chunk has no rows, and for types,
/// targets and smoothing that [`linear`], [`quantized_linear`] or [`cross_entropy`] refuses.
///
/// ```
/// use mlx_primitives::ops::{self, CrossEntropy, Linear, LinearCrossEntropy};
/// use mlx_primitives::{Array, transforms};
///
/// let x = Array::from_slice(&[1.0f32, 0.0, 0.5, -1.0], (2, 2))?;
/// let weight = Array::from_slice(&[0.5f32, 1.0, -1.0, 0.0, 2.0, 1.0], (3, 2))?;
/// let targets = Array::from_slice(&[2i32, 0], 2)?;
/// let options = LinearCrossEntropy { chunk_rows: Some(1), ..Default::default() };
/// let loss = ops::linear_cross_entropy(&x, &weight, &targets, options)?;
///
/// let logits = ops::linear(&x, &weight, Linear::default())?;
/// let want = ops::cross_entropy(&logits, &targets, CrossEntropy::default())?;
/// for (loss, want) in loss.to_vec::<f32>()?.iter().zip(want.to_vec::<f32>()?) {
///     assert!((loss - want).abs() < 1e-6);
/// }
///
/// let loss = |(x, w): (Array, Array)| {
///     ops::linear_cross_entropy(&x, &w, &targets, options)?.mean(..)
/// };
/// let (_, dw) = transforms::grad(loss, (&x, &weight))?;
/// assert_eq!(dw.shape(), [3, 2]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn linear_cross_entropy(
    x: &Array,
    weight: impl Into<LinearWeight>,
    targets: &Array,
    options: LinearCrossEntropy<'_>,
) -> Result<Array> {
    let weight = weight.into();
    let head = Head::new(x, &weight, targets, options)?;
    let mut inputs = vec![x, targets];
    match &weight {
        LinearWeight::Plain(weight) => inputs.push(weight),
        LinearWeight::Quantized(weight) => inputs.extend(weight.arrays()),
    }
    inputs.extend(options.bias);
    let wanted: Vec<bool> = inputs.iter().map(|input| transforms::is_traced(input)).collect();
    transforms::with_vjp(
        move |inputs| head.losses(inputs),
        move |inputs, cotangent| head.gradients(inputs, cotangent, &wanted),
        &inputs,
    )
}

/// The settings of the layer, without its arrays. The methods take the arrays as a list: `x`, the
/// targets, the parts of the weight, and the bias if there is one.
#[derive(Clone, Copy)]
struct Head {
    /// The group size, bits and mode of a packed weight.
    packed: Option<(i32, i32, QuantizedMode)>,
    targets: CrossEntropy,
    chunk_rows: i32,
}

/// The arrays of one call, with `x` reshaped to a matrix.
struct Rows<'a> {
    /// `[rows, k]`.
    x: Array,
    /// `[rows]`.
    targets: Array,
    /// The plain weight, or the arrays of a packed weight, and then the bias.
    parameters: &'a [Array],
    rows: i32,
}

impl Head {
    fn new(
        x: &Array,
        weight: &LinearWeight,
        targets: &Array,
        options: LinearCrossEntropy<'_>,
    ) -> Result<Self> {
        let (shape, packed) = match weight {
            LinearWeight::Plain(weight) => (weight.shape().to_vec(), None),
            LinearWeight::Quantized(weight) => (
                vec![weight.outputs(), weight.inputs()],
                Some((weight.group_size(), weight.bits(), weight.mode())),
            ),
        };
        let (leading, classes) = match (x.shape(), &*shape) {
            ([leading @ .., k], [classes, inputs]) if k == inputs => (leading, *classes),
            (x, weight) => {
                return Err(Error::argument(
                    OP,
                    format_args!("x [..., k] and a weight [classes, k], got {x:?} and {weight:?}"),
                ));
            }
        };
        if targets.shape() != leading {
            let expected = format_args!("targets of shape {leading:?}");
            return Err(Error::shape(OP, expected, targets.shape()));
        }
        if let Some(bias) = options.bias.filter(|bias| bias.shape() != [classes]) {
            return Err(Error::shape(OP, format_args!("a bias [{classes}]"), bias.shape()));
        }
        if options.chunk_rows == Some(0) {
            return Err(Error::argument(OP, "chunks of at least 1 row, got 0"));
        }
        let enough = || LOGITS / usize::try_from(classes).unwrap_or(0).max(1);
        let rows = options.chunk_rows.unwrap_or_else(enough).max(1);
        Ok(Self {
            packed,
            targets: options.cross_entropy,
            chunk_rows: i32::try_from(rows).unwrap_or(i32::MAX),
        })
    }

    fn rows<'a>(&self, inputs: &'a [Array]) -> Result<Rows<'a>> {
        let [x, targets, parameters @ ..] = inputs else {
            return Err(Error::argument(OP, format_args!("all inputs, got {}", inputs.len())));
        };
        let rows = i32::try_from(targets.size()).unwrap_or(i32::MAX);
        let x = x.reshape([rows, x.dim(-1)?])?;
        // The targets are integers, so they have no derivative.
        Ok(Rows { x, targets: targets.reshape([rows])?.stop_gradient()?, parameters, rows })
    }

    /// The range of rows of each chunk. If there are no rows, there is one empty chunk.
    fn chunks(&self, rows: i32) -> impl Iterator<Item = Range<i32>> + use<> {
        let step = self.chunk_rows;
        let starts = (0..rows.max(1)).step_by(usize::try_from(step).unwrap_or(1));
        starts.map(move |start| start..start.saturating_add(step).min(rows))
    }

    /// The losses of rows `x` `[m, k]`.
    fn losses_of(&self, x: &Array, targets: &Array, parameters: &[Array]) -> Result<Array> {
        cross_entropy(&self.logits(x, parameters)?, targets, self.targets)
    }

    fn logits(&self, x: &Array, parameters: &[Array]) -> Result<Array> {
        let missing = || Error::argument(OP, "all parts of the weight");
        let Some((group_size, bits, mode)) = self.packed else {
            let (weight, bias) = parameters.split_first().ok_or_else(missing)?;
            return linear(x, weight, Linear { bias: bias.first(), ..Default::default() });
        };
        let mut parts = parameters.iter().cloned();
        let mut part = || parts.next().ok_or_else(missing);
        let (packed, scales) = (part()?, part()?);
        let biases = if mode == QuantizedMode::Affine { Some(part()?) } else { None };
        let weight = QuantizedWeight::new(packed, scales, biases, group_size, bits, mode)?;
        let bias = parts.next();
        let options = QuantizedLinear { bias: bias.as_ref(), ..Default::default() };
        quantized_linear(x, &weight, options)
    }

    /// The losses of all rows, in the shape of the targets.
    fn losses(&self, inputs: &[Array]) -> Result<Array> {
        let Rows { x, targets, parameters, rows } = self.rows(inputs)?;
        let mut losses: Vec<Array> = Vec::new();
        for chunk in self.chunks(rows) {
            let mut x = x.slice_axis(0, chunk.clone())?;
            if let Some(last) = losses.last() {
                x = transforms::after(&x, [last])?;
            }
            losses.push(self.losses_of(&x, &targets.slice_axis(0, chunk)?, parameters)?);
        }
        let shape = inputs.get(1).map(Array::shape).unwrap_or_default();
        concatenate(&losses.iter().collect::<Vec<_>>(), 0)?.reshape(shape)
    }

    /// Computes a cotangent for each input from the cotangent of the losses. `wanted` marks the
    /// inputs of which the caller takes gradients. Each chunk waits for the cotangents of these
    /// inputs from the previous chunk. The graph also has the other cotangents, but MLX computes
    /// them only if they are evaluated.
    fn gradients(
        &self,
        inputs: &[Array],
        cotangent: &Array,
        wanted: &[bool],
    ) -> Result<Vec<Array>> {
        let Rows { x, targets, parameters, rows } = self.rows(inputs)?;
        let cotangent = cotangent.reshape([rows])?;
        // A packed weight is a constant, so its parts are skipped; the array after them is the
        // bias.
        let constants = match self.packed {
            None => 0,
            Some((.., QuantizedMode::Affine)) => 3,
            Some(_) => 2,
        };
        let (fixed, trained) = parameters.split_at(constants.min(parameters.len()));
        let is_wanted = |input: usize| wanted.get(input).copied().unwrap_or(false);
        let first_trained = inputs.len() - trained.len();

        let mut of_x: Vec<Array> = Vec::new();
        let mut sums: Vec<Array> = Vec::new();
        for chunk in self.chunks(rows) {
            let mut x = x.slice_axis(0, chunk.clone())?;
            let done = of_x.last().filter(|_| is_wanted(0)).into_iter();
            let summed = sums.iter().enumerate().filter(|(i, _)| is_wanted(first_trained + i));
            let before: Vec<Array> =
                done.chain(summed.map(|(_, sum)| sum)).map(one_of).collect::<Result<_>>()?;
            if !before.is_empty() {
                x = transforms::after(&x, &before)?;
            }
            let targets = targets.slice_axis(0, chunk.clone())?;
            let at: Vec<&Array> = [&x].into_iter().chain(trained).collect();
            let losses = |at: Vec<Array>| {
                let (x, trained) = at.split_first().ok_or_else(|| Error::argument(OP, "rows"))?;
                self.losses_of(x, &targets, &[fixed, trained].concat())
            };
            let cotangent = cotangent.slice_axis(0, chunk)?;
            let (_, gradients): (Array, _) = transforms::vjp(losses, &at[..], &cotangent)?;
            let mut gradients = gradients.into_iter();
            of_x.extend(gradients.next());
            let gradients = gradients.map(|gradient| gradient.astype(Dtype::Float32));
            sums = match sums.is_empty() {
                true => gradients.collect::<Result<_>>()?,
                false => sums
                    .iter()
                    .zip(gradients)
                    .map(|(sum, of)| sum.add(&of?))
                    .collect::<Result<_>>()?,
            };
        }

        let zeros = |input: &Array| Array::zeros_of(input.shape(), input.dtype());
        let mut all = Vec::with_capacity(inputs.len());
        for (i, input) in inputs.iter().enumerate() {
            all.push(match (i, i.checked_sub(first_trained).and_then(|i| sums.get(i))) {
                (0, _) => {
                    concatenate(&of_x.iter().collect::<Vec<_>>(), 0)?.reshape(input.shape())?
                }
                (_, Some(sum)) => sum.astype(input.dtype())?,
                (_, None) => zeros(input)?,
            });
        }
        Ok(all)
    }
}

/// The negative of one element of `array`, as an array. MLX computes the negative after `array`. A
/// node with the negative as an input waits for `array`, but does not keep its memory in use.
fn one_of(array: &Array) -> Result<Array> {
    let mut one = array.clone();
    for axis in 0..i32::try_from(array.ndim()).unwrap_or(0) {
        one = one.slice_axis(axis, ..1)?;
    }
    one.negative()
}
