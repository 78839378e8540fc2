//! Unpacks the blocks of quantized weights in GGUF files into MLX's affine layout, which has groups
//! of 32 codes, each with a scale and a bias.
//!
//! A weight in a block is `step * q - low`. `q` is its code, or in [`BlockType::Iq4Nl`] and
//! [`BlockType::Iq4Xs`] the number that its code selects from a table. A step and a low apply to 32
//! weights, or to 16 in [`BlockType::Q2K`], [`BlockType::Q3K`] and [`BlockType::Q6K`]. If they
//! apply to 32 weights, a group represents exactly the same numbers. If they apply to 16, a group
//! has two halves with different steps. The group still represents the same numbers if all of them
//! are multiples of one step and the codes cover their range, which is always so in
//! [`BlockType::Q3K`]. Otherwise, unless the halves are too far apart, the half with the larger
//! step keeps its numbers, and the numbers of the other half are rounded.

mod layouts;
mod plain;

use half::f16;

use crate::quantized_matmul::k_quant;

pub use layouts::{GROUP, Group};

/// The format of a block, by ggml's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
}

/// An array of MLX's affine layout, or of this crate's layout for K-quants, [`k_quant`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Codes,
    Scales,
    Biases,
    /// The codes with the number of bits that they have in the file, [`BlockType::own_bits`].
    OwnCodes,
    /// The scales of [`k_quant`].
    OwnScales,
}

