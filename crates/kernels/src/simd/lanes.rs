//! The trait of sixteen-lane vectors, with the operations that need no code from other files. Each
//! instruction set ("level") implements it.

use std::ops::{Add, Div, Mul, Sub};

/// The number of lanes in a block, on every level.
pub const LANES: usize = 16;

/// `1.5 * 2^23 + 190`. Floats near `1.5 * 2^23` are integers; 190 is the biased exponent of 2^63.
pub const INTEGERS: f32 = 12_582_912.0 + 190.0;

/// A register that is a block or a part of one. A kernel that processes a block register by
/// register can keep more rows in registers.
pub trait Register: Copy + 'static {
    const LANES: usize;
    /// The number of rows of the input matrix x that fit in the registers, with four accumulators
    /// for each row.
    const ROWS: usize;
    /// The number of rows of x that fit in the registers, with two accumulators for each row,
    /// beside weights that are being decoded.
    const DECODED_ROWS: usize;
    fn zero() -> Self;
    /// # Safety
    /// `from` is readable for `LANES` floats; no alignment is needed.
    unsafe fn read(from: *const f32) -> Self;
    /// # Safety
    /// `to` is writable for `LANES` floats.
    unsafe fn write(self, to: *mut f32);
    /// `self + a * b`, rounded once.
    fn add_product(self, a: Self, b: Self) -> Self;
}

