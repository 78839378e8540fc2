//! The bit layouts of a block's codes and scales.

/// The number of weights that share a scale and a bias.
pub const GROUP: usize = 32;

/// A group of 32 weights, each `scale * code + bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    pub scale: f32,
    pub bias: f32,
    pub codes: [u8; GROUP],
}

/// The numbers that the codes of `IQ4_NL` and `IQ4_XS` represent.
const TABLE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Reads 4-bit codes: the low halves of 16 bytes, then their high halves.
pub(super) fn nibbles(bytes: &[u8]) -> [u8; GROUP] {
    std::array::from_fn(|i| match i {
        0..16 => bytes[i] & 15,
        _ => bytes[i - 16] >> 4,
    })
}

/// Reads 5-bit codes. [`nibbles`] reads their low four bits from `bytes`, and `high` packs their
/// fifth bits.
pub(super) fn fifth_bits(high: &[u8], bytes: &[u8]) -> [u8; GROUP] {
    let low = nibbles(bytes);
    std::array::from_fn(|i| low[i] | (high[i / 8] >> (i % 8) & 1) << 4)
}

/// Reads the 4-bit codes of a group. Two groups share 32 bytes: the low halves of the bytes belong
/// to the first group, and the high halves to the second.
pub(super) fn half_bytes(bytes: &[u8], group: usize) -> [u8; GROUP] {
    let shift = 4 * (group % 2);
    std::array::from_fn(|i| bytes[group / 2 * GROUP + i] >> shift & 15)
}

/// Reads 5-bit codes. [`half_bytes`] reads their low four bits from `bytes`. Their fifth bit is bit
/// `group` of each byte of `high`.
pub(super) fn five_bits(high: &[u8], bytes: &[u8], group: usize) -> [u8; GROUP] {
    let low = half_bytes(bytes, group);
    std::array::from_fn(|i| low[i] | (high[i] >> group & 1) << 4)
}

/// Reads the scale and the low (the offset that is subtracted) of a group from 12 bytes, which hold
/// eight 6-bit scales and eight 6-bit lows.
pub(super) fn scale_and_low(bytes: &[u8], group: usize) -> (u8, u8) {
    match group {
        0..4 => (bytes[group] & 63, bytes[group + 4] & 63),
        _ => (
            bytes[group + 4] & 15 | bytes[group - 4] >> 6 << 4,
            bytes[group + 4] >> 4 | bytes[group] >> 6 << 4,
        ),
    }
}

/// Reads the scale of a group from eight 6-bit scales with an offset of 32. The first two bytes
/// have the high bits of all scales, and four more bytes have the low bits.
pub(super) fn signed_scale(bytes: &[u8], group: usize) -> f32 {
    let low = bytes[2 + group / 2] >> (4 * (group % 2)) & 15;
    let high = u16::from_le_bytes([bytes[0], bytes[1]]) >> (2 * group) & 3;
    f32::from(i16::from(low) + 16 * high as i16 - 32)
}

/// Makes a group from 4-bit codes that index [`TABLE`]. The group's codes are the numbers of the
/// table plus 127.
pub(super) fn from_table(scale: f32, bytes: &[u8]) -> Group {
    let codes = nibbles(bytes).map(|code| (i16::from(TABLE[usize::from(code)]) + 127) as u8);
    Group { scale, bias: -127.0 * scale, codes }
}
