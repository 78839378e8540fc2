use super::{Attention, Offset, Rope};
use crate::array::{Array, from_list, or_null};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ffi::bridge::MlxArray;
use crate::ffi::ops::bridge as ffi;

/// The layout of the key/value cache of a layer, called its state. The state is an array
/// `[batch, rows, head_dim]`. Its first rows are an area for the queries of a step. Then come
/// `capacity` rows of keys for each key head, and then the values in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// The number of query heads.
    pub heads: i32,
    /// The number of key heads, which is also the number of value heads.
    pub kv_heads: i32,
    /// The number of features of a head.
    pub head_dim: i32,
    /// The number of positions whose keys and values fit into the state.
    pub capacity: i32,
}

impl KvLayout {
    /// The maximum number of positions of a step whose queries fit into the state's query area.
    pub const QUERY_POSITIONS: i32 = mlx_primitives_kernels::QUERY_POSITIONS as i32;

    /// The number of rows of the query area, which lies before the first key.
    fn area(&self) -> i32 {
        self.heads.saturating_mul(Self::QUERY_POSITIONS)
    }

    /// The number of rows of a state.
    pub fn rows(&self) -> i32 {
        let stored = self.kv_heads.saturating_mul(2).saturating_mul(self.capacity);
        self.area().saturating_add(stored)
    }

    /// An empty state: zeros `[batch, rows, head_dim]` of the type `dtype`.
    ///
    /// # Errors
    ///
    /// Returns an error if the batch is negative, or the state would have 2^47 bytes or more.
    pub fn zeros(&self, batch: i32, dtype: Dtype) -> Result<Array> {
        Array::zeros_of([batch, self.rows(), self.head_dim], dtype)
    }

    /// The rotated queries of the last step, which had `time` positions: a view
    /// `[batch, heads, time, head_dim]`.
    ///
    /// # Errors
    ///
    /// Returns an error if `time` is negative or more than
    /// [`Self::QUERY_POSITIONS`](Self::QUERY_POSITIONS), or `state` does not have this layout.
    pub fn queries(&self, state: &Array, time: i32) -> Result<Array> {
        if !(0..=Self::QUERY_POSITIONS).contains(&time) {
            return Err(Error::argument(
                "queries",
                format_args!("at most {} positions, got {time}", Self::QUERY_POSITIONS),
            ));
        }
        self.check("queries", state)?;
        let shape = [state.dim(0)?, self.heads, time, self.head_dim];
        state.i((.., 0..self.heads * time))?.reshape(shape)
    }

    /// The keys of the first `len` positions: a view `[batch, kv_heads, len, head_dim]`.
    ///
    /// # Errors
    ///
    /// Returns an error if `len` is negative or above the capacity, or `state` does not have this
    /// layout.
    pub fn keys(&self, state: &Array, len: i32) -> Result<Array> {
        self.stored("keys", state, 0, len)
    }

    /// The values of the first `len` positions: a view `[batch, kv_heads, len, head_dim]`.
    ///
    /// # Errors
    ///
    /// Returns an error if `len` is negative or above the capacity, or `state` does not have this
    /// layout.
    pub fn values(&self, state: &Array, len: i32) -> Result<Array> {
        self.stored("values", state, 1, len)
    }

    /// The [`keys`](Self::keys) and the [`values`](Self::values), with fewer nodes in the graph.
    #[doc(hidden)]
    pub fn keys_and_values(&self, state: &Array, len: i32) -> Result<[Array; 2]> {
        if !(0..=self.capacity).contains(&len) {
            return Ok([self.keys(state, len)?, self.values(state, len)?]);
        }
        self.check("keys_and_values", state)?;
        let shape = [state.dim(0)?, 2 * self.kv_heads, self.capacity, self.head_dim];
        let all = state.i((.., self.area()..))?.reshape(shape)?;
        let of_heads = |heads: std::ops::Range<i32>| all.i((.., heads, ..len));
        Ok([of_heads(0..self.kv_heads)?, of_heads(self.kv_heads..2 * self.kv_heads)?])
    }

