//! The element types. Kernels load and store them as `f32` lanes.

use super::simd::{F32x16, LANES};

/// The element type of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Element {
    F32,
    F16,
    BF16,
}

/// Evaluates an expression in which `$type` is an alias for the type that an [`Element`] names.
macro_rules! with_element {
    ($element:expr, $type:ident => $call:expr) => {
        match $element {
            $crate::element::Element::F32 => {
                type $type = f32;
                $call
            }
            $crate::element::Element::F16 => {
                type $type = $crate::element::F16;
                $call
            }
            $crate::element::Element::BF16 => {
                type $type = $crate::element::Bf16;
                $call
            }
        }
    };
}
pub(super) use with_element;

impl Element {
    pub fn bytes(self) -> usize {
        with_element!(self, T => size_of::<T>())
    }
}

/// The order of the lanes that [`Float::load_mixed`] loads from a type. It is the order of memory,
/// unless an instruction set converts the type faster in another order.
pub trait Mixed {
    /// Puts the lanes of [`Float::load_mixed`] into the order of memory.
    #[inline(always)]
    fn ordered<V: F32x16>(lanes: V) -> V {
        lanes
    }
    /// The inverse of [`ordered`](Self::ordered).
    #[inline(always)]
    fn mixed<V: F32x16>(lanes: V) -> V {
        lanes
    }
    /// Exchanges lanes that are neighbors in memory.
    #[inline(always)]
    fn swap_mixed_pairs<V: F32x16>(lanes: V) -> V {
        lanes.swap_pairs()
    }
}

/// A storage type that converts to and from `f32` lanes in registers.
///
/// # Safety
/// For every method the pointer covers sixteen elements, or `count <= 16` elements if the method
/// takes a `count`.
pub trait Float: Mixed + Copy + Send + Sync + 'static {
    const ELEMENT: Element;
    /// The lowest finite number.
    const LOWEST: f32;
    const IS_BF16: bool = false;
    /// The address itself if this type is `f32`, otherwise `None`.
    fn as_f32(_: *const Self) -> Option<*const f32> {
        None
    }
    unsafe fn load<V: F32x16>(from: *const Self) -> V;
    unsafe fn load_first<V: F32x16>(from: *const Self, count: usize) -> V;
    /// Loads a full block of sixteen elements. If `count` is smaller, loads the first `count`
    /// elements, followed by zeros.
    #[inline(always)]
    unsafe fn load_block<V: F32x16>(from: *const Self, count: usize) -> V {
        // SAFETY: the trait's contract.
        unsafe { if count == LANES { Self::load(from) } else { Self::load_first(from, count) } }
    }
    unsafe fn store<V: F32x16>(lanes: V, to: *mut Self);
    unsafe fn store_first<V: F32x16>(lanes: V, to: *mut Self, count: usize);
    /// Stores with instructions that bypass the caches. `to` is aligned to a block of sixteen
    /// elements.
    unsafe fn stream<V: F32x16>(lanes: V, to: *mut Self);
    /// Rounds the lanes to this type. The result equals a store followed by a load.
    fn round<V: F32x16>(lanes: V) -> V;
    /// Loads like [`load`](Self::load), but in the order of lanes in which the instruction set
    /// converts this type fastest.
    #[inline(always)]
    unsafe fn load_mixed<V: F32x16>(from: *const Self) -> V {
        // SAFETY: the trait's contract.
        unsafe { Self::load(from) }
    }
    /// Loads a full block by [`load_mixed`](Self::load_mixed). If `count` is smaller, loads the
    /// first `count` elements in the order of memory, followed by zeros.
    #[inline(always)]
    unsafe fn load_mixed_block<V: F32x16>(from: *const Self, count: usize) -> V {
        // SAFETY: the trait's contract.
        unsafe {
            if count == LANES { Self::load_mixed(from) } else { Self::load_first(from, count) }
        }
    }
    /// Stores like [`store`](Self::store), but takes lanes in the order of
    /// [`load_mixed`](Self::load_mixed). The caller ensures that every NaN in the lanes was loaded
    /// from this type or is a result of arithmetic.
    #[inline(always)]
    unsafe fn store_mixed<V: F32x16>(lanes: V, to: *mut Self) {
        // SAFETY: the trait's contract.
        unsafe { Self::store(lanes, to) }
    }
    /// Stores like [`store_mixed`](Self::store_mixed), but bypasses the caches like
    /// [`stream`](Self::stream).
    #[inline(always)]
    unsafe fn stream_mixed<V: F32x16>(lanes: V, to: *mut Self) {
        // SAFETY: the trait's contract.
        unsafe { Self::stream(lanes, to) }
    }
    /// Rounds like [`round`](Self::round), but the caller ensures that every NaN in the lanes was
    /// loaded from this type or is a result of arithmetic.
    #[inline(always)]
    fn round_number<V: F32x16>(lanes: V) -> V {
        Self::round(lanes)
    }
    /// One element as a float.
    fn to_float(self) -> f32;
}

