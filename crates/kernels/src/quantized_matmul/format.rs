//! Decodes packed weights.
//!
//! A row is a little-endian stream of `BITS`-bit codes. A chunk is sixteen lanes of complete
//! weights. In memory, a lane takes 32 bits if no code straddles 32-bit words. Otherwise it is as
//! many codes as fit in 24 bits (four 5-bit codes take only 20 bits). Lane l of a chunk holds
//! weights `l * PER_LANE ..`, lowest bits first.

use std::marker::PhantomData;

use crate::element::{Element, F16, Float, with_element};
use crate::simd::{F32x16, Kernel, LANES};

/// The scales of groups of weights. An affine format also has biases, and its scales and biases are
/// of type `element`.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    pub element: Element,
    pub scales: *const u8,
    pub biases: *const u8,
}

impl Scales {
    /// The scales and biases from `bytes` bytes on.
    #[inline(always)]
    pub fn after(mut self, bytes: usize) -> Self {
        self.scales = self.scales.wrapping_add(bytes);
        self.biases = self.biases.wrapping_add(bytes);
        self
    }

    /// The scale and the bias of a group, in every lane.
    ///
    /// # Safety
    /// The group exists.
    #[inline(always)]
    pub unsafe fn of_group<V: F32x16, F: Format>(&self, index: usize) -> [V; 2] {
        let first = V::splat_int(0);
        // SAFETY: the caller's contract.
        let [scale, bias] = unsafe { F::scales::<V>(self, index, 1) };
        [scale.permute(first), if F::AFFINE { bias.permute(first) } else { bias }]
    }
}

/// Writes the scales and the biases of at most sixteen groups, from group `at` on, in f32.
pub(super) struct WriteScales<'a, F> {
    pub of: &'a Scales,
    pub at: usize,
    pub count: usize,
    pub scales: *mut f32,
    pub biases: *mut f32,
    pub format: PhantomData<F>,
}

impl<F: Format> Kernel for WriteScales<'_, F> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        // SAFETY: the caller provides the groups, and room for sixteen scales and biases.
        unsafe {
            let [scales, biases] = F::scales::<V>(self.of, self.at, self.count);
            scales.store(self.scales);
            biases.store(self.biases);
        }
    }
}

/// A format of packed weights, in groups that share a scale.
pub(super) trait Format: Copy + Send + Sync + 'static {
    const BITS: u32;
    /// A format with the same scales, so that formats share code that loads scales.
    type OfScales: Format;
    /// Whether a group has a scale and a bias, of the element type of the call or, for K-quants, in
    /// blocks. Otherwise it has only a scale of one byte.
    const AFFINE: bool;
    /// The smallest number of weights in a group, except in K-quants of six bits (16 weights).
    #[cfg(target_arch = "x86_64")]
    const LEAST_GROUP: usize = 32;
    /// The number of weights in a lane.
    const PER_LANE: usize = (if Self::STRADDLES { 24 } else { 32 }) / Self::BITS as usize;
    /// Whether K-quants have weights of this format.
    const IN_BLOCKS: bool = Self::AFFINE && matches!(Self::BITS, 4..=6);
    const STRADDLES: bool = !Self::BITS.is_power_of_two();
    const LANE_BITS: usize = Self::PER_LANE * Self::BITS as usize;
    const CHUNK_BYTES: usize = LANES / 8 * Self::LANE_BITS;
    const CHUNK: usize = LANES * Self::PER_LANE;

    /// Decodes the weight at a position of each lane, without the scale of its group. The caller
    /// has shifted out all lower weights by [`rest`](Self::rest). With [`F32x16::IN_PLACE`] the
    /// numbers of an affine format are not shifted, and are multiples of a power of two
    /// ([`one_of_place`]).
    fn at<V: F32x16>(lanes: V::Int, position: usize) -> V;
    /// Decodes sixteen weights of a row in order, without the scale of their group.
    ///
    /// # Safety
    /// `from` is readable for `2 * BITS` bytes.
    unsafe fn in_order<V: F32x16>(from: *const u8) -> V;
    /// Shifts the lowest weight out of each lane, except where [`at`](Self::at) needs no shift.
    fn rest<V: F32x16>(lanes: V::Int) -> V::Int;

    /// Loads `count` scales and as many biases, followed by zeros. If the format has no biases,
    /// they are zeros.
    ///
    /// # Safety
    /// `scales` and, if the format is affine, `biases` are readable from `at` on for `count <= 16`.
    unsafe fn scales<V: F32x16>(of: &Scales, at: usize, count: usize) -> [V; 2];

    /// Loads `count` lanes of a chunk, followed by zeros.
    ///
    /// # Safety
    /// `from` is readable for `count <= 16` lanes, which fill whole bytes.
    #[inline(always)]
    unsafe fn load<V: F32x16>(from: *const u8, count: usize) -> V::Int {
        let load = |from: *const u8| {
            // SAFETY: `from` covers a full chunk; `load` takes any bits as they are.
            unsafe {
                match Self::LANE_BITS {
                    20 => V::load_lanes::<20>(from),
                    24 => V::load_lanes::<24>(from),
                    _ => V::load(from.cast()).to_bits(),
                }
            }
        };
        if count == LANES {
            return load(from);
        }
        if Self::LANE_BITS == 32 {
            // SAFETY: the caller vouches for `count` lanes.
            return unsafe { V::load_first(from.cast(), count).to_bits() };
        }
        let mut chunk = [0u8; 4 * LANES];
        // SAFETY: the caller vouches for `count` lanes; the array holds sixteen.
        unsafe {
            let bytes = count * Self::LANE_BITS / 8;
            std::ptr::copy_nonoverlapping(from, chunk.as_mut_ptr(), bytes);
        }
        load(chunk.as_ptr())
    }
}

