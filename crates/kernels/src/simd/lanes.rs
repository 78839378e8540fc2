//! Sixteen-lane vectors: the operations that do not need code of other files.

use std::ops::{Add, Div, Mul, Sub};

/// The number of lanes in a block, on every level.
pub const LANES: usize = 16;

/// The sum of 1.5 * 2^23, near which floats are integers, and 190, the biased exponent of 2^63.
pub const INTEGERS: f32 = 12_582_912.0 + 190.0;

/// A part of a block that is one register. A kernel that computes one part after another has more
/// rows in registers.
pub trait Register: Copy + 'static {
    const LANES: usize;
    /// The number of rows of x for which there are registers, with four sums each.
    const ROWS: usize;
    /// The number of rows of x for which there are registers, with two sums each, beside weights
    /// that are being decoded.
    const DECODED_ROWS: usize;
    /// Whether weights are decoded once, into memory, for more rows of x than two tiles of
    /// [`DECODED_ROWS`](Self::DECODED_ROWS).
    const DECODES_ONCE: bool = false;
    fn zero() -> Self;
    /// # Safety
    /// `from` is readable for the lanes; no alignment is needed.
    unsafe fn read(from: *const f32) -> Self;
    /// # Safety
    /// `to` is writable for the lanes.
    unsafe fn write(self, to: *mut f32);
    /// `self + a * b`, rounded once.
    fn add_product(self, a: Self, b: Self) -> Self;
}

