//! Exact products with the few rows of a short prompt. The GEMM of `prefill` has a lane for each
//! row of x, and would leave most lanes empty. These products have a lane for each of sixteen rows
//! of weights (`lanes`), and the same bits.

use super::columns::Columns;
use super::finish::Finish;
use super::lanes::InLanes;
use super::order::each_range;
use super::prepare::{OfX, Prepared};
use super::{Call, Mode, prefill};
use crate::Machine;
use crate::element::Float;
use crate::linear::gemv::with_floats;

/// The largest number of rows for which these products are faster, measured on a Xeon with AVX-512
/// and with AVX2.
const MOST: usize = 24;

/// Whether a call can use these products and saves time with them. They are compiled for the
/// instruction sets of [`int8`](super::int8). The codes of `Mxfp8` are not integers. Tile
/// instructions multiply sixteen rows of bf16.
pub(super) fn takes<T: Float>(machine: Machine, call: &Call) -> bool {
    let level = machine.level;
    call.rows <= MOST
        && (level.dots_bytes() || level.adds_pairs_of_bytes())
        && !(T::IS_BF16 && level.multiplies_tiles())
        && !matches!(call.mode, Mode::Mxfp8 | Mode::Plain)
        && call.low_rank.is_none()
}

/// # Safety
/// The contract of [`super::quantized_matmul`]; [`takes`] holds.
pub(super) unsafe fn run<T: Float>(machine: Machine, call: &Call) {
    // SAFETY: the caller's contract.
    unsafe {
        prefill::normalized::<T>(machine, call, &|x| {
            let finish = &Finish::new::<T>(machine, call);
            if T::IS_BF16 && machine.level.dots_bf16() {
                return multiply(machine, call, finish, OfX::Pairs, x.cast());
            }
            with_floats(machine, x, call.rows * call.axis, &|x| {
                multiply(machine, call, finish, OfX::Floats, x.cast());
            });
        });
    }
}

/// Multiplies rows of x, which are in the format `of_x`.
///
/// # Safety
/// The contract of [`run`] holds.
unsafe fn multiply(machine: Machine, call: &Call, finish: &Finish, of_x: OfX, x: *const u8) {
    let of_element = if of_x == OfX::Pairs { size_of::<u16>() } else { size_of::<f32>() };
    let prepared = &Prepared::in_place(of_x, x, call.rows, call.axis * of_element);
    each_range(machine, call, call.bits as usize, &|range| {
        let columns = Columns { call, prepared, finish, range };
        // SAFETY: the caller's contract; the ranges of columns are disjoint.
        unsafe { machine.level.run(InLanes(columns)) };
    });
}