/// Returns the inverse of a power of two. With [`F32x16::IN_PLACE`] all numbers at this position of
/// a lane are multiples of this power. A lane has `per_lane` numbers of `bits` bits. If the numbers
/// fill all 32 bits, the last one is shifted down, since it would be converted as a signed number.
/// An element of x times the inverse is exact unless the element is smaller than 2^-98. Then the
/// product would need more bits than the smallest floats have.
#[inline(always)]
pub(super) fn one_of_place(bits: usize, per_lane: usize, position: usize) -> f32 {
    let last = bits * per_lane == 32 && position + 1 == per_lane;
    let exponent = if last { 0 } else { bits * position };
    f32::from_bits((127 - exponent as u32) << 23)
}

/// `scale * q + bias` with q of `BITS` bits.
#[derive(Clone, Copy)]
pub(super) struct Affine<const BITS: u32>;

/// `scale * q` with q a float of `BITS` bits, 4 or 8. The scale is a byte: `2^(e - 127)`, or with
/// `FP8` a float of 8 bits.
#[derive(Clone, Copy)]
pub(super) struct Floats<const BITS: u32, const FP8: bool>;

impl<const BITS: u32> Format for Affine<BITS> {
    type OfScales = Affine<8>;
    const BITS: u32 = BITS;
    const AFFINE: bool = true;

    #[inline(always)]
    fn at<V: F32x16>(lanes: V::Int, position: usize) -> V {
        if !V::IN_PLACE {
            return V::low_bits::<BITS>(lanes);
        }
        if Self::LANE_BITS == 32 && position + 1 == Self::PER_LANE {
            return V::from_int(match BITS {
                2 => V::shift_right::<30>(lanes),
                4 => V::shift_right::<28>(lanes),
                _ => V::shift_right::<24>(lanes),
            });
        }
        let mask = ((1 << BITS) - 1) << (BITS as usize * position);
        V::from_int(V::and_int(lanes, V::splat_int(mask)))
    }
    #[inline(always)]
    unsafe fn in_order<V: F32x16>(from: *const u8) -> V {
        // SAFETY: the caller's contract.
        let stream = unsafe {
            match BITS {
                2 => V::load_stream::<2>(from),
                3 => V::load_stream::<3>(from),
                4 => V::load_stream::<4>(from),
                5 => V::load_stream::<5>(from),
                6 => V::load_stream::<6>(from),
                _ => V::load_bytes(from),
            }
        };
        V::low_bits::<BITS>(stream)
    }
    #[inline(always)]
    fn rest<V: F32x16>(lanes: V::Int) -> V::Int {
        if V::IN_PLACE { lanes } else { V::shift_right::<BITS>(lanes) }
    }
    #[inline(always)]
    unsafe fn scales<V: F32x16>(of: &Scales, at: usize, count: usize) -> [V; 2] {
        // SAFETY: the caller's contract.
        with_element!(of.element, T => unsafe {
            let (scales, biases) = (of.scales.cast::<T>(), of.biases.cast::<T>());
            [T::load_block(scales.add(at), count), T::load_block(biases.add(at), count)]
        })
    }
}

