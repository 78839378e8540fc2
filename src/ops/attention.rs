use crate::array::{Array, from_list, or_null, to_list};
use crate::error::Result;
use crate::ffi::ops::bridge as ffi;
use crate::tune::chosen;

/// The options of attention. Attention scales, caps and masks the scores `q·kᵀ`, in this order, and
/// then takes their softmax.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attention<'a> {
    /// The factor of the scores. With `None` it is `1 / sqrt(d)`, where d is the head dimension.
    pub scale: Option<f32>,
    /// Whether each query sees only the keys up to its own position. The last query is at the
    /// position of the last key.
    pub causal: bool,
    /// The size of a sliding window: a query sees this many keys, and the last of them is at the
    /// query's position. A window implies `causal`. With `None` there is no window.
    pub window: Option<i32>,
    /// Either bools that are true where a query sees a key, or floats that are added to the scores.
    /// The mask broadcasts to `[batch, heads, queries, keys]`. It is read in place, with any
    /// strides, unless floats must be converted to the type of the result.
    pub mask: Option<&'a Array>,
    /// Replaces each score by `cap * tanh(score / cap)`, as Gemma 2 does. With `None` there is no
    /// cap.
    pub soft_cap: Option<f32>,
    /// One extra logit for each head, `[heads]`. It adds to the denominator of the softmax, but no
    /// value belongs to it.
    pub sinks: Option<&'a Array>,
    /// The number of keys that were dropped from the start of the sequence. With it, a prompt on a
    /// CPU adds up the remaining keys in the order of the full sequence: see
    /// [`RowOrder`](super::RowOrder).
    pub dropped: i32,
}

impl Attention<'_> {
    pub(super) fn rules(&self, dim: i32) -> Result<ffi::AttentionRules> {
        // C++ reads 0 as `None` and refuses -1, so -1 stands for every number that is not allowed.
        let window = self.window.map_or(0, |window| if window > 0 { window } else { -1 });
        let soft_cap = self.soft_cap.map_or(0.0, |cap| if cap > 0.0 { cap } else { -1.0 });
        let scale = self.scale.unwrap_or_else(|| 1.0 / (dim.max(1) as f32).sqrt());
        let causal = self.causal || self.window.is_some();
        let dropped = self.dropped.max(0);
        Ok(ffi::AttentionRules { scale, causal, window, soft_cap, dropped })
    }
}

/// The number of features of a head.
fn head_dim(q: &Array) -> i32 {
    q.shape().last().copied().unwrap_or(1)
}

/// The number of queries of each head.
fn queries(q: &Array) -> usize {
    q.shape().iter().rev().nth(1).map_or(1, |&dim| dim.unsigned_abs() as usize)
}

/// Keys or values in MLX's affine layout: the result of `mlx.quantize` for an array `[..., d]`.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedRows<'a> {
    /// The packed integers, uint32: `[batch, kv_heads, keys, d * bits / 32]`.
    pub packed: &'a Array,
    /// The scale of each group: `[batch, kv_heads, keys, d / group_size]`.
    pub scales: &'a Array,
    /// The bias of each group, of the shape and type of the scales.
    pub biases: &'a Array,
}

