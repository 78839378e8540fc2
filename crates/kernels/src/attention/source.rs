//! Loads rows of keys, values and queries as floats.

use std::marker::PhantomData;

use super::{Source, View};
use crate::element::Float;
use crate::simd::{F32x16, Kernel, LANES, prefetch};

/// Rows of elements in memory: the address of the first row, and the number of elements from one
/// row to the next.
pub struct Rows<T> {
    pub data: *const T,
    pub stride: isize,
}

impl<T> Clone for Rows<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Rows<T> {}

impl<T> Rows<T> {
    /// The rows of a head from row `first` on.
    #[inline(always)]
    fn of(view: &View, batch: usize, head: usize, first: usize) -> Self {
        Self { data: view.at(batch, head, first), stride: view.strides[2] }
    }

    #[inline(always)]
    pub fn at(&self, row: usize) -> *const T {
        self.data.wrapping_offset(row as isize * self.stride)
    }

    /// The rows from `row` on.
    #[inline(always)]
    pub fn from(&self, row: usize) -> Self {
        Self { data: self.at(row), ..*self }
    }
}

impl Source {
    /// The rows of a head, if they are not quantized and the features of a row are contiguous.
    #[inline(always)]
    pub fn rows<T>(&self, batch: usize, head: usize) -> Option<Rows<T>> {
        match self {
            Source::Plain(view) if view.strides[3] == 1 => Some(Rows::of(view, batch, head, 0)),
            _ => None,
        }
    }

    /// Returns the rows of a head from row `first` on, and the number of bits of a code, if the
    /// source is quantized and the words of a row are contiguous. `T` is the type of scales and
    /// biases.
    #[inline(always)]
    pub fn coded<T: Float>(
        &self,
        place: (usize, usize),
        first: usize,
    ) -> Option<(QuantizedRows<T>, usize)> {
        match self {
            Source::Quantized { packed, scales, biases, bits, group } if packed.strides[3] == 1 => {
                Some((QuantizedRows::of([packed, scales, biases], *group, place, first), *bits))
            }
            _ => None,
        }
    }
}

/// Loads the rows `first..first + count` as floats, `pitch` apart: `dim` features each, then zeros.
/// The rows are readable. `out` has room for `count * pitch` floats, and `pitch` is a multiple of
/// [`LANES`].
pub struct Load<'a, T> {
    pub source: &'a Source,
    /// The batch and head.
    pub place: (usize, usize),
    pub first: usize,
    pub count: usize,
    pub dim: usize,
    pub out: *mut f32,
    pub pitch: usize,
    pub element: PhantomData<T>,
}

impl<T: Float> Kernel for Load<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { place: (batch, head), first, count, dim, out, pitch, .. } = self;
        // SAFETY: the caller's contract.
        unsafe {
            match self.source {
                Source::Plain(view) => {
                    let rows = Rows::<T>::of(view, batch, head, first);
                    for i in 0..count {
                        let to = out.add(i * pitch);
                        load_row::<V, T>(rows.at(i), view.strides[3], dim, 1.0, to);
                    }
                }
                Source::Quantized { packed, scales, biases, bits, group } => {
                    let parts = [packed, scales, biases];
                    let rows = QuantizedRows::<T>::of(parts, *group, self.place, first);
                    match bits {
                        4 => rows.load::<V, 4>(count, dim, out, pitch),
                        _ => rows.load::<V, 8>(count, dim, out, pitch),
                    }
                }
            }
        }
    }
}

/// Loads `dim` elements that are `step` apart, multiplies them by `scale`, and pads them with zeros
/// to a multiple of [`LANES`].
///
/// # Safety
/// The elements are readable, and `out` has room for the blocks.
#[inline(always)]
pub unsafe fn load_row<V: F32x16, T: Float>(
    from: *const T,
    step: isize,
    dim: usize,
    scale: f32,
    out: *mut f32,
) {
    let scale = V::splat(scale);
    for at in (0..dim).step_by(LANES) {
        let count = LANES.min(dim - at);
        // SAFETY: the caller's contract; the last block loads only the elements that the row has.
        unsafe {
            let lanes: V = if step == 1 {
                T::load_block(from.add(at), count)
            } else {
                load_strided::<V, T>(from.wrapping_offset(at as isize * step), step, count)
            };
            (lanes * scale).store(out.add(at));
        }
    }
}

