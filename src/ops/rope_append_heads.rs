use super::{KvLayout, RopeAppend};
use crate::array::{Array, from_list};
use crate::error::{Error, Result};
use crate::ffi::ops::bridge as ffi;

/// The queries, keys and values of a fused projection by heads, with queries and keys rotated as
/// [`rope_append`](super::rope_append) does: `[batch, heads, time, head_dim]` each, where keys and
/// values have `kv_heads` heads.
///
/// `qkv` is `[batch, time, (heads + 2 * kv_heads) * head_dim]`. The layout's capacity and the
/// options' slots are ignored. Differentiable in `qkv`, by one kernel.
///
/// # Cost
///
/// One kernel moves `2 t w + 1` elements for t positions of w columns in all batch entries. The
/// gradient is one kernel, which keeps the offset and not `qkv`.
///
/// # Errors
///
/// Returns an error for a projection of another shape, a type other than float32, float16 and
/// bfloat16, and a rotation that [`rope`](super::rope) refuses.
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