/// Scaled dot-product attention ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)) in one
/// pass over keys and values ([Dao et al. 2022](https://arxiv.org/abs/2205.14135)):
/// `softmax(scale * q·kᵀ) · v`.
///
/// `q` is `[batch, heads, queries, d]`, `k` is `[batch, kv_heads, keys, d]` and `v`
/// `[batch, kv_heads, keys, e]`, with `heads` a multiple of `kv_heads`, and d and e at most 256.
/// The arrays may have any strides, such as views of a larger cache: nothing is copied, unless
/// types differ. The result is `[batch, heads, queries, e]`, of the type that the three arrays
/// promote to. It lies in memory as `[batch, queries, heads, e]`: `transpose(&[0, 2, 1, 3])` and a
/// `reshape` that joins the heads copy nothing. Scores and sums are float32. Only the result is
/// rounded to its type. A query that sees no key gives all keys the same weight, as in MLX. The
/// result of a query is NaN if a mask adds -inf to all its scores, and 0 if there are no keys. The
/// values of other queries do not change a bit of a query's result. Their number may, unless
/// [`RowOrder`](super::RowOrder) fixes the order of additions.
///
/// Differentiable in all arrays except a mask of bools.
///
/// # Cost
///
/// One kernel moves `h l d + g s d + g s e + h l e` elements for each batch entry of h heads, g
/// key/value heads, l queries and s keys, and computes `2 h l s (d + e)` operations. If few queries
/// see many keys, the keys are split into parts, and a second kernel joins the results of the
/// parts. The gradient in `q` takes two kernels; the gradients in `q`, `k` and `v` take four. They
/// compute the scores again, so the forward pass keeps no scores.
///
/// # Errors
///
/// Returns an error if the shapes do not fit together, d or e is above 256, the type of the mask or
/// of the sinks does not promote to the result's type, the window is below 1, the cap is not
/// positive, or a type is not float32, float16 or bfloat16.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let q = Array::from_slice(&[1.0f32, 0.0], &[1, 1, 1, 2])?;
/// let k = Array::from_slice(&[1.0f32, 0.0, 0.0, 1.0], &[1, 1, 2, 2])?;
/// let y = ops::attention(&q, &k, &k, ops::Attention::default())?.to_vec::<f32>()?;
/// let weight = 1.0 / (1.0 + (-0.5f32.sqrt()).exp());
/// assert!((y[0] - weight).abs() < 1e-6 && (y[1] - (1.0 - weight)).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn attention(q: &Array, k: &Array, v: &Array, options: Attention<'_>) -> Result<Array> {
    let rules = options.rules(head_dim(q))?;
    let (mask, sinks) = (or_null(options.mask), or_null(options.sinks));
    // SAFETY: the pointers are null or belong to borrowed arrays, which outlive the call.
    let built = unsafe { ffi::attention(q.raw(), k.raw(), v.raw(), &rules, mask, sinks) };
    chosen(format_args!("attention of {}", head_dim(q)), || queries(q), built)
}

/// [`attention`] over quantized keys and values. The kernel dequantizes them in registers.
///
/// `bits` is 4 or 8. `group_size` is 32, 64 or 128, and divides d and e. The result has the type
/// that `q`, the scales and the biases promote to. Differentiable in `q`, an additive mask and the
/// sinks. Scales and biases have gradients, and other derivatives if MLX's `quantized_matmul` has.
///
/// # Cost
///
/// One kernel moves `h l d + p + h l e` elements, where p is the size of the packed keys and values
/// in bytes, divided by the size of an element. The numbers of kernels and operations are as in
/// [`attention`]. The gradient dequantizes keys and values once.
///
/// # Errors
///
/// Returns an error for arguments that [`attention`] refuses, and for other values of `bits` or
/// `group_size` and other shapes.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// // 32 numbers of 4 bits, all 1, times 0.5 plus 0.25.
/// let packed = Array::full(&[1, 1, 2, 4], 0x1111_1111u32)?;
/// let scales = Array::full(&[1, 1, 2, 1], 0.5f32)?;
/// let biases = Array::full(&[1, 1, 2, 1], 0.25f32)?;
/// let rows = ops::QuantizedRows { packed: &packed, scales: &scales, biases: &biases };
/// let q = Array::full(&[1, 1, 1, 32], 1.0f32)?;
/// let y = ops::attention_quantized(&q, rows, rows, 4, 32, ops::Attention::default())?;
/// assert!(y.to_vec::<f32>()?.iter().all(|y| (y - 0.75).abs() < 1e-6));
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn attention_quantized(
    q: &Array,
    k: QuantizedRows<'_>,
    v: QuantizedRows<'_>,
    bits: i32,
    group_size: i32,
    options: Attention<'_>,
) -> Result<Array> {
    let rules = options.rules(head_dim(q))?;
    let (mask, sinks) = (or_null(options.mask), or_null(options.sinks));
    let list = |rows: QuantizedRows<'_>| to_list([rows.packed, rows.scales, rows.biases]);
    // SAFETY: the pointers are null or belong to borrowed arrays, which outlive the call.
    let built = unsafe {
        ffi::attention_quantized(q.raw(), &list(k), &list(v), bits, group_size, &rules, mask, sinks)
    };
    chosen(
        format_args!("attention_quantized of {}, {bits} bits", head_dim(q)),
        || queries(q),
        built,
    )
}

/// The composition of MLX's ops that an NVIDIA GPU runs in place of `ours`, a result of
/// [`attention`] or [`attention_quantized`] that is not evaluated yet.
///
/// # Errors
///
/// Returns an error if `ours` is any other array.
pub fn dequantizing_composition(ours: &Array) -> Result<Option<Array>> {
    Ok(from_list(&*ffi::dequantizing_composition(ours.raw())?).into_iter().next())
}