/// Sixteen `f32` lanes.
///
/// Only [`Level::run`](super::Level::run) selects an implementation, after it was detected on this
/// machine. This makes the intrinsics in these safe methods sound.
pub trait Lanes:
    Copy + 'static + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// Whether a block is one register and there are 32 registers. Then two dozen sums stay in
    /// registers.
    const ONE_REGISTER: bool = false;
    const SMALL: bool = false; // whether speed does not matter, so kernels take rows one by one
    /// The type of the registers of a block. The first register has the low lanes.
    type Register: Register;
    /// Sixteen 32-bit integers.
    type Int: Copy;
    /// Sixteen 16-bit values, such as f16 or bf16.
    type Half: Copy;
    fn splat(value: f32) -> Self;
    /// # Safety
    /// `from` is readable for sixteen floats; no alignment is needed.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `to` is writable for sixteen floats.
    unsafe fn store(self, to: *mut f32);
    /// Stores past the caches if the level has an instruction for it. Call [`fence`](super::fence)
    /// before other threads read the data.
    /// # Safety
    /// `to` is writable for sixteen floats and aligned to 64 bytes.
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        // SAFETY: the caller upholds the contract.
        unsafe { self.store(to) }
    }
    /// # Safety
    /// `from` is readable for sixteen 16-bit values.
    unsafe fn load_half(from: *const u16) -> Self::Half;
    /// # Safety
    /// `to` is writable for sixteen 16-bit values.
    unsafe fn store_half(half: Self::Half, to: *mut u16);
    /// # Safety
    /// `to` is writable for sixteen 16-bit values and aligned to 32 bytes.
    #[inline(always)]
    unsafe fn stream_half(half: Self::Half, to: *mut u16) {
        // SAFETY: the caller upholds the contract.
        unsafe { Self::store_half(half, to) }
    }
    /// Like [`store_half`](Self::store_half), for values that were computed or loaded as one
    /// vector.
    /// # Safety
    /// `to` is writable for sixteen 16-bit values.
    #[inline(always)]
    unsafe fn store_joined(half: Self::Half, to: *mut u16) {
        // SAFETY: the caller upholds the contract.
        unsafe { Self::store_half(half, to) }
    }
    /// Like [`stream_half`](Self::stream_half), for values that were computed or loaded as one
    /// vector.
    /// # Safety
    /// `to` is writable for sixteen 16-bit values and aligned to 32 bytes.
    #[inline(always)]
    unsafe fn stream_joined(half: Self::Half, to: *mut u16) {
        // SAFETY: the caller upholds the contract.
        unsafe { Self::stream_half(half, to) }
    }

    /// Loads the first `count <= 16` floats and fills up with zeros.
    /// # Safety
    /// `from` is readable for `count` floats; no alignment is needed.
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        let mut block = [0.0f32; LANES];
        let (bytes, to) = (count * size_of::<f32>(), block.as_mut_ptr().cast::<u8>());
        // SAFETY: the caller vouches for `count` floats at `from`; the block holds sixteen.
        unsafe {
            std::ptr::copy_nonoverlapping(from.cast(), to, bytes);
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
    /// `from` is readable for `count <= 16` 16-bit values.
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
    /// `to` is writable for `count <= 16` 16-bit values.
    #[inline(always)]
    unsafe fn store_half_first(half: Self::Half, to: *mut u16, count: usize) {
        let mut block = [0; LANES];
        // SAFETY: as in `load_first`.
        unsafe {
            Self::store_half(half, block.as_mut_ptr());
            std::ptr::copy_nonoverlapping(block.as_ptr(), to, count);
        }
    }

    /// Returns `self * factor + addend`, rounded once on every level.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// The larger value in each lane. A NaN in `other` is always returned; a NaN in `self` may be
    /// lost.
    fn max(self, other: Self) -> Self;
    /// The larger value in each lane, or the value of `other` if the value of `self` is NaN.
    #[inline(always)]
    fn max_or(self, other: Self) -> Self {
        Self::select(self.is_nan(), other, self.max(other))
    }
    /// The smaller value in each lane. A NaN in `other` is always returned; a NaN in `self` may be
    /// lost.
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        let zero = Self::splat(0.0);
        zero - (zero - self).max(zero - other)
    }
    fn abs(self) -> Self;
    /// Exchanges lanes 0 and 1, 2 and 3, and so on.
    fn swap_pairs(self) -> Self;
    /// Adds up the lanes by halves: first lanes that are 8 apart, then 4, 2 and 1 apart.
    fn reduce_add(self) -> f32;
    fn reduce_max(self) -> f32;
    /// The number of blocks that fit in the vector registers.
    const BLOCKS: usize = 8;
    /// Loads sixteen unsigned bytes and converts them to floats.
    /// # Safety
    /// `from` is readable for sixteen bytes.
    #[inline(always)]
    unsafe fn from_bytes(from: *const u8) -> Self {
        let mut lanes = [0.0; LANES];
        for (i, lane) in lanes.iter_mut().enumerate() {
            // SAFETY: the caller upholds the contract.
            *lane = f32::from(unsafe { *from.add(i) });
        }
        // SAFETY: the array holds sixteen lanes.
        unsafe { Self::load(lanes.as_ptr()) }
    }
    /// Loads sixteen unsigned 4-bit numbers as floats. The low number of each byte comes first.
    /// # Safety
    /// `from` is readable for eight bytes.
    #[inline(always)]
    unsafe fn from_nibbles(from: *const u8) -> Self {
        let mut lanes = [0.0; LANES];
        for i in 0..LANES / 2 {
            // SAFETY: the caller upholds the contract.
            let byte = unsafe { *from.add(i) };
            (lanes[2 * i], lanes[2 * i + 1]) = (f32::from(byte & 15), f32::from(byte >> 4));
        }
        // SAFETY: the array holds sixteen lanes.
        unsafe { Self::load(lanes.as_ptr()) }
    }
    fn any_above(self, limit: f32) -> bool;
    /// Replaces the lanes from `count` on by `fill`.
    fn keep_first(self, count: usize, fill: f32) -> Self;

    fn splat_int(value: i32) -> Self::Int;
    fn add_int(a: Self::Int, b: Self::Int) -> Self::Int;
    fn and_int(a: Self::Int, b: Self::Int) -> Self::Int;
    fn shift_left<const N: u32>(a: Self::Int) -> Self::Int;
    /// Shifts in zeros.
    fn shift_right<const N: u32>(a: Self::Int) -> Self::Int;
    /// Truncates toward zero. The result for NaN and for values outside `i32` is unspecified.
    fn to_int(self) -> Self::Int;
    fn from_int(a: Self::Int) -> Self;
    fn to_bits(self) -> Self::Int;
    fn from_bits(a: Self::Int) -> Self;
    fn xor_bits(self, a: Self::Int) -> Self;
    /// Returns `a` in lanes where `mask` is nonzero, and `b` in the other lanes.
    fn select(mask: Self::Int, a: Self, b: Self) -> Self;
    /// Nonzero in lanes that are NaN.
    fn is_nan(self) -> Self::Int;

    fn from_f16(half: Self::Half) -> Self;
    /// Rounds to the nearest, ties to even.
    fn to_f16(self) -> Self::Half;
    fn widen(half: Self::Half) -> Self::Int;
    /// Keeps the low sixteen bits of each lane. The upper bits must be zero.
    fn narrow(a: Self::Int) -> Self::Half;

    /// Loads sixteen bytes, one into each lane.
    /// # Safety
    /// `from` is readable for sixteen bytes.
    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> Self::Int {
        // SAFETY: the array has sixteen words; `load` accepts any bit pattern.
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
        // SAFETY: the array holds sixteen words, and the caller vouches for sixteen bytes at `to`.
        unsafe {
            Self::from_bits(a).store(words.as_mut_ptr());
            for (i, word) in words.iter().enumerate() {
                *to.add(i) = word.to_bits() as u8;
            }
        }
    }
    /// Loads eight floats from each address: the low half of the lanes, then the high half.
    /// # Safety
    /// Each address is readable for eight floats.
    #[inline(always)]
    unsafe fn load_halves(low: *const f32, high: *const f32) -> Self {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: the caller upholds the contract; the array holds sixteen floats.
        unsafe {
            std::ptr::copy_nonoverlapping(low, lanes.as_mut_ptr(), LANES / 2);
            std::ptr::copy_nonoverlapping(high, lanes.as_mut_ptr().add(LANES / 2), LANES / 2);
            Self::load(lanes.as_ptr())
        }
    }
    /// Converts the low `BITS <= 8` bits of each lane, an unsigned number, to a float.
    #[inline(always)]
    fn low_bits<const BITS: u32>(a: Self::Int) -> Self {
        Self::from_int(Self::and_int(a, Self::splat_int((1 << BITS) - 1)))
    }

    #[inline(always)]
    fn from_bf16(half: Self::Half) -> Self {
        Self::from_bits(Self::shift_left::<16>(Self::widen(half)))
    }
    /// Rounds to the nearest, ties to even.
    #[inline(always)]
    fn to_bf16(self) -> Self::Half {
        Self::narrow(Self::shift_right::<16>(self.bf16_bits()))
    }
    /// Rounds each lane to bf16 and returns it as a float.
    #[inline(always)]
    fn round_bf16(self) -> Self {
        Self::from_bits(Self::and_int(self.bf16_bits(), Self::splat_int(!0xffff)))
    }
    /// Converts bf16 values to lanes, in the order that is fastest on this level ("mixed" order).
    /// Each level uses one fixed order.
    #[inline(always)]
    fn from_bf16_mixed(half: Self::Half) -> Self {
        Self::from_bf16(half)
    }
    /// The inverse of [`from_bf16_mixed`](Self::from_bf16_mixed). Rounds to the nearest, ties to
    /// even. The lower half of every NaN must be zero, as in NaNs that were loaded from bf16 or
    /// that arithmetic produced from such values.
    #[inline(always)]
    fn to_bf16_mixed(self) -> Self::Half {
        self.to_bf16()
    }
    /// Puts the lanes of [`from_bf16_mixed`](Self::from_bf16_mixed) into the order of memory.
    #[inline(always)]
    fn ordered(self) -> Self {
        self
    }
    /// The inverse of [`ordered`](Self::ordered).
    #[inline(always)]
    fn mixed(self) -> Self {
        self
    }
    /// Does [`swap_pairs`](Self::swap_pairs) on lanes in mixed order.
    #[inline(always)]
    fn swap_mixed_pairs(self) -> Self {
        self.swap_pairs()
    }
    /// Does [`round_bf16`](Self::round_bf16) on lanes in which the lower half of every NaN is zero.
    #[inline(always)]
    fn round_bf16_number(self) -> Self {
        self.round_bf16()
    }
    /// Rounds the upper half of the bits to the nearest, ties to even. The lower half of the result
    /// is unspecified.
    #[inline(always)]
    fn bf16_bits(self) -> Self::Int {
        let bits = self.to_bits();
        let odd = Self::and_int(Self::shift_right::<16>(bits), Self::splat_int(1));
        let rounded = Self::add_int(bits, Self::add_int(odd, Self::splat_int(0x7fff)));
        // Rounding could turn a NaN into infinity or change its sign, so every NaN becomes the
        // standard one.
        let quiet = Self::from_bits(Self::splat_int(0x7fc0_0000));
        Self::select(self.is_nan(), quiet, Self::from_bits(rounded)).to_bits()
    }

    /// The largest integral value that is not greater.
    fn floor(self) -> Self;
    /// Rounds to the nearest integral value, ties to even. Lanes must be below 2^22 in magnitude.
    #[inline(always)]
    fn round(self) -> Self {
        let magic = Self::splat(12_582_912.0); // 1.5 * 2^23, around which floats are integers
        (self + magic) - magic
    }

    /// Whether [`scale_by_power`](Self::scale_by_power) is one instruction, which accepts any n.
    const SCALES: bool = false;
    /// Returns `self * 2^n`, rounded once, for lanes between 1/2 and 2, and NaN. `sum` is n +
    /// [`INTEGERS`]; n is in -190..=0, or any number at most 0 if [`SCALES`](Self::SCALES). For
    /// n = -190 the factor is an exact zero instead, since the product would round to zero anyway.
    /// This saves time: on Intel's processors, a product that is too small for f32 makes the
    /// multiplication of a block take ten times as long.
    #[inline(always)]
    fn scale_by_power(self, _n: Self, sum: Self) -> Self {
        // The lowest bits of the sum are n + 190, the biased exponent of 2^(n + 63). The product
        // with `power` is a normal number, and the last factor, 2^-63, may make it subnormal. The
        // power for -190 is zero.
        let power = Self::from_bits(Self::shift_left::<23>(sum.to_bits()));
        self * power * Self::splat(f32::from_bits((127 - 63) << 23))
    }
}
