//! The bit layouts of a block's codes and scales.

use half::f16;

use super::{BlockType, GROUP, Group, Halves};

/// The numbers that the codes of `IQ4_NL` and `IQ4_XS` represent.
const TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 4-bit codes: the low halves of 16 bytes, then their high halves.
pub(super) fn nibbles(bytes: &[u8]) -> [u8; GROUP] {
    std::array::from_fn(|i| match i {
        0..16 => bytes[i] & 15,
        _ => bytes[i - 16] >> 4,
    })
}

/// 5-bit codes: [`nibbles`] of `bytes`, with their fifth bits packed in `high`.
pub(super) fn fifth_bits(high: &[u8], bytes: &[u8]) -> [u8; GROUP] {
    let low = nibbles(bytes);
    std::array::from_fn(|i| low[i] | (high[i / 8] >> (i % 8) & 1) << 4)
}

/// 4-bit codes: a group has the low halves of 32 bytes, and the next group has the high halves.
pub(super) fn half_bytes(bytes: &[u8], group: usize) -> [u8; GROUP] {
    let shift = 4 * (group % 2);
    std::array::from_fn(|i| bytes[group / 2 * GROUP + i] >> shift & 15)
}

/// 5-bit codes: [`half_bytes`] of `bytes`. Bit `group` of each byte of `high` is the fifth bit.
pub(super) fn five_bits(high: &[u8], bytes: &[u8], group: usize) -> [u8; GROUP] {
    let low = half_bytes(bytes, group);
    std::array::from_fn(|i| low[i] | (high[i] >> group & 1) << 4)
}

/// The scale and the low of a group, from 12 bytes that hold eight of each with six bits.
pub(super) fn scale_and_low(bytes: &[u8], group: usize) -> (f32, f32) {
    let (scale, low) = match group {
        0..4 => (bytes[group] & 63, bytes[group + 4] & 63),
        _ => (
            bytes[group + 4] & 15 | bytes[group - 4] >> 6 << 4,
            bytes[group + 4] >> 4 | bytes[group] >> 6 << 4,
        ),
    };
    (f32::from(scale), f32::from(low))
}

/// The scale of a group, from eight 6-bit scales with an offset of 32: two bytes of high bits, then
/// four bytes of low bits.
pub(super) fn signed_scale(bytes: &[u8], group: usize) -> f32 {
    let low = bytes[2 + group / 2] >> (4 * (group % 2)) & 15;
    let high = u16::from_le_bytes([bytes[0], bytes[1]]) >> (2 * group) & 3;
    f32::from(i16::from(low) + 16 * high as i16 - 32)
}

/// A group whose codes index [`TABLE`].
pub(super) fn from_table(scale: f32, bytes: &[u8]) -> Group {
    let codes = nibbles(bytes).map(|code| (i16::from(TABLE[usize::from(code)]) + 127) as u8);
    Group { scale, bias: -127.0 * scale, codes }
}

/// A group whose halves have separate steps.
pub(super) fn halves_of(kind: BlockType, block: &[u8], group: usize) -> Halves {
    let at = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    // 128 weights share 32 bytes; each group has two bits of every byte.
    let (half, shift) = (group / 4, 2 * (group % 4));
    let two_bits = |bytes: &[u8], i: usize| (bytes[half * GROUP + i] >> shift & 3) as i8;
    match kind {
        BlockType::Q2K => {
            let (step, low) = (at(80), at(82));
            let scales = [block[2 * group], block[2 * group + 1]];
            Halves {
                steps: scales.map(|scale| step * f32::from(scale & 15)),
                lows: scales.map(|scale| low * f32::from(scale >> 4)),
                unit: 0.0,
                q: std::array::from_fn(|i| two_bits(&block[16..80], i)),
            }
        }
        BlockType::Q3K => {
            let bytes = &block[96..108];
            let scale = |i: usize| {
                let low = bytes[i % 8] >> (4 * (i / 8)) & 15;
                let high = bytes[8 + i % 4] >> (2 * (i / 4)) & 3;
                (low | high << 4) as i8 - 32
            };
            // If the third bit is set, 4 is not subtracted.
            let third = |i: usize| ((block[i] >> group & 1) << 2) as i8 - 4;
            let q = std::array::from_fn(|i| two_bits(&block[32..96], i) + third(i));
            symmetric(at(108), [2 * group, 2 * group + 1].map(scale), q)
        }
        _ => {
            let low = |i: usize| {
                let byte = block[half * 64 + group % 2 * GROUP + i];
                byte >> (4 * (group % 4 / 2)) & 15
            };
            let q = std::array::from_fn(|i| {
                (low(i) | (two_bits(&block[128..192], i) as u8) << 4) as i8 - 32
            });
            let scales = [2 * group, 2 * group + 1].map(|i| block[192 + i] as i8);
            symmetric(at(208), scales, q)
        }
    }
}

/// Weights `step * scale * q`, all multiples of `step` times the greatest common divisor of the
/// scales.
fn symmetric(step: f32, scales: [i8; 2], q: [i8; GROUP]) -> Halves {
    let [mut a, mut b] = scales.map(i8::unsigned_abs);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    let unit = step.abs() * f32::from(a);
    Halves { steps: scales.map(|scale| step * f32::from(scale)), lows: [0.0; 2], unit, q }
}
