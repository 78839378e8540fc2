//! Rows of keys, values and queries as floats.

use super::{Source, View};
use crate::cpu::element::Float;
use crate::cpu::simd::{F32x16, LANES};

/// Rows that lie in memory as they are: address, elements from one to the next.
pub struct Rows<T> {
    pub data: *const T,
    pub stride: isize,
}

impl<T> Rows<T> {
    #[inline(always)]
    pub fn at(&self, row: usize) -> *const T {
        self.data.wrapping_offset(row as isize * self.stride)
    }
}

impl Source {
    /// The rows of a head, if their features follow each other as elements.
    #[inline(always)]
    pub fn rows<T>(&self, batch: usize, head: usize) -> Option<Rows<T>> {
        match self {
            Source::Plain(view) if view.strides[3] == 1 => {
                Some(Rows { data: view.at(batch, head, 0), stride: view.strides[2] })
            }
            _ => None,
        }
    }

    /// Rows `first..first + count` as floats, `pitch` apart: `dim` features, then zeros.
    ///
    /// # Safety
    /// The rows exist; `out` has room for `count * pitch` floats, `pitch` whole blocks.
    #[inline(always)]
    pub unsafe fn load<V: F32x16, T: Float>(
        &self,
        (batch, head): (usize, usize),
        (first, count): (usize, usize),
        dim: usize,
        out: *mut f32,
        pitch: usize,
    ) {
        for i in 0..count {
            // SAFETY: the caller's contract.
            unsafe {
                let out = out.add(i * pitch);
                match self {
                    Source::Plain(view) => {
                        let row = view.at::<T>(batch, head, first + i);
                        load_row::<V, T>(row, view.strides[3], dim, 1.0, out);
                    }
                    Source::Quantized { packed, scales, biases, bits, group } => {
                        let row = QuantizedRow {
                            packed: packed.at::<u32>(batch, head, first + i),
                            step: packed.strides[3],
                            scales: scales.at::<T>(batch, head, first + i),
                            scale_step: scales.strides[3],
                            biases: biases.at::<T>(batch, head, first + i),
                            bias_step: biases.strides[3],
                        };
                        match bits {
                            4 => row.load::<V, 4>(dim, *group, out),
                            _ => row.load::<V, 8>(dim, *group, out),
                        }
                    }
                }
            }
        }
    }
}

/// `dim` elements, `step` apart, times `scale`, filled up with zeros to whole blocks.
///
/// # Safety
/// The elements exist, and `out` has room for the blocks.
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
        // SAFETY: the caller's contract; a block ends where the row does.
        unsafe {
            let lanes: V = if step == 1 {
                let from = from.add(at);
                if count == LANES { T::load(from) } else { T::load_first(from, count) }
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
    // SAFETY: sixteen lanes.
    unsafe { V::load(lanes.as_ptr()) }
}

struct QuantizedRow<T> {
    packed: *const u32,
    step: isize,
    scales: *const T,
    scale_step: isize,
    biases: *const T,
    bias_step: isize,
}

impl<T: Float> QuantizedRow<T> {
    /// # Safety
    /// The row has `dim` features, a multiple of `group` and that of 32; `out` has room for them.
    #[inline(always)]
    unsafe fn load<V: F32x16, const BITS: usize>(self, dim: usize, group: usize, out: *mut f32) {
        let words = LANES * BITS / 32;
        for g in 0..dim / group {
            // SAFETY: the caller's contract; a group is whole blocks of sixteen.
            unsafe {
                let at = g as isize;
                let scale = T::to_float(*self.scales.wrapping_offset(at * self.scale_step));
                let bias = T::to_float(*self.biases.wrapping_offset(at * self.bias_step));
                let (scale, bias) = (V::splat(scale), V::splat(bias));
                for block in g * group / LANES..(g + 1) * group / LANES {
                    let mut kept = [0u32; 4];
                    let from = self.packed.wrapping_offset((block * words) as isize * self.step);
                    let from = if self.step == 1 {
                        from
                    } else {
                        for (word, kept) in kept.iter_mut().enumerate().take(words) {
                            *kept = *from.wrapping_offset(word as isize * self.step);
                        }
                        kept.as_ptr()
                    };
                    let lanes =
                        if BITS == 4 { V::from_nibbles(from.cast()) } else { V::from_bytes(from.cast()) };
                    lanes.mul_add(scale, bias).store(out.add(block * LANES));
                }
            }
        }
    }
}

/// A query row, scaled.
///
/// # Safety
/// As of [`load_row`], for the row at that place.
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