impl Float for f32 {
    const ELEMENT: Element = Element::F32;
    const LOWEST: f32 = f32::MIN;
    fn as_f32(from: *const f32) -> Option<*const f32> {
        Some(from)
    }
    #[inline(always)]
    unsafe fn load<V: F32x16>(from: *const f32) -> V {
        // SAFETY: the trait's contract.
        unsafe { V::load(from) }
    }
    #[inline(always)]
    unsafe fn load_first<V: F32x16>(from: *const f32, count: usize) -> V {
        // SAFETY: the trait's contract.
        unsafe { V::load_first(from, count) }
    }
    #[inline(always)]
    unsafe fn store<V: F32x16>(lanes: V, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe { lanes.store(to) }
    }
    #[inline(always)]
    unsafe fn store_first<V: F32x16>(lanes: V, to: *mut f32, count: usize) {
        // SAFETY: the trait's contract.
        unsafe { lanes.store_first(to, count) }
    }
    #[inline(always)]
    unsafe fn stream<V: F32x16>(lanes: V, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe { lanes.stream(to) }
    }
    #[inline(always)]
    fn round<V: F32x16>(lanes: V) -> V {
        lanes
    }
    #[inline(always)]
    fn to_float(self) -> f32 {
        self
    }
}

/// A 16-bit format, with the conversions from its bit patterns to lanes and back.
trait Sixteen: Mixed + Copy + Send + Sync + 'static {
    const LOWEST: f32;
    const IS_BF16: bool;
    fn decode<V: F32x16>(half: V::Half) -> V;
    fn encode<V: F32x16>(lanes: V) -> V::Half;
    fn round<V: F32x16>(lanes: V) -> V;
    #[inline(always)]
    fn decode_mixed<V: F32x16>(half: V::Half) -> V {
        Self::decode(half)
    }
    #[inline(always)]
    fn encode_mixed<V: F32x16>(lanes: V) -> V::Half {
        Self::encode(lanes)
    }
    #[inline(always)]
    fn round_number<V: F32x16>(lanes: V) -> V {
        Self::round(lanes)
    }
    fn to_float(self) -> f32;
}

/// IEEE binary16.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The format bfloat16: the upper half of an IEEE binary32.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Sixteen for F16 {
    const LOWEST: f32 = -65504.0;
    const IS_BF16: bool = false;
    #[inline(always)]
    fn decode<V: F32x16>(half: V::Half) -> V {
        V::from_f16(half)
    }
    #[inline(always)]
    fn encode<V: F32x16>(lanes: V) -> V::Half {
        lanes.to_f16()
    }
    #[inline(always)]
    fn round<V: F32x16>(lanes: V) -> V {
        V::from_f16(lanes.to_f16())
    }
    #[inline(always)]
    fn to_float(self) -> f32 {
        half::f16::from_bits(self.0).to_f32()
    }
}

impl Mixed for f32 {}

impl Mixed for F16 {}

