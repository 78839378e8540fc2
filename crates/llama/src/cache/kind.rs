/// The buffers of a layer grow to multiples of this number of positions. Only the buffer of a
/// rotating cache can have another size.
pub(crate) const STEP: i32 = 256;

/// How a cache stores keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheKind {
    /// Stores all positions, in the model's type.
    #[default]
    Plain,
    /// Stores all positions, quantized to codes of 2 to 8 bits
    /// ([`ops::quantize`](mlx_primitives::ops::quantize)).
    Quantized {
        /// The number of elements that share a scale: 32, 64 or 128. The number of features of a
        /// head must be a multiple of it.
        group_size: i32,
        /// The number of bits of a code: 2, 3, 4, 5, 6 or 8.
        bits: i32,
    },
    /// Stores the first `keep` positions and the latest ones, like mlx-lm's `RotatingKVCache`. In a
    /// full cache, a step of one position overwrites the oldest position after the first `keep`.
    Rotating {
        /// The greatest number of positions that are stored. Only a step of several positions may
        /// leave more, until the next step.
        max_size: i32,
        /// The number of first positions that are never overwritten. It is less than `max_size`.
        keep: i32,
    },
}

/// The capacity for `len` positions: `len` rounded up to a multiple of [`STEP`].
pub(crate) fn rounded_up(len: i32) -> i32 {
    (len / STEP + i32::from(len % STEP > 0)).saturating_mul(STEP)
}
