//! The layout of weights and of digits in vectors and tiles. The digits are the signed bytes into
//! which x is split.

use crate::quantized_matmul::format::Format;
use crate::simd::tiles::DIGITS;
use crate::simd::{F32x16, LANES};

/// The number of rows of x whose digits fill a tile.
pub(super) const TOKENS: usize = LANES / DIGITS;
/// The number of weights that are multiplied with one word of x. A word has four bytes.
pub(super) const WORD: usize = 4;
/// The number of bytes in a vector.
pub(super) const BYTES: usize = WORD * LANES;
/// The number of sums of an output. Each sum adds up every fourth group.
pub(super) const APART: usize = 4;

/// The number of elements in two chunks. A chunk is sixteen lanes of packed weights.
pub(super) const fn pair<F: Format>() -> usize {
    2 * F::CHUNK
}

/// Whether the groups are long enough for these products: the sixteen bytes of packed weights that
/// one lane adds up must belong to the same group. Two chunks have complete groups in any case,
/// since MLX's groups have at most 128 weights.
pub(super) const fn is_whole(group: usize, bits: u32) -> bool {
    group * bits as usize >= 2 * 64
}

/// Returns the weights at one position of every byte of the words.
#[inline(always)]
pub(super) fn weights<V: F32x16, F: Format>(words: V::Int, position: usize) -> V::Int {
    match F::BITS {
        8 => words,
        bits => V::byte_fields(words, bits * position as u32, bits),
    }
}