impl Mixed for Bf16 {
    #[inline(always)]
    fn ordered<V: F32x16>(lanes: V) -> V {
        lanes.ordered()
    }
    #[inline(always)]
    fn mixed<V: F32x16>(lanes: V) -> V {
        lanes.mixed()
    }
    #[inline(always)]
    fn swap_mixed_pairs<V: F32x16>(lanes: V) -> V {
        lanes.swap_mixed_pairs()
    }
}

impl Sixteen for Bf16 {
    const LOWEST: f32 = f32::from_bits(0xff7f_0000);
    const IS_BF16: bool = true;
    #[inline(always)]
    fn decode<V: F32x16>(half: V::Half) -> V {
        V::from_bf16(half)
    }
    #[inline(always)]
    fn encode<V: F32x16>(lanes: V) -> V::Half {
        lanes.to_bf16()
    }
    #[inline(always)]
    fn round<V: F32x16>(lanes: V) -> V {
        lanes.round_bf16()
    }
    #[inline(always)]
    fn decode_mixed<V: F32x16>(half: V::Half) -> V {
        V::from_bf16_mixed(half)
    }
    #[inline(always)]
    fn encode_mixed<V: F32x16>(lanes: V) -> V::Half {
        lanes.to_bf16_mixed()
    }
    #[inline(always)]
    fn round_number<V: F32x16>(lanes: V) -> V {
        lanes.round_bf16_number()
    }
    #[inline(always)]
    fn to_float(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl<T: Sixteen> Float for T {
    const ELEMENT: Element = if T::IS_BF16 { Element::BF16 } else { Element::F16 };
    const LOWEST: f32 = T::LOWEST;
    const IS_BF16: bool = T::IS_BF16;
    #[inline(always)]
    unsafe fn load<V: F32x16>(from: *const T) -> V {
        // SAFETY: the trait's contract; both formats are transparent over u16.
        T::decode(unsafe { V::load_half(from.cast()) })
    }
    #[inline(always)]
    unsafe fn load_first<V: F32x16>(from: *const T, count: usize) -> V {
        // SAFETY: as in `load`.
        T::decode(unsafe { V::load_half_first(from.cast(), count) })
    }
    #[inline(always)]
    unsafe fn store<V: F32x16>(lanes: V, to: *mut T) {
        // SAFETY: as in `load`.
        unsafe { V::store_half(T::encode(lanes), to.cast()) }
    }
    #[inline(always)]
    unsafe fn store_first<V: F32x16>(lanes: V, to: *mut T, count: usize) {
        // SAFETY: as in `load`.
        unsafe { V::store_half_first(T::encode(lanes), to.cast(), count) }
    }
    #[inline(always)]
    unsafe fn stream<V: F32x16>(lanes: V, to: *mut T) {
        // SAFETY: as in `load`.
        unsafe { V::stream_half(T::encode(lanes), to.cast()) }
    }
    #[inline(always)]
    fn round<V: F32x16>(lanes: V) -> V {
        T::round(lanes)
    }
    #[inline(always)]
    unsafe fn load_mixed<V: F32x16>(from: *const T) -> V {
        // SAFETY: as in `load`.
        T::decode_mixed(unsafe { V::load_half(from.cast()) })
    }
    #[inline(always)]
    unsafe fn store_mixed<V: F32x16>(lanes: V, to: *mut T) {
        // SAFETY: as in `load`.
        unsafe {
            if T::IS_BF16 {
                V::store_joined(T::encode_mixed(lanes), to.cast());
            } else {
                V::store_half(T::encode_mixed(lanes), to.cast());
            }
        }
    }
    #[inline(always)]
    unsafe fn stream_mixed<V: F32x16>(lanes: V, to: *mut T) {
        // SAFETY: as in `load`.
        unsafe {
            if T::IS_BF16 {
                V::stream_joined(T::encode_mixed(lanes), to.cast());
            } else {
                V::stream_half(T::encode_mixed(lanes), to.cast());
            }
        }
    }
    #[inline(always)]
    fn round_number<V: F32x16>(lanes: V) -> V {
        T::round_number(lanes)
    }
    #[inline(always)]
    fn to_float(self) -> f32 {
        Sixteen::to_float(self)
    }
}
