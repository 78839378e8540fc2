use super::{KvLayout, RopeAppend};
use crate::array::{Array, from_list};
use crate::error::{Error, Result};
use crate::ffi::ops::bridge as ffi;

/// Splits a fused projection into queries, keys and values by heads, and rotates the queries and
/// keys like [`rope_append`](super::rope_append). The queries are `[batch, heads, time, head_dim]`;
/// the keys and the values are `[batch, kv_heads, time, head_dim]`.
///
/// `qkv` is `[batch, time, (heads + 2 * kv_heads) * head_dim]`. The capacity of `layout` and the
/// slots of `options` are ignored. Differentiable in `qkv`.
///
/// # Cost
///
/// One kernel moves `2 t w + 1` elements, where t is the number of positions in all batch entries
/// and w is the number of columns of `qkv`. The gradient takes one kernel. It keeps the offset and
/// `freqs` in memory, but not `qkv`.
///
/// # Errors
///
/// Returns an error if `qkv` has another shape, if its type is not float32, float16 or bfloat16, or
/// if [`rope`](super::rope) refuses the rotation.
///
/// ```
/// use mlx_primitives::ops::{self, KvLayout, Rope};
/// use mlx_primitives::Array;
///
/// let layout = KvLayout { heads: 4, kv_heads: 2, head_dim: 64, capacity: 0 };
/// let qkv = Array::ones::<f32>(&[1, 9, (4 + 2 * 2) * 64])?;
/// let rope = Rope { dims: 64, ..Default::default() };
/// let [queries, keys, values] = ops::rope_heads(&qkv, layout, rope.into())?;
/// assert_eq!(queries.shape(), [1, 4, 9, 64]);
/// assert_eq!(keys.shape(), values.shape());
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
#[doc(hidden)]
pub fn rope_heads(qkv: &Array, layout: KvLayout, options: RopeAppend<'_>) -> Result<[Array; 3]> {
    let all = options.arguments(layout)?;
    // SAFETY: the pointer is null or belongs to a borrowed array, which outlives the call.
    let parts = from_list(&*unsafe {
        ffi::rope_heads(qkv.raw(), &all.layout, &all.rotation, all.freqs, all.offset.raw())
    }?);
    parts.try_into().map_err(|_| Error::argument("rope_heads", "queries, keys and values"))
}
