//! How packed weights become numbers.
//!
//! A row is a little-endian stream of `BITS`-bit numbers. A chunk is sixteen lanes of whole
//! weights: 32 bits a lane, or 24 where three and six bits would straddle words. Lane l of a chunk
//! holds weights `l * PER_LANE ..`, lowest bits first.

use crate::element::Float;
use crate::simd::{F32x16, LANES};

/// A way of packing weights, in groups that share a scale.
pub(super) trait Format: Copy + Send + Sync + 'static {
    const BITS: u32;
    /// Whether a group also has a bias, and its scale is of the model's type.
    const AFFINE: bool;
    /// Weights in a lane.
    const PER_LANE: usize = (if Self::STRADDLES { 24 } else { 32 }) / Self::BITS as usize;
    const STRADDLES: bool = !Self::BITS.is_power_of_two();
    const LANE_BYTES: usize = if Self::STRADDLES { 3 } else { 4 };
    const CHUNK_BYTES: usize = LANES * Self::LANE_BYTES;
    const CHUNK: usize = LANES * Self::PER_LANE;

    /// The lowest weight of each lane, before its group's scale.
    fn lowest<V: F32x16>(lanes: V::Int) -> V;
    /// Sixteen weights of a row in their order, before their group's scale.
    ///
    /// # Safety
    /// `from` is readable for `2 * BITS` bytes.
    unsafe fn in_order<V: F32x16>(from: *const u8) -> V;
    /// The lanes without their lowest weight.
    fn rest<V: F32x16>(lanes: V::Int) -> V::Int;

    /// Sixteen scales, those from `count` on zero.
    ///
    /// # Safety
    /// `scales` is readable from `at` for `count <= 16` scales.
    unsafe fn scales<V: F32x16, T: Float>(scales: *const u8, at: usize, count: usize) -> V;

    /// The lanes of a chunk, those from `count` on zero.
    ///
    /// # Safety
    /// `from` is readable for `count <= 16` lanes.
    #[inline(always)]
    unsafe fn load<V: F32x16>(from: *const u8, count: usize) -> V::Int {
        let load = |from: *const u8| {
            // SAFETY: `from` covers a whole chunk; `load` takes any bits as they are.
            unsafe {
                if Self::STRADDLES { V::load_triples(from) } else { V::load(from.cast()).to_bits() }
            }
        };
        if count == LANES {
            return load(from);
        }
        let mut chunk = [0u8; 4 * LANES];
        // SAFETY: the caller vouches for `count` lanes; the array holds sixteen.
        unsafe {
            let bytes = count * Self::LANE_BYTES;
            std::ptr::copy_nonoverlapping(from, chunk.as_mut_ptr(), bytes);
        }
        load(chunk.as_ptr())
    }
}

/// `scale * q + bias` with q of `BITS` bits.
#[derive(Clone, Copy)]
pub(super) struct Affine<const BITS: u32>;

/// `2^(e - 127) * q` with a one-byte e and q a 4-bit float.
#[derive(Clone, Copy)]
pub(super) struct Mxfp4;

impl<const BITS: u32> Format for Affine<BITS> {
    const BITS: u32 = BITS;
    const AFFINE: bool = true;

    #[inline(always)]
    fn lowest<V: F32x16>(lanes: V::Int) -> V {
        V::low_bits::<BITS>(lanes)
    }
    #[inline(always)]
    unsafe fn in_order<V: F32x16>(from: *const u8) -> V {
        // SAFETY: the caller's contract.
        let stream = unsafe {
            match BITS {
                2 => V::load_stream::<2>(from),
                3 => V::load_stream::<3>(from),
                4 => V::load_stream::<4>(from),
                6 => V::load_stream::<6>(from),
                _ => V::load_stream::<8>(from),
            }
        };
        V::low_bits::<BITS>(stream)
    }
    #[inline(always)]
    fn rest<V: F32x16>(lanes: V::Int) -> V::Int {
        V::shift_right::<BITS>(lanes)
    }
    #[inline(always)]
    unsafe fn scales<V: F32x16, T: Float>(scales: *const u8, at: usize, count: usize) -> V {
        // SAFETY: the caller's contract.
        unsafe { load_first::<V, T>(scales.cast::<T>().add(at), count) }
    }
}

impl Format for Mxfp4 {
    const BITS: u32 = 4;
    const AFFINE: bool = false;

    #[inline(always)]
    fn lowest<V: F32x16>(lanes: V::Int) -> V {
        V::low_fp4(lanes)
    }
    #[inline(always)]
    unsafe fn in_order<V: F32x16>(from: *const u8) -> V {
        // SAFETY: the caller's contract.
        V::low_fp4(unsafe { V::load_stream::<4>(from) })
    }
    #[inline(always)]
    fn rest<V: F32x16>(lanes: V::Int) -> V::Int {
        V::shift_right::<4>(lanes)
    }
    #[inline(always)]
    unsafe fn scales<V: F32x16, T: Float>(scales: *const u8, at: usize, count: usize) -> V {
        // SAFETY: the caller's contract; the array holds sixteen bytes.
        let exponents = unsafe {
            let from = scales.add(at);
            if count == LANES {
                V::load_bytes(from)
            } else {
                let mut bytes = [0u8; LANES];
                std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), count);
                V::load_bytes(bytes.as_ptr())
            }
        };
        // Zero stands for 2^-127, half of the least normal number; 255 gives infinity. As MLX's, a
        // scale is a number of the model's type.
        let scale = V::from_bits(V::shift_left::<23>(exponents));
        let least = V::from_bits(V::splat_int(0x0040_0000));
        T::round(V::select(exponents, scale, least)).keep_first(count, 0.0)
    }
}

/// Up to sixteen elements, then zeros.
///
/// # Safety
/// `from` is readable for `count <= 16` elements.
#[inline(always)]
pub(super) unsafe fn load_first<V: F32x16, T: Float>(from: *const T, count: usize) -> V {
    // SAFETY: the caller's contract.
    unsafe { if count == LANES { T::load(from) } else { T::load_first(from, count) } }
}
