//! How weights and digits of x lie in vectors and tiles.

use crate::quantized_matmul::format::Format;
use crate::simd::tiles::DIGITS;
use crate::simd::{F32x16, LANES};

/// Rows of x whose digits are a tile.
pub(super) const TOKENS: usize = LANES / DIGITS;
/// Weights in a word of four bytes of x.
pub(super) const WORD: usize = 4;
/// The bytes of a vector.
pub(super) const BYTES: usize = WORD * LANES;
/// Sums of an output, each of every fourth group.
pub(super) const APART: usize = 4;

/// Elements of two chunks.
pub(super) const fn pair<F: Format>() -> usize {
    2 * F::CHUNK
}

/// Whether two chunks are whole groups and both words of eight bytes that add up in the same lanes
/// are of one group.
pub(super) const fn is_whole(group: usize, bits: u32) -> bool {
    group * bits as usize >= 2 * 64
}

/// The weights of words, one position of each byte after the other.
#[inline(always)]
pub(super) fn weights<V: F32x16, F: Format>(words: V::Int, position: usize) -> V::Int {
    match F::BITS {
        8 => words,
        bits => V::byte_fields(words, bits * position as u32, bits),
    }
}
