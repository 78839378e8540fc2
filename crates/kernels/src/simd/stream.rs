//! Loads and stores of packed numbers of a few bits or bytes, for instruction sets that have no
//! instructions to unpack or pack them.

use super::lanes::{LANES, Lanes};

/// The positions of sixteen numbers of `BITS` bits in a bit stream. They are constants, because
/// computing them at run time takes longer than the code that uses them.
pub struct Places<const BITS: usize>;

impl<const BITS: usize> Places<BITS> {
    /// For each number, the index of its first byte, the index of the next byte, and two indices
    /// that yield zero. If byte 15 is the first byte, the index of the next byte yields zero too.
    pub const PAIRS: [u8; 64] = {
        let mut places = [0x80; 64];
        let mut i = 0;
        while i < LANES {
            let byte = i * BITS / 8;
            places[4 * i] = byte as u8;
            if byte < 15 {
                places[4 * i + 1] = byte as u8 + 1;
            }
            i += 1;
        }
        places
    };
    /// For each number, how many bits of its first byte precede it.
    pub const SHIFTS: [u32; LANES] = {
        let mut shifts = [0; LANES];
        let mut i = 0;
        while i < LANES {
            shifts[i] = (i * BITS % 8) as u32;
            i += 1;
        }
        shifts
    };
}

/// The positions of sixteen numbers of `BITS` bits, 2, 3, 5 or 6, in a bit stream of `2 * BITS`
/// bytes, for code that unpacks two neighbors in each 16-bit word.
pub struct Couples<const BITS: usize>;

impl<const BITS: usize> Couples<BITS> {
    /// Multiplying a word by its factor moves its first number to this bit.
    const BIT: usize = if BITS == 6 { 4 } else { 6 };
    /// Shifting the product down by these numbers of bits moves the first number to the lower byte,
    /// or the second number to the upper byte.
    pub const SHIFTS: [i32; 2] = [Self::BIT as i32, (Self::BIT + BITS - 8) as i32];
    /// For each word, the factor.
    pub const FACTORS: [u16; LANES / 2] = {
        let mut factors = [0; LANES / 2];
        let mut i = 0;
        while i < LANES / 2 {
            factors[i] = 1 << (Self::BIT - 2 * i * BITS % 8);
            i += 1;
        }
        factors
    };

    /// For each word, the indices of the two bytes that contain its numbers, if the stream begins
    /// at byte `first`. An index beyond byte 15 yields zero, since such a byte has no number.
    pub const fn bytes(first: usize) -> [u8; LANES] {
        let mut bytes = [0x80; LANES];
        let mut i = 0;
        while i < LANES / 2 {
            let byte = first + 2 * i * BITS / 8;
            bytes[2 * i] = byte as u8;
            if byte < 15 {
                bytes[2 * i + 1] = byte as u8 + 1;
            }
            i += 1;
        }
        bytes
    }
}

/// Implements [`F32x16::load_stream`](super::F32x16::load_stream).
///
/// # Safety
/// The contract of that method applies.
#[inline(always)]
pub unsafe fn load<V: Lanes, const BITS: usize>(from: *const u8) -> V::Int {
    // SAFETY: the array has sixteen words, and `load` accepts any bit pattern. The code reads the
    // second byte of a number only if the number extends into it.
    unsafe {
        let words: [u32; LANES] = std::array::from_fn(|i| {
            let (byte, shift) = (i * BITS / 8, i * BITS % 8);
            let low = u32::from(*from.add(byte));
            let more = shift + BITS > 8;
            let high = if more { u32::from(*from.add(byte + 1)) } else { 0 };
            (low | high << 8) >> shift
        });
        V::load(words.as_ptr().cast()).to_bits()
    }
}

/// Returns the low `bits` bits of each lane as bytes.
#[inline(always)]
pub fn bytes<V: Lanes>(quarters: [V::Int; 4], bits: usize) -> V::Int {
    let mut bytes = [0.0f32; LANES];
    let mask = V::splat_int((1 << bits) - 1);
    for (quarter, to) in quarters.into_iter().zip(bytes.chunks_exact_mut(LANES / 4)) {
        // SAFETY: there is room for sixteen bytes.
        unsafe { V::store_bytes(V::and_int(quarter, mask), to.as_mut_ptr().cast()) };
    }
    // SAFETY: the array is a full vector, and `load` accepts any bit pattern.
    unsafe { V::load(bytes.as_ptr()).to_bits() }
}

/// Implements [`F32x16::load_lanes`](super::F32x16::load_lanes).
///
/// # Safety
/// The contract of that method applies.
#[inline(always)]
pub unsafe fn lanes<V: Lanes, const BITS: usize>(from: *const u8) -> V::Int {
    // SAFETY: a number is within three bytes; the array has sixteen words; `load` accepts any bit
    // pattern.
    unsafe {
        let words: [u32; LANES] = std::array::from_fn(|i| {
            let byte = |at: usize| u32::from(*from.add(i * BITS / 8 + at));
            (byte(0) | byte(1) << 8 | byte(2) << 16) >> (i * BITS % 8)
        });
        V::load(words.as_ptr().cast()).to_bits()
    }
}

/// Implements [`F32x16::store_stream`](super::F32x16::store_stream).
///
/// # Safety
/// The contract of that method applies.
#[inline(always)]
pub unsafe fn store<V: Lanes, const BITS: usize>(a: V::Int, to: *mut u8) {
    let mut lanes = [0.0f32; LANES];
    // SAFETY: the array holds sixteen floats, and eight packed numbers fill `BITS` bytes.
    unsafe {
        V::from_bits(a).store(lanes.as_mut_ptr());
        for (half, lanes) in lanes.chunks_exact(LANES / 2).enumerate() {
            let codes = lanes.iter().rev().map(|lane| u64::from(lane.to_bits()));
            let bytes = codes.fold(0, |word, code| word << BITS | code).to_le_bytes();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(half * BITS), BITS);
        }
    }
}
