//! Computes functions of 16-bit elements with tables of all values. A lookup takes a tenth of the
//! time of computing the function.

use std::ops::Range;

use crate::Machine;
use crate::element::Float;
use crate::output::Output;
use crate::simd::{F32x16, Kernel, LANES, prefetch_block};

/// The number of 16-bit patterns.
pub const ALL: usize = 1 << 16;
/// The largest number of elements that one call of `look_up` processes.
pub const BATCH: usize = 512;

pub type Table = [u16; ALL];

/// `out[i] = table[x[i]]`.
///
/// # Safety
/// `x` and `out` must hold the elements of the range, and T must have 16 bits. `out` may be `x`.
pub unsafe fn map<T: Float>(
    machine: Machine,
    table: &Table,
    x: *const T,
    out: Output<T>,
    range: Range<usize>,
) {
    let mut values = [0; BATCH];
    for start in range.clone().step_by(BATCH) {
        let count = BATCH.min(range.end - start);
        // SAFETY: the elements are within the range, and there are at most `BATCH` of them. The
        // code reads them before it overwrites them.
        unsafe {
            look_up(table, x.add(start).cast(), &mut values[..count]);
            machine.level.run(Stored { values: &values[..count], out: out.add(start) });
        }
    }
}

/// Looks up each element of `x`. This function uses no SIMD instructions, because gather
/// instructions are slower than plain loads. It packs four values into each store. The stores are
/// narrow, so they go to a buffer that stays in the L1 cache and do not wait for memory.
///
/// # Safety
/// `x` must hold `values.len()` elements.
pub(super) unsafe fn look_up(table: &Table, x: *const u16, values: &mut [u16]) {
    let mut blocks = values.chunks_exact_mut(LANES);
    let mut from = x;
    // SAFETY: the caller keeps the contract, and a prefetch may use any address.
    unsafe {
        for block in &mut blocks {
            prefetch_block(from.wrapping_add(BATCH));
            for four in block.chunks_exact_mut(4) {
                let value = |i: usize| u64::from(table[usize::from(*from.add(i))]);
                let word = value(0) | value(1) << 16 | value(2) << 32 | value(3) << 48;
                four.as_mut_ptr().cast::<u64>().write_unaligned(word.to_le());
                from = from.add(4);
            }
        }
        for (i, value) in blocks.into_remainder().iter_mut().enumerate() {
            *value = table[usize::from(*from.add(i))];
        }
    }
}

/// Stores 16-bit patterns in the output.
struct Stored<'a, T> {
    values: &'a [u16],
    out: Output<T>,
}

impl<T: Float> Kernel for Stored<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let blocks = self.values.chunks_exact(LANES);
        let (rest, whole) = (blocks.remainder(), self.values.len() / LANES * LANES);
        // SAFETY: the output has room for all values, and its elements have 16 bits.
        unsafe {
            for (i, block) in blocks.enumerate() {
                self.out.put_patterns::<V>(V::load_half(block.as_ptr()), i * LANES);
            }
            let to = self.out.to().add(whole).cast();
            std::ptr::copy_nonoverlapping(rest.as_ptr(), to, rest.len());
        }
    }
}

/// Computes `f(a) * b`, where `table` contains the values of f.
///
/// # Safety
/// `a`, `b` and `out` must hold the elements of the range, and T must have 16 bits. `out` may be
/// `a` or `b`.
pub unsafe fn gated<T: Float>(
    machine: Machine,
    table: &Table,
    [a, b]: [*const T; 2],
    out: Output<T>,
    range: Range<usize>,
) {
    let mut values = [0; BATCH];
    for start in range.clone().step_by(BATCH) {
        let count = BATCH.min(range.end - start);
        // SAFETY: the elements are within the range, and there are at most `BATCH` of them.
        unsafe {
            look_up(table, a.add(start).cast(), &mut values[..count]);
            let kernel =
                Product { a: values.as_ptr().cast(), b: b.add(start), out: out.add(start), count };
            machine.level.run(kernel);
        }
    }
}

struct Product<T> {
    a: *const T,
    b: *const T,
    out: Output<T>,
    count: usize,
}

impl<T: Float> Kernel for Product<T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for at in (0..self.count).step_by(LANES) {
            let count = LANES.min(self.count - at);
            // SAFETY: every access is within the elements, and the code reads elements before it
            // overwrites them.
            unsafe {
                let (a, b) = (self.a.add(at), self.b.add(at));
                prefetch_block(b.wrapping_add(BATCH));
                if count == LANES {
                    self.out.put_mixed(T::load_mixed::<V>(a) * T::load_mixed::<V>(b), at);
                } else {
                    let b = T::load_first::<V>(b, count);
                    self.out.put_first(T::load_first::<V>(a, count) * b, at, count);
                }
            }
        }
    }
}