impl<const BITS: u32, const FP8: bool> Format for Floats<BITS, FP8> {
    type OfScales = Floats<4, FP8>;
    const BITS: u32 = BITS;
    const AFFINE: bool = false;
    #[cfg(target_arch = "x86_64")]
    const LEAST_GROUP: usize = if FP8 { 16 } else { 32 };

    #[inline(always)]
    fn at<V: F32x16>(lanes: V::Int, _: usize) -> V {
        if BITS == 4 { V::low_fp4(lanes) } else { V::low_fp8(lanes) }
    }
    #[inline(always)]
    unsafe fn in_order<V: F32x16>(from: *const u8) -> V {
        // SAFETY: the caller's contract.
        let stream =
            unsafe { if BITS == 4 { V::load_stream::<4>(from) } else { V::load_bytes(from) } };
        Self::at(stream, 0)
    }
    #[inline(always)]
    fn rest<V: F32x16>(lanes: V::Int) -> V::Int {
        V::shift_right::<BITS>(lanes)
    }
    #[inline(always)]
    unsafe fn scales<V: F32x16>(of: &Scales, at: usize, count: usize) -> [V; 2] {
        // SAFETY: the caller's contract; the array holds sixteen bytes.
        let bytes = unsafe {
            let from = of.scales.add(at);
            if count == LANES {
                V::load_bytes(from)
            } else {
                let mut first = [0u8; LANES];
                std::ptr::copy_nonoverlapping(from, first.as_mut_ptr(), count);
                V::load_bytes(first.as_ptr())
            }
        };
        let zeros = V::splat(0.0);
        if FP8 {
            return [V::low_fp8(bytes).keep_first(count, 0.0), zeros];
        }
        // A zero byte encodes 2^-127, half of the smallest normal number; 255 gives infinity. As in
        // MLX, scales are rounded to the element type of the call, which changes them only if it is
        // f16.
        let scale = V::from_bits(V::shift_left::<23>(bytes));
        let least = V::from_bits(V::splat_int(0x0040_0000));
        let mut scale = V::select(bytes, scale, least);
        if of.element == Element::F16 {
            scale = F16::round(scale);
        }
        [scale.keep_first(count, 0.0), zeros]
    }
}

/// Runs `$run` with the format of a call; does nothing if there is no such format. K-quants are
/// affine once their scales are computed.
macro_rules! with_format {
    ($call:expr, $format:ident => $run:expr) => {
        match ($call.mode, $call.bits) {
            (Mode::Affine, 2) => {
                type $format = Affine<2>;
                $run
            }
            (Mode::Affine, 3) => {
                type $format = Affine<3>;
                $run
            }
            (Mode::Affine | Mode::KQuant, 4) => {
                type $format = Affine<4>;
                $run
            }
            (Mode::Affine | Mode::KQuant, 5) => {
                type $format = Affine<5>;
                $run
            }
            (Mode::Affine | Mode::KQuant, 6) => {
                type $format = Affine<6>;
                $run
            }
            (Mode::Affine, 8) => {
                type $format = Affine<8>;
                $run
            }
            (Mode::Mxfp4, _) => {
                type $format = Floats<4, false>;
                $run
            }
            (Mode::Mxfp8, _) => {
                type $format = Floats<8, false>;
                $run
            }
            (Mode::Nvfp4, _) => {
                type $format = Floats<4, true>;
                $run
            }
            _ => {}
        }
    };
}
pub(super) use with_format;