impl BlockType {
    pub const ALL: [Self; 12] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
    ];

    /// The name in ggml.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
        }
    }

    /// The number of weights in a block.
    pub fn weights(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::Iq4Nl => 32,
            _ => 256,
        }
    }

    /// The size of a block in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq4Xs => 136,
        }
    }

    /// The number of bits of a code in MLX's layout.
    pub fn bits(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q4K => 4,
            Self::Q5_0 | Self::Q5_1 | Self::Q5K => 5,
            Self::Q2K => 6,
            Self::Q8_0 | Self::Q3K | Self::Q6K | Self::Iq4Nl | Self::Iq4Xs => 8,
        }
    }

    /// The number of bits of a code in the layout [`k_quant`], or `None` for types without this
    /// layout.
    pub fn own_bits(self) -> Option<usize> {
        match self {
            Self::Q4K => Some(4),
            Self::Q5K => Some(5),
            Self::Q6K => Some(6),
            _ => None,
        }
    }

    /// Whether every weight keeps its value from the file. Otherwise some weights are rounded.
    pub fn is_exact(self) -> bool {
        !matches!(self, Self::Q2K | Self::Q6K)
    }

    /// Whether scales and biases are float16, as MLX stores them for the types that it can read.
    /// Otherwise they are float32, which represents the product of a block's scale and a group's
    /// scale exactly.
    pub fn has_f16_scales(self) -> bool {
        matches!(self, Self::Q4_0 | Self::Q4_1 | Self::Q8_0)
    }

    /// Whether the bias of each group is its scale times minus half of the number of codes.
    pub fn is_centered(self) -> bool {
        matches!(self, Self::Q4_0 | Self::Q5_0 | Self::Q8_0)
    }

    /// The size in bytes of one part for all groups of a block.
    pub fn part_bytes(self, part: Part) -> usize {
        match part {
            Part::OwnScales => k_quant::SCALE_BYTES,
            _ => self.weights() / GROUP * self.group_bytes(part),
        }
    }

    fn group_bytes(self, part: Part) -> usize {
        match part {
            Part::Codes => GROUP * self.bits() / 8,
            Part::OwnCodes => GROUP * self.own_bits().unwrap_or(self.bits()) / 8,
            _ if self.has_f16_scales() => size_of::<f16>(),
            _ => size_of::<f32>(),
        }
    }

    /// Writes one part of every group in `blocks` to `out`. Skips blocks that are incomplete in
    /// either slice.
    pub fn fill(self, part: Part, blocks: &[u8], out: &mut [u8]) {
        let (bytes, bits) = (self.group_bytes(part), self.bits());
        if self.has_f16_scales() {
            return self.fill_plain(part, blocks, out);
        }
        match part {
            Part::Codes | Part::Scales | Part::Biases => {
                self.each_group(blocks, out, bytes, |group, out| match part {
                    Part::Codes => pack(&group.codes, bits, out),
                    Part::Scales => write_float(group.scale, out),
                    _ => write_float(group.bias, out),
                });
            }
            Part::OwnCodes if self == Self::Q6K => {
                let outs = out.chunks_exact_mut(self.part_bytes(part));
                for (block, out) in blocks.chunks_exact(self.bytes()).zip(outs) {
                    for (index, out) in out.chunks_exact_mut(bytes).enumerate() {
                        let codes = halves_of(self, block, index).q.map(|q| (q + 32) as u8);
                        pack(&codes, 6, out);
                    }
                }
            }
            Part::OwnCodes => self.fill(Part::Codes, blocks, out),
            Part::OwnScales => {
                let outs = out.chunks_exact_mut(k_quant::SCALE_BYTES);
                for (block, out) in blocks.chunks_exact(self.bytes()).zip(outs) {
                    self.own_scales(block, out);
                }
            }
        }
    }

    /// Writes the scales of a block in the layout of [`k_quant`].
    fn own_scales(self, block: &[u8], out: &mut [u8]) {
        if self == Self::Q6K {
            out[..2].copy_from_slice(&block[208..]);
            out[2..4].fill(0);
            for (out, scale) in out[4..].iter_mut().zip(&block[192..208]) {
                *out = scale ^ 0x80; // adds 128
            }
            return;
        }
        out[..4].copy_from_slice(&block[..4]);
        out[3] ^= 0x80; // the lows are subtracted
        for group in 0..8 {
            let (scale, low) = layouts::scale_and_low(&block[4..16], group);
            (out[4 + group], out[12 + group]) = (scale, low);
        }
    }

    /// Calls `write` with each group and the `bytes` bytes of `out` for it.
    #[inline(always)]
    fn each_group(
        self,
        blocks: &[u8],
        out: &mut [u8],
        bytes: usize,
        write: impl Fn(&Group, &mut [u8]),
    ) {
        let groups = self.weights() / GROUP;
        let outs = out.chunks_exact_mut(groups * bytes);
        for (block, out) in blocks.chunks_exact(self.bytes()).zip(outs) {
            for (index, out) in out.chunks_exact_mut(bytes).enumerate() {
                write(&self.group(block, index), out);
            }
        }
    }

    /// Unpacks the group `index` of a full block.
    #[inline]
    pub fn group(self, block: &[u8], index: usize) -> Group {
        let at = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        match self {
            Self::Q4_0 => centered(at(0), 8, layouts::nibbles(&block[2..])),
            Self::Q4_1 => Group { scale: at(0), bias: at(2), codes: layouts::nibbles(&block[4..]) },
            Self::Q5_0 => centered(at(0), 16, layouts::fifth_bits(&block[2..6], &block[6..])),
            Self::Q5_1 => {
                let codes = layouts::fifth_bits(&block[4..8], &block[8..]);
                Group { scale: at(0), bias: at(2), codes }
            }
            Self::Q8_0 => {
                let codes = std::array::from_fn(|i| block[2 + i] ^ 0x80);
                centered(at(0), 128, codes)
            }
            Self::Q4K | Self::Q5K => {
                let (scale, low) = layouts::scale_and_low(&block[4..16], index);
                let (scale, low) = (f32::from(scale), f32::from(low));
                let codes = match self {
                    Self::Q4K => layouts::half_bytes(&block[16..], index),
                    _ => layouts::five_bits(&block[16..48], &block[48..], index),
                };
                Group { scale: at(0) * scale, bias: -at(2) * low, codes }
            }
            Self::Iq4Nl => layouts::from_table(at(0), &block[2..]),
            Self::Iq4Xs => {
                let scale = layouts::signed_scale(&block[2..8], index);
                layouts::from_table(at(0) * scale, &block[8 + 16 * index..])
            }
            Self::Q2K | Self::Q3K | Self::Q6K => {
                halves_of(self, block, index).fitted((1 << self.bits()) - 1)
            }
        }
    }
}

