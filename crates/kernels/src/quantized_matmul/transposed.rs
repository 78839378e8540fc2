//! Computes `x · W + residual` with W in MLX's packed layouts, for the gradients of `x · Wᵀ`. Tiles
//! of W are decoded and transposed for the GEMM of `linear`.

use std::marker::PhantomData;
use std::ops::Range;

use super::call::{Mode, Weights};
use super::format::{Affine, Floats, Format, Scales, with_format};
use super::k_quant::Blocks;
use crate::Machine;
use crate::element::{Bf16, Element, Float, with_element};
use crate::linear::arithmetic::{Arithmetic, InBf16, InF32, paired};
use crate::linear::dense::{Dense, Finish};
use crate::linear::gemm::{self, Extents, Places, TILE, TOGETHER};
use crate::linear::interleaved::{self, Factor, Interleaved, interleaved_across};
use crate::linear::product::product;
use crate::simd::{F32x16, Kernel, LANES};

/// One call. `x`, `residual` and `out` hold elements of type `element` and are aligned to them.
#[repr(C)]
pub struct QuantizedTransposedCall {
    pub element: Element,
    pub mode: Mode,
    pub bits: u32,
    pub group: usize,
    /// `[rows, columns of the weights]`
    pub x: *const u8,
    pub rows: usize,
    /// The number of elements in a row of weights.
    pub axis: usize,
    pub weights: Weights,
    /// `[rows, axis]`, or null; may be `out`.
    pub residual: *const u8,
    /// `[rows, axis]`
    pub out: *mut u8,
}

/// Computes the sums in f32. Rounds each sum to the element type, adds the residual, and rounds
/// again.
///
/// # Safety
/// The buffers have the contents that the fields describe; `out` may be `residual`, and overlaps no
/// other buffer; MLX supports the format.
pub unsafe fn quantized_transposed(call: &QuantizedTransposedCall) {
    // SAFETY: the caller's contract; this CPU has the instruction set of the current machine.
    unsafe { quantized_transposed_on(Machine::current(), call) }
}

pub unsafe fn quantized_transposed_on(machine: Machine, call: &QuantizedTransposedCall) {
    if call.axis == 0 || call.rows == 0 {
        return;
    }
    with_element!(call.element, T => {
        // SAFETY: the caller's contract; if the element is bf16, `Bf16` is T.
        unsafe {
            if T::IS_BF16 && machine.level.packs_bf16() {
                run::<InBf16, Bf16>(machine, call);
            } else {
                run::<InF32, T>(machine, call);
            }
        }
    })
}

unsafe fn run<A: Arithmetic, T: Float>(machine: Machine, call: &QuantizedTransposedCall)
where
    Dense<T>: gemm::Weights<A>,
{
    let extents = Extents { m: call.axis, n: call.rows, k: call.weights.columns };
    let finish = Finish::<T> {
        out: call.out.cast(),
        columns: call.axis,
        bias: std::ptr::null(),
        activation: None,
        residual: call.residual.cast(),
    };
    let x = Dense::<T> { w: call.x.cast(), extents, columns: false };
    // SAFETY: the caller's contract.
    unsafe { product::<A, T>(machine, &x, call.axis, &Turned { call }, &finish) }
}

/// The weights, read as the transposed matrix `[axis, columns]`.
struct Turned<'a> {
    call: &'a QuantizedTransposedCall,
}

// SAFETY: only read.
unsafe impl Sync for Turned<'_> {}

/// The number of weights in two neighboring blocks of sixteen. Sixteen consecutive elements lie in
/// at most two such blocks.
const BLOCKS: usize = 2 * LANES;
/// The number of weights that `decode` may write for rows that are unpacked together, since
/// `decode` writes full blocks.
const ROOM: usize = interleaved::TOGETHER * LANES + 2 * LANES;
const _: () = assert!(TOGETHER * TILE <= interleaved::TOGETHER * LANES);

