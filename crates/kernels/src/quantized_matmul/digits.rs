//! Products of tokens of 16-bit x with weights of two, four or eight bits, in integers.
//!
//! Within a group of weights, x is `unit * (65536 a + 256 b + c)` with signed bytes a, b and c, and
//! a power of two that suits the group's largest element. bf16 elements down to 2^-14 of it are
//! exact, f16 elements down to 2^-11, and smaller ones are off by at most 2^-22 of it. Products of
//! bytes are added up as integers over the whole group, which loses nothing, before a conversion to
//! f32 rounds them. So their order is free, and tiles and vectors give equal bits.
//!
//! The products of groups that are equal modulo four are added up in f32 one after the other.
//! [`row`] multiplies one row of x, and [`tiles`] several.

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

/// The most rows of x of a band: whole tiles, so that x has rows for the last tile of each.
const BAND: usize = MOST_ROWS / TOKENS * TOKENS;

/// Whether these products support a call on this machine.
pub(super) fn takes(machine: Machine, call: &Call) -> bool {
    machine.level.adds_digits() && layout::is_whole(call.group, call.bits)
}

/// Whether these products support the types.
pub(super) const fn support<T: Float, F: Format>() -> bool {
    F::AFFINE && F::BITS.is_power_of_two() && size_of::<T>() == 2
}

/// The rows and words of tiles of x, for a call.
pub(super) fn tile(call: &Call) -> [usize; 2] {
    [DIGITS * call.rows.min(TOKENS), LANES.min(call.group / WORD)]
}

/// Products of digits, for the loop over columns.
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