    fn stored(&self, what: &str, state: &Array, part: i32, len: i32) -> Result<Array> {
        if !(0..=self.capacity).contains(&len) {
            return Err(Error::argument(
                what,
                format_args!("at most {} positions, got {len}", self.capacity),
            ));
        }
        self.check(what, state)?;
        let rows = self.kv_heads * self.capacity;
        let start = self.area() + part * rows;
        let shape = [state.dim(0)?, self.kv_heads, self.capacity, self.head_dim];
        let all = state.i((.., start..start + rows))?.reshape(shape)?;
        if len == self.capacity { Ok(all) } else { all.i((.., .., ..len)) }
    }

    fn check(&self, what: &str, state: &Array) -> Result<()> {
        match *state.shape() {
            [_, rows, features] if rows == self.rows() && features == self.head_dim => Ok(()),
            ref other => Err(Error::argument(
                what,
                format_args!("a state [batch, {}, {}], got {other:?}", self.rows(), self.head_dim),
            )),
        }
    }
}

/// Options that say how [`rope_append`] rotates queries and keys, and where it writes them.
#[derive(Clone, Copy, Debug)]
pub struct RopeAppend<'a> {
    /// The rotation; its offset is the position of the step's first row.
    pub rope: Rope<'a>,
    /// A factor for the rotated features, applied before the rotation. The product is rounded to
    /// the type of `qkv`. The default is 1.
    pub multiplier: f32,
    /// The first position of the state to write keys and values to. With `None` it is the offset of
    /// the rotation.
    pub slots: Option<Offset<'a>>,
}

impl Default for RopeAppend<'_> {
    fn default() -> Self {
        Self { rope: Rope::default(), multiplier: 1.0, slots: None }
    }
}

impl<'a> From<Rope<'a>> for RopeAppend<'a> {
    fn from(rope: Rope<'a>) -> Self {
        Self { rope, ..Self::default() }
    }
}

/// One step of decoding: rotates the queries and keys of a fused projection, and writes them and
/// the values into a layer's state. Returns the new state. If nothing else references the state's
/// buffer, the kernel writes the positions of the step in place, and the result uses this buffer.
/// Otherwise the buffer is copied first.
///
/// `qkv` is `[batch, time, (heads + 2 * kv_heads) * head_dim]` of the state's type. Queries and
/// keys have the same bits as the result of [`rope`](super::rope). The first position to write keys
/// and values to is `slots`, or else the rotation's offset. The queries are written into their
/// area; [`KvLayout::queries`] returns them. Queries of more than [`KvLayout::QUERY_POSITIONS`]
/// positions do not fit into the area, and are not written.
///
/// Differentiable in `state` and `qkv`.
///
/// # Cost
///
/// One kernel moves `2 t w + 2` elements, where t is the number of positions in all batch entries
/// and w is the number of columns of `qkv`. If a step has more than eight positions, the queries
/// are not moved, and do not count. The kernel computes three operations for each rotated feature.
/// If something else references the state's buffer, another kernel copies it first. The gradient
/// takes one kernel. It keeps the offset, the slots and `freqs` in memory, but neither `state` nor
/// `qkv`.
///
/// # Errors
///
/// Returns an error if the shapes or types do not fit together, if [`rope`](super::rope) refuses
/// the rotation, if there are more positions than the capacity, or if a slot outside the capacity
/// is known when the op is built. If `slots` is the result of a computation, the op cannot check
/// it; the kernel then skips all positions outside the capacity.
///
/// ```
/// use mlx_primitives::ops::{self, Rope, KvLayout};
/// use mlx_primitives::{Array, Dtype};
///
/// let layout = KvLayout { heads: 4, kv_heads: 2, head_dim: 64, capacity: 256 };
/// let mut state = layout.zeros(1, Dtype::Float32)?;
/// for position in 0..3 {
///     let qkv = Array::ones::<f32>(&[1, 1, (4 + 2 * 2) * 64])?;
///     let rope = Rope { dims: 64, offset: position.into(), ..Default::default() };
///     state = ops::rope_append(&state, &qkv, layout, rope.into())?;
/// }
/// assert_eq!(layout.queries(&state, 1)?.shape(), [1, 4, 1, 64]);
/// assert_eq!(layout.keys(&state, 3)?.shape(), [1, 2, 3, 64]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn rope_append(
    state: &Array,
    qkv: &Array,
    layout: KvLayout,
    options: RopeAppend<'_>,
) -> Result<Array> {
    let Arguments { offset, slots, freqs, layout, rotation } = options.arguments(layout)?;
    let (state, qkv, slots) = (state.raw(), qkv.raw(), or_null(slots.as_ref()));
    // SAFETY: both pointers are null or belong to borrowed arrays, which outlive the call.
    Array::from_bridge(unsafe {
        ffi::rope_append(state, qkv, &layout, &rotation, freqs, offset.raw(), slots)
    })
}

