//! Products of 16-bit x with weights of two, four or eight bits, computed in integers. The order of
//! the sums is `RowOrder::Tokens`.
//!
//! Within a group of weights, x is represented as `unit * (65536 a + 256 b + c)`, with signed bytes
//! a, b and c, the digits. The unit is a power of two that fits the group's largest element. bf16
//! elements are exact down to 2^-14 of the largest element, and f16 elements down to 2^-11. Smaller
//! elements have an error of at most 2^-22 of the largest element. The products of bytes are added
//! up exactly, as integers over the whole group, and then a conversion to f32 rounds the sum. So
//! the order of these additions does not matter, and tiles and vectors give equal bits.
//!
//! Groups whose indices are equal modulo four share one f32 accumulator, which adds up the sums of
//! these groups one after another. [`row`] multiplies one row of x, and [`tiles`] several rows.

mod layout;
mod row;
mod split;
mod tiles;

use std::marker::PhantomData;
use std::ops::Range;

use super::Call;
use super::format::Format;
use super::operands::{Kind, MOST_ROWS, Operands};
use crate::Machine;
use crate::element::Float;
use crate::simd::tiles::DIGITS;
use crate::simd::{F32x16, LANES};
use layout::{TOKENS, WORD};
pub(super) use split::prepare;

/// The largest number of rows of x in a band (the rows that are multiplied together). It is a
/// multiple of the rows of a tile, so that no tile has rows of two bands.
const BAND: usize = MOST_ROWS / TOKENS * TOKENS;

/// Whether these products support a call on this machine.
pub(super) fn takes(machine: Machine, call: &Call) -> bool {
    machine.level.adds_digits() && layout::is_whole(call.group, call.bits)
}

/// Whether these products support an element type and a format of weights.
pub(super) const fn support<T: Float, F: Format>() -> bool {
    F::AFFINE && F::BITS.is_power_of_two() && size_of::<T>() == 2
}

/// The number of rows (one for each digit of a row of x) and of 32-bit words in a tile of x.
pub(super) fn tile(call: &Call) -> [usize; 2] {
    [DIGITS * call.rows.min(TOKENS), LANES.min(call.group / WORD)]
}

/// Returns the [`Kind`] of these products, which the loop over bands of rows uses.
pub(super) fn kind<V: F32x16, T: Float, F: Format>() -> Kind {
    Kind {
        bits: F::BITS as usize,
        affine: true,
        element: Some(T::ELEMENT),
        band: BAND,
        multiply: multiply::<V, T, F>,
    }
}

/// # Safety
/// The contract of [`Kind::multiply`]; the machine has the features of the vectors.
unsafe fn multiply<V: F32x16, T: Float, F: Format>(
    first: Operands,
    count: usize,
    band: Range<usize>,
    to: *mut [f32; LANES],
) {
    let types = PhantomData::<(T, F)>;
    // SAFETY: the caller's contract.
    unsafe {
        if band.len() == 1 && first.prepared.rows() == DIGITS {
            return row::multiply::<V, T, F>(first, count, to);
        }
        V::part(tiles::Rows { first, count, band, to: to.cast(), types });
    }
}