/// Makes a group of unsigned codes in which the code `zero` represents 0.
fn centered(scale: f32, zero: u8, codes: [u8; GROUP]) -> Group {
    Group { scale, bias: -f32::from(zero) * scale, codes }
}

/// Writes `value` as a float16 or a float32, depending on the length of `out`.
fn write_float(value: f32, out: &mut [u8]) {
    match out.len() {
        2 => out.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        _ => out.copy_from_slice(&value.to_le_bytes()),
    }
}

/// Packs the codes one after another, lowest bits first.
fn pack(codes: &[u8; GROUP], bits: usize, out: &mut [u8]) {
    for (codes, out) in codes.chunks_exact(8).zip(out.chunks_exact_mut(bits)) {
        let word = codes.iter().rev().fold(0u64, |word, &code| word << bits | u64::from(code));
        out.copy_from_slice(&word.to_le_bytes()[..bits]);
    }
}

/// A group of two halves of 16 weights. A weight is `step * q - low`, with a step and a low for
/// each half.
struct Halves {
    steps: [f32; 2],
    lows: [f32; 2],
    /// If this is not 0, all weights are multiples of it, and the lows are 0.
    unit: f32,
    q: [i8; GROUP],
}

impl Halves {
    /// Returns the nearest group whose codes are at most `most`.
    ///
    /// If the codes cover the numbers as multiples of `unit`, the scale of the group is `unit`.
    /// Otherwise it is 1/n of the larger step, where n is as large as the codes allow, if they
    /// allow at least 1. Then the codes are aligned with the half that has this step, so that this
    /// half keeps its numbers. The numbers of the other half are off by at most half of the scale.
    #[inline]
    fn fitted(&self, most: i32) -> Group {
        let Self { steps, lows, unit, q } = self;
        let values: [f32; GROUP] =
            std::array::from_fn(|i| steps[i / 16] * f32::from(q[i]) - lows[i / 16]);
        let least = values.iter().copied().fold(f32::INFINITY, f32::min);
        let range = values.iter().copied().fold(f32::NEG_INFINITY, f32::max) - least;
        let larger = usize::from(steps[1].abs() > steps[0].abs());
        let (step, origin) = (steps[larger].abs(), -lows[larger]);
        let parts = ((most - 1) as f32 * step / range).floor();
        let (scale, origin) = match () {
            _ if *unit > 0.0 && range <= *unit * most as f32 => (*unit, 0.0),
            _ if parts >= 1.0 && parts.is_finite() => (step / parts, origin),
            // The halves are too far apart for this step, or all numbers are equal.
            _ => (range / most as f32, least),
        };
        if !(scale.is_normal() && origin.is_finite()) {
            return Group { scale: 0.0, bias: least, codes: [0; GROUP] };
        }
        let first = ((least - origin) / scale + ROUNDING).floor();
        let codes = std::array::from_fn(|i| {
            // No quotient is negative, so adding 0.5 and truncating rounds to the nearest integer.
            (((values[i] - origin) / scale - first + 0.5) as u8).min(most as u8)
        });
        Group { scale, bias: origin + first * scale, codes }
    }
}

/// If a quotient is less than an integer by at most this much, it is rounded up to the integer.
const ROUNDING: f32 = 1e-3;

/// Reads a group whose halves have separate steps.
fn halves_of(kind: BlockType, block: &[u8], group: usize) -> Halves {
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
            // If the third bit of a weight is not set, 4 is subtracted from its code.
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

/// Makes halves with weights `step * scale * q`. All weights are multiples of `step` times the
/// greatest common divisor of the scales.
fn symmetric(step: f32, scales: [i8; 2], q: [i8; GROUP]) -> Halves {
    let [mut a, mut b] = scales.map(i8::unsigned_abs);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    let unit = step.abs() * f32::from(a);
    Halves { steps: scales.map(|scale| step * f32::from(scale)), lows: [0.0; 2], unit, q }
}