/// [`rope_append`] and the [`attention`](super::attention) of the step's queries over the first
/// `len` positions of the state, as one node. Returns the new state, and the result
/// `[batch, time, heads * head_dim]`, in which the heads of a position are concatenated.
///
/// A step has at most [`KvLayout::QUERY_POSITIONS`] positions. The results have the same bits as
/// the two ops, connected by [`KvLayout::queries`], [`KvLayout::keys`] and [`KvLayout::values`].
/// The graph has fewer nodes, so it takes less time to build and to queue. The mask broadcasts to
/// `[batch, heads, time, len]`.
///
/// Differentiable in the state, `qkv`, an additive mask and the sinks.
///
/// # Cost
///
/// The node runs the kernels of [`rope_append`], and then the kernels of
/// [`attention`](super::attention) over `len` positions. The gradient runs [`rope_append`] again.
/// It keeps `state` and `qkv` in memory, but no scores.
///
/// # Errors
///
/// Returns an error for arguments that [`rope_append`] or [`attention`](super::attention) refuses,
/// for a step of too many positions, and if `len` is less than 1 or more than the capacity.
///
/// ```
/// use mlx_primitives::ops::{self, Attention, KvLayout, Rope};
/// use mlx_primitives::{Array, Dtype};
///
/// let layout = KvLayout { heads: 4, kv_heads: 2, head_dim: 64, capacity: 256 };
/// let mut state = layout.zeros(1, Dtype::Float32)?;
/// for position in 0..3 {
///     let qkv = Array::ones::<f32>(&[1, 1, (4 + 2 * 2) * 64])?;
///     let rope = Rope { dims: 64, offset: position.into(), ..Default::default() };
///     let (len, rules) = (position + 1, Attention::default());
///     let (new, attended) =
///         ops::rope_append_attention(&state, &qkv, layout, rope.into(), len, rules)?;
///     assert_eq!(attended.shape(), [1, 1, 4 * 64]);
///     state = new;
/// }
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn rope_append_attention(
    state: &Array,
    qkv: &Array,
    layout: KvLayout,
    options: RopeAppend<'_>,
    len: i32,
    attention: Attention<'_>,
) -> Result<(Array, Array)> {
    let rules = attention.rules(layout.head_dim)?;
    let (mask, sinks) = (or_null(attention.mask), or_null(attention.sinks));
    let Arguments { offset, slots, freqs, layout, rotation } = options.arguments(layout)?;
    let (state, qkv, offset) = (state.raw(), qkv.raw(), offset.raw());
    let slots = or_null(slots.as_ref());
    // SAFETY: the pointers are null or belong to borrowed arrays, which outlive the call.
    let both = from_list(&*unsafe {
        ffi::rope_append_attention(
            state, qkv, &layout, &rotation, freqs, offset, slots, len, &rules, mask, sinks,
        )
    }?);
    let [state, attended] = both
        .try_into()
        .map_err(|_| Error::argument("rope_append_attention", "a state and a result"))?;
    Ok((state, attended))
}

/// The arguments of the ops on states, in the types that the C++ bridge takes.
pub(super) struct Arguments {
    pub offset: Array,
    slots: Option<Array>,
    pub freqs: *const MlxArray,
    pub layout: ffi::AppendLayout,
    pub rotation: ffi::AppendRotation,
}

impl RopeAppend<'_> {
    pub(super) fn arguments(&self, layout: KvLayout) -> Result<Arguments> {
        let Self { rope, multiplier, slots } = *self;
        let KvLayout { heads, kv_heads, head_dim, capacity } = layout;
        Ok(Arguments {
            offset: rope.offset.to_array()?,
            slots: slots.map(|slots| slots.to_array()).transpose()?,
            freqs: or_null(rope.freqs),
            layout: ffi::AppendLayout { heads, kv_heads, head_dim, capacity },
            rotation: ffi::AppendRotation {
                dims: rope.dims,
                traditional: rope.traditional,
                has_base: rope.base.is_some(),
                base: rope.base.unwrap_or(1.0),
                scale: rope.scale,
                multiplier,
            },
        })
    }
}