/// Sixteen `f32` lanes.
///
/// Only [`Level::run`](super::Level::run) names the implementations, after the level was detected.
/// So the intrinsics in these safe methods are sound.
pub trait Lanes:
    Copy + 'static + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// Whether a block is one register of 32, so that two dozen sums stay in registers.
    const ONE_REGISTER: bool = false;
    const SMALL: bool = false; // speed does not matter: kernels take rows one by one
    /// One of the registers of a block. The first one has the low lanes.
    type Register: Register;
    /// Sixteen 32-bit integers.
    type Int: Copy;
    /// Sixteen 16-bit patterns.
    type Half: Copy;
    fn splat(value: f32) -> Self;
    /// # Safety
    /// `from` is readable for sixteen floats; it need not be aligned to the vector.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `to` is writable for sixteen floats.
    unsafe fn store(self, to: *mut f32);
    /// A store that bypasses the caches if the level has one. Call [`fence`](super::fence) before
    /// other threads read the data.
    /// # Safety
    /// `to` is writable for sixteen floats and aligned to 64 bytes.
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { self.store(to) }
    }
    /// # Safety
    /// `from` is readable for sixteen patterns.
    unsafe fn load_half(from: *const u16) -> Self::Half;
    /// # Safety
    /// `to` is writable for sixteen patterns.
    unsafe fn store_half(half: Self::Half, to: *mut u16);
    /// # Safety
    /// `to` is writable for sixteen patterns and aligned to 32 bytes.
    #[inline(always)]
    unsafe fn stream_half(half: Self::Half, to: *mut u16) {
        // SAFETY: the caller's contract.
        unsafe { Self::store_half(half, to) }
    }
    /// [`store_half`](Self::store_half) of patterns that were computed or loaded together.
    /// # Safety
    /// `to` is writable for sixteen patterns.
    #[inline(always)]
    unsafe fn store_joined(half: Self::Half, to: *mut u16) {
        // SAFETY: the caller's contract.
        unsafe { Self::store_half(half, to) }
    }
    /// [`stream_half`](Self::stream_half) of patterns that were computed or loaded together.
    /// # Safety
    /// `to` is writable for sixteen patterns and aligned to 32 bytes.
    #[inline(always)]
    unsafe fn stream_joined(half: Self::Half, to: *mut u16) {
        // SAFETY: the caller's contract.
        unsafe { Self::stream_half(half, to) }
    }

    /// The first `count <= 16` floats, then zeros.
    /// # Safety
    /// `from` is readable for `count` floats.
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        let mut block = [0.0; LANES];
        // SAFETY: the caller vouches for `count` floats at `from`; the block holds sixteen.
        unsafe {
            std::ptr::copy_nonoverlapping(from, block.as_mut_ptr(), count);
            Self::load(block.as_ptr())
        }
    }
    /// # Safety
    /// `to` is writable for `count <= 16` floats.
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        let mut block = [0.0; LANES];
        // SAFETY: as in `load_first`.
        unsafe {
            self.store(block.as_mut_ptr());
            std::ptr::copy_nonoverlapping(block.as_ptr(), to, count);
        }
    }
    /// # Safety
    /// `from` is readable for `count <= 16` patterns.
    #[inline(always)]
    unsafe fn load_half_first(from: *const u16, count: usize) -> Self::Half {
        let mut block = [0; LANES];
        // SAFETY: as in `load_first`.
        unsafe {
            std::ptr::copy_nonoverlapping(from, block.as_mut_ptr(), count);
            Self::load_half(block.as_ptr())
        }
    }
    /// # Safety
    /// `to` is writable for `count <= 16` patterns.
    #[inline(always)]
    unsafe fn store_half_first(half: Self::Half, to: *mut u16, count: usize) {
        let mut block = [0; LANES];
        // SAFETY: as in `load_first`.
        unsafe {
            Self::store_half(half, block.as_mut_ptr());
            std::ptr::copy_nonoverlapping(block.as_ptr(), to, count);
        }
    }

    /// `self * factor + addend`, rounded once on every level.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// The larger lane. A NaN in `other` is always returned; a NaN in `self` may be lost.
    fn max(self, other: Self) -> Self;
    /// The larger lane; `other` where `self` is NaN.
    #[inline(always)]
    fn max_or(self, other: Self) -> Self {
        Self::select(self.is_nan(), other, self.max(other))
    }
    /// The smaller lane. A NaN in `other` is always returned; a NaN in `self` may be lost.
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        let zero = Self::splat(0.0);
        zero - (zero - self).max(zero - other)
    }
    fn abs(self) -> Self;
    /// Exchanges lanes 0 and 1, 2 and 3, and so on.
    fn swap_pairs(self) -> Self;
    /// Adds up the lanes by halves: lane i and lane i + 8, then i + 4, i + 2 and i + 1.
    fn reduce_add(self) -> f32;
    fn reduce_max(self) -> f32;
    /// The number of blocks that fit in the registers.
    const BLOCKS: usize = 8;
    /// Sixteen bytes as numbers.
    /// # Safety
    /// `from` is readable for sixteen bytes.
    #[inline(always)]
    unsafe fn from_bytes(from: *const u8) -> Self {
        let mut lanes = [0.0; LANES];
        for (i, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: the caller's contract.
            *lane = f32::from(unsafe { *from.add(i) });
        }
        // SAFETY: the array holds sixteen lanes.
        unsafe { Self::load(lanes.as_ptr()) }
    }
    /// Sixteen 4-bit numbers. The low number of each byte comes first.
    /// # Safety
    /// `from` is readable for eight bytes.
    #[inline(always)]
    unsafe fn from_nibbles(from: *const u8) -> Self {
        let mut lanes = [0.0; LANES];
        for i in 0..LANES / 2 {
            // SAFETY: the caller's contract.
            let byte = unsafe { *from.add(i) };
            (lanes[2 * i], lanes[2 * i + 1]) = (f32::from(byte & 15), f32::from(byte >> 4));
        }
        // SAFETY: the array holds sixteen lanes.
        unsafe { Self::load(lanes.as_ptr()) }
    }
    fn any_above(self, limit: f32) -> bool;
    /// Replaces lanes `count..` by `fill`.
    fn keep_first(self, count: usize, fill: f32) -> Self;

    fn splat_int(value: i32) -> Self::Int;
    fn add_int(a: Self::Int, b: Self::Int) -> Self::Int;
    fn and_int(a: Self::Int, b: Self::Int) -> Self::Int;
    fn shift_left<const N: u32>(a: Self::Int) -> Self::Int;
    /// Shifts in zeros.
    fn shift_right<const N: u32>(a: Self::Int) -> Self::Int;
    /// Truncates; the result for NaN and for values beyond `i32` is unspecified.
    fn to_int(self) -> Self::Int;
    fn from_int(a: Self::Int) -> Self;
    fn to_bits(self) -> Self::Int;
    fn from_bits(a: Self::Int) -> Self;
    fn xor_bits(self, a: Self::Int) -> Self;
    /// `a` where `mask` is nonzero, else `b`.
    fn select(mask: Self::Int, a: Self, b: Self) -> Self;
    /// Nonzero where the lane is NaN.
    fn is_nan(self) -> Self::Int;

    fn from_f16(half: Self::Half) -> Self;
    /// Rounds to nearest even.
    fn to_f16(self) -> Self::Half;
    fn widen(half: Self::Half) -> Self::Int;
    /// The low sixteen bits of each lane, whose upper bits are zero.
    fn narrow(a: Self::Int) -> Self::Half;

    /// Sixteen bytes, one in each lane.
    /// # Safety
    /// `from` is readable for sixteen bytes.
    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> Self::Int {
        // SAFETY: the array is sixteen words long; `load` takes any bits as they are.
        unsafe {
            let words: [u32; LANES] = std::array::from_fn(|i| u32::from(*from.add(i)));
            Self::load(words.as_ptr().cast()).to_bits()
        }
    }
    /// Stores the low byte of each lane.
    /// # Safety
    /// `to` is writable for sixteen bytes.
    #[inline(always)]
    unsafe fn store_bytes(a: Self::Int, to: *mut u8) {
        let mut words = [0.0f32; LANES];
        // SAFETY: the array holds sixteen words, and the caller has room for sixteen bytes.
        unsafe {
            Self::from_bits(a).store(words.as_mut_ptr());
            for (i, word) in words.iter().enumerate() {
                *to.add(i) = word.to_bits() as u8;
            }
        }
    }
    /// Loads eight floats from each address.
    /// # Safety
    /// Each address is readable for eight floats.
    #[inline(always)]
    unsafe fn load_halves(low: *const f32, high: *const f32) -> Self {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: the caller's contract; the array holds sixteen floats.
        unsafe {
            std::ptr::copy_nonoverlapping(low, lanes.as_mut_ptr(), LANES / 2);
            std::ptr::copy_nonoverlapping(high, lanes.as_mut_ptr().add(LANES / 2), LANES / 2);
            Self::load(lanes.as_ptr())
        }
    }
    /// The low `BITS <= 8` bits of each lane as a number.
    #[inline(always)]
    fn low_bits<const BITS: u32>(a: Self::Int) -> Self {
        Self::from_int(Self::and_int(a, Self::splat_int((1 << BITS) - 1)))
    }

    #[inline(always)]
    fn from_bf16(half: Self::Half) -> Self {
        Self::from_bits(Self::shift_left::<16>(Self::widen(half)))
    }
    /// Rounds to nearest even.
    #[inline(always)]
    fn to_bf16(self) -> Self::Half {
        Self::narrow(Self::shift_right::<16>(self.bf16_bits()))
    }
    /// [`to_bf16`](Self::to_bf16) and back.
    #[inline(always)]
    fn round_bf16(self) -> Self {
        Self::from_bits(Self::and_int(self.bf16_bits(), Self::splat_int(!0xffff)))
    }
    /// Converts patterns to lanes, in the order that this level converts fastest. The order is the
    /// same for every block.
    #[inline(always)]
    fn from_bf16_mixed(half: Self::Half) -> Self {
        Self::from_bf16(half)
    }
    /// The inverse of [`from_bf16_mixed`](Self::from_bf16_mixed); rounds to nearest even. The lower
    /// half of a NaN must be zero, as in every NaN that comes from bf16 and arithmetic alone.
    #[inline(always)]
    fn to_bf16_mixed(self) -> Self::Half {
        self.to_bf16()
    }
    /// The lanes of [`from_bf16_mixed`](Self::from_bf16_mixed) in the order of the patterns.
    #[inline(always)]
    fn ordered(self) -> Self {
        self
    }
    /// The inverse of [`ordered`](Self::ordered).
    #[inline(always)]
    fn mixed(self) -> Self {
        self
    }
    /// [`swap_pairs`](Self::swap_pairs) of mixed lanes.
    #[inline(always)]
    fn swap_mixed_pairs(self) -> Self {
        self.swap_pairs()
    }
    /// [`round_bf16`](Self::round_bf16) of lanes in which the lower half of every NaN is zero.
    #[inline(always)]
    fn round_bf16_number(self) -> Self {
        self.round_bf16()
    }
    /// The bits with the upper half rounded to nearest even. The lower half has no meaning.
    #[inline(always)]
    fn bf16_bits(self) -> Self::Int {
        let bits = self.to_bits();
        let odd = Self::and_int(Self::shift_right::<16>(bits), Self::splat_int(1));
        let rounded = Self::add_int(bits, Self::add_int(odd, Self::splat_int(0x7fff)));
        // Rounding could turn a NaN into infinity or change its sign.
        let quiet = Self::from_bits(Self::splat_int(0x7fc0_0000));
        Self::select(self.is_nan(), quiet, Self::from_bits(rounded)).to_bits()
    }

    /// The nearest integral value, ties to even, of lanes below 2^22 in magnitude.
    #[inline(always)]
    fn round(self) -> Self {
        let magic = Self::splat(12_582_912.0); // 1.5 * 2^23, around which floats are integers
        (self + magic) - magic
    }

    /// Whether [`scale_by_power`](Self::scale_by_power) is an instruction, which takes any n.
    const SCALES: bool = false;
    /// Returns the nearest integral value n, ties to even, of lanes in -190..=63. The second result
    /// is an argument of [`scale_by_power`](Self::scale_by_power): the sum of n and [`INTEGERS`].
    #[inline(always)]
    fn round_to_power(self) -> (Self, Self) {
        if Self::SCALES {
            return (self.round(), self);
        }
        let sum = self + Self::splat(INTEGERS);
        (sum - Self::splat(INTEGERS), sum)
    }
    /// `self * 2^n`, rounded once, for lanes between 1/2 and 2, and NaN. It is zero for n = -190,
    /// where the product would round to zero. Intel's processors take ten times as long for a block
    /// with a result that is too small for f32.
    #[inline(always)]
    fn scale_by_power(self, _n: Self, sum: Self) -> Self {
        // The lowest bits of the sum are n + 190, the biased exponent of 2^(n + 63). So a subnormal
        // result is computed from a normal number. The power for -190 is zero.
        let power = Self::from_bits(Self::shift_left::<23>(sum.to_bits()));
        self * power * Self::splat(f32::from_bits((127 - 63) << 23))
    }
}