/// # Safety
/// `count` elements lie at `from`, `step` apart.
#[inline(always)]
pub unsafe fn load_strided<V: F32x16, T: Float>(from: *const T, step: isize, count: usize) -> V {
    let mut lanes = [0.0; LANES];
    for (i, lane) in lanes.iter_mut().enumerate().take(count) {
        // SAFETY: the caller's contract.
        *lane = unsafe { T::to_float(*from.wrapping_offset(i as isize * step)) };
    }
    // SAFETY: the array has sixteen lanes.
    unsafe { V::load(lanes.as_ptr()) }
}

/// Rows of codes, and the number of features that share a scale and a bias.
#[derive(Clone, Copy)]
pub struct Codes {
    pub packed: Rows<u32>,
    pub group: usize,
}

#[derive(Clone, Copy)]
pub struct QuantizedRows<T> {
    pub codes: Codes,
    pub scales: Rows<T>,
    pub biases: Rows<T>,
    /// The strides of words, scales and biases within a row, in elements.
    pub steps: [isize; 3],
}

impl<T: Float> QuantizedRows<T> {
    #[inline(always)]
    fn of(
        [packed, scales, biases]: [&View; 3],
        group: usize,
        (batch, head): (usize, usize),
        first: usize,
    ) -> Self {
        Self {
            codes: Codes { packed: Rows::of(packed, batch, head, first), group },
            scales: Rows::of(scales, batch, head, first),
            biases: Rows::of(biases, batch, head, first),
            steps: [packed.strides[3], scales.strides[3], biases.strides[3]],
        }
    }

    /// # Safety
    /// The rows have `dim` features, a multiple of the group size, which is a multiple of 32; `out`
    /// has room for `count` rows.
    #[inline(always)]
    unsafe fn load<V: F32x16, const BITS: usize>(
        &self,
        count: usize,
        dim: usize,
        out: *mut f32,
        pitch: usize,
    ) {
        let words = LANES * BITS / 32;
        let [step, scale_step, bias_step] = self.steps;
        let Codes { packed: words_of, group } = self.codes;
        for row in 0..count {
            let (packed, to) = (words_of.at(row), out.wrapping_add(row * pitch));
            let (mut scales, mut biases) = (self.scales.at(row), self.biases.at(row));
            // Prefetch the rows that are loaded next.
            prefetch(words_of.at(row + count).cast(), dim * BITS / 8);
            prefetch(self.scales.at(row + count).cast(), 1);
            prefetch(self.biases.at(row + count).cast(), 1);
            for first in (0..dim).step_by(group) {
                // SAFETY: the caller's contract; a group consists of full blocks of sixteen.
                unsafe {
                    let scale = V::splat(T::to_float(*scales));
                    let bias = V::splat(T::to_float(*biases));
                    for at in (first..first + group).step_by(LANES) {
                        let from = packed.wrapping_offset((at / LANES * words) as isize * step);
                        let codes: V = if step == 1 {
                            codes::<V, BITS>(from.cast())
                        } else {
                            let mut kept = [0u32; 4];
                            for (word, kept) in kept.iter_mut().enumerate().take(words) {
                                *kept = *from.wrapping_offset(word as isize * step);
                            }
                            codes::<V, BITS>(kept.as_ptr().cast())
                        };
                        codes.mul_add(scale, bias).store(to.add(at));
                    }
                }
                scales = scales.wrapping_offset(scale_step);
                biases = biases.wrapping_offset(bias_step);
            }
        }
    }
}

/// Loads a query row and multiplies it by `scale`.
///
/// # Safety
/// The contract of [`load_row`] holds for the row of that query.
#[inline(always)]
pub unsafe fn load_query<V: F32x16, T: Float>(
    view: &View,
    (batch, head, query): (usize, usize, usize),
    dim: usize,
    scale: f32,
    out: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        load_row::<V, T>(view.at(batch, head, query), view.strides[3], dim, scale, out);
    }
}

/// Converts sixteen codes to floats.
///
/// # Safety
/// `2 * BITS` bytes are readable.
#[inline(always)]
pub unsafe fn codes<V: F32x16, const BITS: usize>(from: *const u8) -> V {
    // SAFETY: the caller's contract.
    unsafe { if BITS == 4 { V::from_nibbles(from) } else { V::from_bytes(from) } }
}