impl Turned<'_> {
    /// Decodes the blocks of sixteen weights that contain `rows` elements of a row of W from `at`
    /// on, and writes them to `to`. The first block begins at a multiple of sixteen.
    ///
    /// # Safety
    /// The blocks exist.
    #[inline(always)]
    unsafe fn decode<V: F32x16, A: Arithmetic, F: Format>(
        &self,
        column: usize,
        at: usize,
        rows: usize,
        to: *mut f32,
    ) {
        let &QuantizedTransposedCall { mode, bits, axis, group, ref weights, .. } = self.call;
        let &Weights { scales, biases, .. } = weights;
        // Factors are in pairs only if the call's element is bf16.
        let element = if A::PAIRS { Element::BF16 } else { self.call.element };
        let scales = Scales { element, scales, biases };
        let blocks = Blocks::of(mode, bits, group);
        let start = at / LANES * LANES;
        for block in (start..at + rows).step_by(LANES) {
            // SAFETY: a block belongs to one group of one row.
            unsafe {
                let index = column * (axis / group) + block / group;
                let [scale, bias] = match blocks {
                    Some(blocks) if F::IN_BLOCKS => blocks.of_group::<V>(scales.scales, index),
                    _ => scales.of_group::<V, F>(index),
                };
                let packed = weights.packed.add((column * axis + block) * F::BITS as usize / 8);
                let numbers = F::in_order::<V>(packed);
                let numbers =
                    if F::AFFINE { numbers.mul_add(scale, bias) } else { numbers * scale };
                numbers.store(to.add(block - start));
            }
        }
    }

    /// Returns column `k` of sixteen rows of the transposed weights, from `row` on. Only `rows` of
    /// these rows exist.
    ///
    /// # Safety
    /// The elements exist.
    #[inline(always)]
    unsafe fn column<V: F32x16, A: Arithmetic>(&self, row: usize, rows: usize, k: usize) -> V {
        let mut blocks = [0.0f32; BLOCKS];
        // SAFETY: the caller's contract; the blocks hold sixteen elements from `row` on.
        unsafe {
            with_format!(self.call, F => {
                self.decode::<V, A, F>(k, row, rows, blocks.as_mut_ptr());
            });
            V::load(blocks.as_ptr().add(row % LANES))
        }
    }
}

/// Does the work of [`gemm::Weights::unpack_across`] in a separate function, which all products
/// share.
struct UnpackAcross<'a, A> {
    turned: &'a Turned<'a>,
    row: usize,
    rows: usize,
    k: usize,
    len: usize,
    places: Places,
    arithmetic: PhantomData<A>,
}

impl<A: Arithmetic> Kernel for UnpackAcross<'_, A> {
    const BF16: bool = A::PAIRS;
    const ONLY_BF16: bool = A::PAIRS;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { turned, row, rows, k, len, places, .. } = self;
        with_format!(turned.call, F => for word in 0..len.div_ceil(A::PER_WORD) {
            let mut blocks = [[0.0f32; ROOM]; 2];
            let at = word * A::PER_WORD;
            // SAFETY: the caller ensures that the rows and elements exist and that `out` has room.
            unsafe {
                let here = A::PER_WORD.min(len - at);
                for (next, blocks) in blocks.iter_mut().enumerate().take(here) {
                    turned.decode::<V, A, F>(k + at + next, row, rows, blocks.as_mut_ptr());
                }
                for first in (0..rows).step_by(places.step) {
                    let place = row % LANES + first;
                    let mut words: V = V::load(blocks[0].as_ptr().add(place));
                    if A::PAIRS {
                        let next: V = V::load(blocks[1].as_ptr().add(place));
                        words = paired(words.to_bf16(), next.to_bf16());
                    }
                    words.store(places.of(first, word));
                }
            }
        })
    }
}

impl<A: Arithmetic> gemm::Weights<A> for Turned<'_> {
    fn lie_across(&self) -> bool {
        true
    }

    #[inline(always)]
    unsafe fn unpack_across<V: F32x16>(
        &self,
        row: usize,
        rows: usize,
        k: usize,
        len: usize,
        places: Places,
    ) {
        let arithmetic = PhantomData::<A>;
        // SAFETY: the caller's contract.
        unsafe { V::part(UnpackAcross { turned: self, row, rows, k, len, places, arithmetic }) }
    }

    #[inline(always)]
    unsafe fn unpack<V: F32x16>(
        &self,
        row: usize,
        rows: usize,
        k: usize,
        len: usize,
        out: *mut A::Factor,
        stride: usize,
    ) {
        for at in (0..len).step_by(A::PER_WORD * LANES) {
            let words = (len - at).div_ceil(A::PER_WORD).min(LANES);
            let mut square = [V::splat(0.0); LANES];
            // SAFETY: the caller ensures that the rows and elements exist and that `out` has room;
            // a tile has room for complete words.
            unsafe {
                for (i, word) in square.iter_mut().enumerate().take(words) {
                    let first = at + A::PER_WORD * i;
                    let mut pair = [V::splat(0.0); 2];
                    let here = A::PER_WORD.min(len - first);
                    for (next, column) in pair.iter_mut().enumerate().take(here) {
                        *column = self.column::<V, A>(row, rows, k + first + next);
                    }
                    let [column, next] = pair;
                    *word =
                        if A::PAIRS { paired(column.to_bf16(), next.to_bf16()) } else { column };
                }
                for (i, lanes) in V::transpose(square).into_iter().enumerate().take(rows) {
                    let to = out.add(i * stride + at).cast();
                    match words {
                        LANES => lanes.store(to),
                        _ => lanes.store_first(to, words),
                    }
                }
            }
        }
    }
}

impl<A: Arithmetic> Factor<A> for Turned<'_> {
    unsafe fn interleaved(
        &self,
        machine: Machine,
        rows: Range<usize>,
        body: &dyn Fn(&Interleaved<A>),
    ) {
        let extents = [rows.len(), self.call.weights.columns];
        // SAFETY: the caller's contract.
        unsafe { interleaved_across(machine, extents, (self, rows.start), body) }
    }
}
