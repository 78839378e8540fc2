//! Sixteen-lane vectors, one implementation per instruction set.
//!
//! Every level works on blocks of sixteen floats and adds lanes up in the same tree, so a
//! kernel's result does not depend on the level that ran it.

use std::ops::{Add, Div, Mul, Sub};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dots;
mod floats;
mod kernel;
pub mod level;
mod memory;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
mod stream;
pub mod tiles;
pub mod transpose;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
use dots::{byte_fields_by_shifts, dot_bf16_by_halves, dot_bytes_in_turn, zip_words_in_memory};
pub use kernel::{Kernel, Parts};
pub use level::Level;
pub use memory::{Lines, fence, prefetch, prefetch_block, prefetch_far};

/// Lanes in a block, whatever the level.
pub const LANES: usize = 16;

/// Sixteen `f32` lanes.
///
/// Only [`Level::run`] names the implementations, after the level was detected, which makes the
/// intrinsics behind these safe methods sound.
pub trait F32x16:
    tiles::Tiles
    + Parts
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// Whether a block is one of 32 registers, so that two dozen sums stay in registers.
    const ONE_REGISTER: bool = false;
    const SMALL: bool = false; // speed does not matter: kernels take rows one by one
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
    /// A store that bypasses the caches if the level has one; call [`fence`] before others read it.
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
    /// Whether [`dot_bf16`](Self::dot_bf16) is one instruction.
    const DOTS_BF16: bool = false;
    /// Adds to each lane the products of two bf16 pairs: first the product of their upper halves.
    #[inline(always)]
    fn dot_bf16(self, a: Self::Int, b: Self::Int) -> Self {
        dot_bf16_by_halves(self, a, b)
    }
    /// Transposes a square of sixteen rows.
    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        transpose::by_memory(rows)
    }
    /// The larger lane; a NaN in `other` always comes through, one in `self` may be dropped.
    fn max(self, other: Self) -> Self;
    /// The larger lane; `other` where `self` is NaN.
    #[inline(always)]
    fn max_or(self, other: Self) -> Self {
        Self::select(self.is_nan(), other, self.max(other))
    }
    /// The smaller lane, for lanes that are not NaN.
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        let zero = Self::splat(0.0);
        zero - (zero - self).max(zero - other)
    }
    fn abs(self) -> Self;
    /// Exchanges lanes 0 and 1, 2 and 3, and so on.
    fn swap_pairs(self) -> Self;
    /// Sum by halves: lane i with i + 8, then i + 4, i + 2, i + 1.
    fn reduce_add(self) -> f32;
    fn reduce_max(self) -> f32;
    /// The number of blocks that fit in the registers.
    const BLOCKS: usize = 8;
    /// Lane i is `blocks[i].reduce_add()`.
    #[inline(always)]
    fn reduce_add_each(blocks: [Self; LANES]) -> Self {
        transpose::reduce_each::<Self, false>(blocks)
    }
    /// Lane `4 r + i` is the sum of lanes i, i + 4, i + 8 and i + 12 of `blocks[r]`.
    #[inline(always)]
    fn quarters(blocks: [Self; 4]) -> Self {
        let lanes = blocks.map(transpose::lanes);
        transpose::from_lanes(|at| (0..4).map(|k| lanes[at / 4][at % 4 + 4 * k]).sum())
    }
    /// Lane `4 r + i` is the sum of lanes `4 r` to `4 r + 3` of `blocks[i]`.
    #[inline(always)]
    fn within_quarters(blocks: [Self; 4]) -> Self {
        let lanes = blocks.map(transpose::lanes);
        transpose::from_lanes(|at| lanes[at % 4][at / 4 * 4..][..4].iter().sum())
    }
    /// Lane i is `blocks[i].reduce_max()`.
    #[inline(always)]
    fn reduce_max_each(blocks: [Self; LANES]) -> Self {
        transpose::reduce_each::<Self, true>(blocks)
    }
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
        // SAFETY: sixteen lanes.
        unsafe { Self::load(lanes.as_ptr()) }
    }
    /// Sixteen 4-bit numbers, the low one of each byte first.
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
        // SAFETY: sixteen lanes.
        unsafe { Self::load(lanes.as_ptr()) }
    }
    fn any_above(self, limit: f32) -> bool;
    /// Lanes `count..` replaced by `fill`.
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
    /// [`load_stream`](Self::load_stream) for numbers of 20 or 24 bits.
    /// # Safety
    /// `from` is readable for `2 * BITS` bytes.
    #[inline(always)]
    unsafe fn load_lanes<const BITS: usize>(from: *const u8) -> Self::Int {
        // SAFETY: the caller's contract.
        unsafe { stream::lanes::<Self, BITS>(from) }
    }
    /// Sixteen `BITS`-bit numbers of a little-endian stream, one in the low bits of each lane; the
    /// bits above are unspecified.
    /// # Safety
    /// `from` is readable for `2 * BITS <= 16` bytes.
    #[inline(always)]
    unsafe fn load_stream<const BITS: usize>(from: *const u8) -> Self::Int {
        // SAFETY: the caller's contract.
        unsafe { stream::load::<Self, BITS>(from) }
    }
    /// The low byte of each lane.
    /// # Safety
    /// `to` is writable for sixteen bytes.
    #[inline(always)]
    unsafe fn store_bytes(a: Self::Int, to: *mut u8) {
        let mut words = [0.0f32; LANES];
        // SAFETY: the array holds sixteen words, the caller has room for as many bytes.
        unsafe {
            Self::from_bits(a).store(words.as_mut_ptr());
            for (i, word) in words.iter().enumerate() {
                *to.add(i) = word.to_bits() as u8;
            }
        }
    }
    /// Thirty-two 4-bit numbers as bytes, the low one of each byte first.
    /// # Safety
    /// `from` is readable for sixteen bytes, `to` writable for thirty-two.
    #[inline(always)]
    unsafe fn spread_nibbles(from: *const u8, to: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { stream::spread_nibbles(from, to) }
    }
    /// The even words of eight bytes of both vectors in turn, and the odd ones.
    #[inline(always)]
    fn zip_words(a: Self::Int, b: Self::Int) -> [Self::Int; 2] {
        zip_words_in_memory::<Self>(a, b)
    }
    /// The `bits` bits of each byte from bit `at` on, which is even, as the byte's low bits.
    #[inline(always)]
    fn byte_fields(a: Self::Int, at: u32, bits: u32) -> Self::Int {
        byte_fields_by_shifts::<Self>(a, at, bits)
    }
    /// Adds to each lane the products of its four bytes, unsigned in `a` and signed in `b`.
    #[inline(always)]
    fn dot_bytes(sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int {
        dot_bytes_in_turn::<Self>(sum, a, b)
    }
    /// [`dot_bytes`](Self::dot_bytes) of bytes below 128 in `a`.
    #[inline(always)]
    fn dot_low_bytes(sum: Self::Int, a: Self::Int, b: Self::Int) -> Self::Int {
        Self::dot_bytes(sum, a, b)
    }
    /// Stores lanes below `2^BITS` as the stream that [`load_stream`](Self::load_stream) reads.
    /// # Safety
    /// `to` is writable for `2 * BITS <= 16` bytes.
    #[inline(always)]
    unsafe fn store_stream<const BITS: usize>(a: Self::Int, to: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { stream::store::<Self, BITS>(a, to) }
    }
    /// Eight floats from each address.
    /// # Safety
    /// Each address is readable for eight floats.
    #[inline(always)]
    unsafe fn load_halves(low: *const f32, high: *const f32) -> Self {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: the caller's contract; the array holds both.
        unsafe {
            std::ptr::copy_nonoverlapping(low, lanes.as_mut_ptr(), LANES / 2);
            std::ptr::copy_nonoverlapping(high, lanes.as_mut_ptr().add(LANES / 2), LANES / 2);
            Self::load(lanes.as_ptr())
        }
    }
    /// The n-th and the (n + 4)-th of the eight 4-bit numbers in each lane, as bf16 pairs.
    #[inline(always)]
    fn nibble_pairs(words: Self::Int) -> [Self::Int; 4] {
        dots::nibble_pairs::<Self>(words)
    }
    /// Lane i of the result is lane `index[i]`, which is below sixteen.
    #[inline(always)]
    fn permute(self, index: Self::Int) -> Self {
        let (lanes, index) = (transpose::lanes(self), transpose::lanes(Self::from_bits(index)));
        transpose::from_lanes(|i| lanes[index[i].to_bits() as usize % LANES])
    }
    /// The low `BITS <= 8` bits of each lane as a number.
    #[inline(always)]
    fn low_bits<const BITS: u32>(a: Self::Int) -> Self {
        Self::from_int(Self::and_int(a, Self::splat_int((1 << BITS) - 1)))
    }
    /// The low four bits of each lane as a float: sign, two bits of exponent, one of mantissa.
    #[inline(always)]
    fn low_fp4(a: Self::Int) -> Self {
        floats::low::<Self, 4>(a)
    }
    /// The low eight bits of each lane as a float: sign, four bits of exponent, three of mantissa.
    #[inline(always)]
    fn low_fp8(a: Self::Int) -> Self {
        floats::low::<Self, 8>(a)
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
    /// The bits with the upper half rounded to nearest even; the lower half is left over.
    #[inline(always)]
    fn bf16_bits(self) -> Self::Int {
        let bits = self.to_bits();
        let odd = Self::and_int(Self::shift_right::<16>(bits), Self::splat_int(1));
        let rounded = Self::add_int(bits, Self::add_int(odd, Self::splat_int(0x7fff)));
        // A NaN's carry could run into infinity or the sign.
        let quiet = Self::from_bits(Self::splat_int(0x7fc0_0000));
        Self::select(self.is_nan(), quiet, Self::from_bits(rounded)).to_bits()
    }

    /// The nearest integral value, ties to even, of lanes below 2^22 in magnitude.
    #[inline(always)]
    fn round(self) -> Self {
        let magic = Self::splat(12_582_912.0); // 1.5 * 2^23, around which floats are integers
        (self + magic) - magic
    }

    /// `self * 2^n` for integral `n` in -252..=254, rounded once.
    #[inline(always)]
    fn scale_by_power(self, n: Self) -> Self {
        // Two factors, so that a subnormal result is reached from a normal one.
        let bias = Self::splat_int(127);
        let half = (n * Self::splat(0.5)).to_int();
        let rest = (n - Self::from_int(half)).to_int();
        let first = Self::from_bits(Self::shift_left::<23>(Self::add_int(half, bias)));
        let second = Self::from_bits(Self::shift_left::<23>(Self::add_int(rest, bias)));
        self * first * second
    }
}
